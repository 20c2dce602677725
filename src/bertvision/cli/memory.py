"""Settings of the process's memory; they belong to the program, so the library leaves them alone."""

import ctypes
import os
import sys

# Names of glibc's mallopt.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -2, -3, -4, -8

_TRAINING = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 1 << 30, _TOP_PAD: 64 << 20}
"""Keep freed memory instead of returning it to the system and taking it again at the next step: glibc maps every large
tensor anew, and the system clears its pages one by one, a third of the time of the largest heads on a CPU."""
_SERVING = {_MMAP_THRESHOLD: 1 << 20, _TRIM_THRESHOLD: 16 << 20, _TOP_PAD: 1 << 20, _ARENA_MAX: 1}
"""Return large tensors to the system as soon as they are freed, with one heap for all threads: batches of ever other
sizes would fragment kept memory, and a server that runs for weeks would grow. Answers take as long either way."""


def tune_memory(*, serving: bool = False) -> None:
    """Prepare the process for training, or for serving."""
    if "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:  # the older name of the same setting
        # Batches of many shapes would fragment a GPU's memory.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if serving:
        # oneDNN and torch keep what they compile for a shape, a thousand of them; batches have ever other shapes, and
        # compiling one takes less than can be measured.
        for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
            os.environ.setdefault(name, "32")
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "gnu_get_libc_version"):
        for name, value in (_SERVING if serving else _TRAINING).items():
            libc.mallopt(name, value)
