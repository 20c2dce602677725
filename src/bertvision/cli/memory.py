"""Settings of the process's memory; they belong to the program, so the library leaves them alone."""

import ctypes
import os
import sys

__all__ = ["tune_memory"]

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # names of glibc's mallopt
_KEPT = 1 << 30
"""Bytes of freed memory at the top of the heap that are kept."""


def tune_memory() -> None:
    """Keep freed memory instead of giving it back to the system and taking it again at the next step.

    glibc maps every large tensor anew, and the system clears its pages one by one: a third of the time of the
    largest heads on a CPU. And batches of many shapes would leave a GPU's memory in pieces.
    """
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name of the same setting
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if hasattr(libc, "gnu_get_libc_version"):
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)
        libc.mallopt(_TOP_PAD, 64 << 20)
