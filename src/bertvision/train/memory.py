"""The most memory that something took.

On a CUDA device it is what tensors held at most. On a CPU it is the most this process had in memory, which Linux
counts anew when asked; elsewhere it is the most since the process began.
"""

import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")


def begin_peak(device: torch.device) -> None:
    """Forget what was held at most before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed: the peak then counts from the beginning
        (_PROCESS / "clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """The most bytes held since `begin_peak`."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with suppress(OSError):
        for line in (_PROCESS / "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    # In kilobytes, but on macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
