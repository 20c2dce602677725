"""How long something takes on a device that works on its own."""

import time

import torch


class Clock:
    """Started when made. On a CUDA device it marks the device's own time and waits for nothing until asked."""

    def __init__(self, device: torch.device) -> None:
        self._events = None
        if device.type == "cuda":
            self._events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            self._events[0].record()
        self._began = self._ended = time.perf_counter()

    def stop(self) -> None:
        if self._events:
            self._events[1].record()
        self._ended = time.perf_counter()

    def seconds(self) -> float:
        """Between start and stop; on a CUDA device after the device has come so far."""
        if self._events:
            self._events[1].synchronize()
            return self._events[0].elapsed_time(self._events[1]) / 1000
        return self._ended - self._began
