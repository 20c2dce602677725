"""The most memory that something took.

On a CUDA device it is what tensors held at most. On a CPU it is the most this process had in memory, which Linux
counts anew when asked; elsewhere it is the most since the process began.
"""

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch


def begin_peak(device: torch.device) -> None:
    """Forget what was held at most before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """The most bytes held since `begin_peak`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
