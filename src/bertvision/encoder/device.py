"""Which device and precision an encoder computes in, and how long the device takes. Importing this needs no torch."""

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bertvision.errors import ConfigError

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Flags of everything that runs an encoder."""

    device: str = "auto"
    """auto, cpu, cuda or mps."""
    precision: Precision = "auto"
    """fp32, bf16, or auto: bf16 on GPUs that have it."""


def choose_device(name: str = "auto") -> "torch.device":
    """The device called `name`; `auto` is CUDA where there is one, then Apple's, then the CPU.

    Of several CUDA devices each process of `torchrun` or `accelerate launch` takes its own.
    """
    import torch

    counts = {"cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        name = next(kind for kind, count in counts.items() if count)
    kind, _, index = name.partition(":")
    if kind not in counts or not (index or "0").isdigit():
        raise ConfigError(f"--device {name} is not a device: use auto, cpu, cuda or mps")
    if int(index or 0) >= counts[kind]:
        raise ConfigError(f"--device {name}: this machine has no such device; use --device cpu")
    local = os.environ.get("LOCAL_RANK", "")
    if name == "cuda" and counts["cuda"] > 1 and local.isdigit():
        index = str(int(local) % counts["cuda"])
    device = torch.device(f"{kind}:{index}" if index else kind)
    if kind == "cuda" and index:
        torch.cuda.set_device(device)  # graphs are captured, and kernels launched, on the current device
    return device


def choose_precision(precision: Precision, device: "torch.device") -> Literal["fp32", "bf16"]:
    """`auto` is bf16 only where the hardware has it: on a CPU without it, autocast is 100 times slower than fp32."""
    import torch

    if precision != "auto":
        return precision
    return "bf16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"


class Clock:
    """Started when made. On a CUDA device it marks the device's own time and waits for nothing until asked."""

    def __init__(self, device: "torch.device") -> None:
        import torch

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
