"""Models: read what training left behind, predict, explain, export. Here the settings that flags are made of."""

from dataclasses import dataclass
from typing import Literal

from bertvision.encoder.device import DeviceConfig
from bertvision.errors import ConfigError
from bertvision.options import OptionalText

Backend = Literal["torch", "onnx"]
"""What computes the logits."""
Keep = Literal["auto", "bundle", "reference"]
"""Whether a package holds its encoder or names it."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(DeviceConfig):
    """The arguments of `load`."""

    encoder: OptionalText = None
    """Where the encoder lies now, if it moved."""
    backend: Backend = "torch"
    """What computes: torch, or the ONNX graph of a package (export --onnx), which runs on the CPU."""


@dataclass(frozen=True, kw_only=True)
class CardConfig:
    """What the card of a package says beyond what is kept beside its heads."""

    license: str = ""
    """The licence of the weights as the Hub names it (apache-2.0, cc-by-sa-4.0, ...); none is set by default."""
    datasets: tuple[str, ...] = ()
    """Names on the Hub of the data sets the heads were trained on, for the card."""

    def __post_init__(self) -> None:
        if any(letter.isspace() for letter in self.license):
            raise ConfigError(
                f"--license {self.license!r} is no name of a licence: write it as the Hub does, such as apache-2.0"
            )
