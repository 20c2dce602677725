"""Where numbers come from: the machine, the versions and the commit that every results.json names."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["commit", "environment"]


def environment(device: str, precision: str) -> dict[str, Any]:
    """Where the numbers were measured."""
    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "precision": precision,
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str | None:
    """The checkout's commit, where this is a checkout of bertvision; a copy is told by BERTVISION_COMMIT."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return os.environ.get("BERTVISION_COMMIT") or None
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
