"""What computes a model's answers."""

from typing import Literal

__all__ = ["Backend"]

Backend = Literal["torch", "onnx"]
