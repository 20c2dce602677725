"""Settings of loading and saving a model; imports nothing heavy, because the command line shows them in its help."""

from dataclasses import dataclass, field
from typing import Literal

from bertvision.data.texts import Columns
from bertvision.errors import ConfigError

Backend = Literal["torch", "onnx"]
"""What computes the logits."""
Keep = Literal["auto", "bundle", "reference"]
"""Whether a package holds its encoder or names it."""


@dataclass(frozen=True)
class CardConfig:
    """What the card of a package says beyond what is kept beside its heads."""

    license: str = ""
    """The licence of the weights as the Hub names it (apache-2.0, cc-by-sa-4.0, ...); none is set by default."""
    datasets: tuple[str, ...] = ()
    """Names on the Hub of the data sets the heads were trained on."""
    scored_on: tuple[str, ...] = ()
    """The data the heads were scored on, as --dev takes it: scores get intervals from it. Files that still lie where
    they were when a head was made are found without."""
    columns: Columns = field(default_factory=Columns)
    """The columns of that data, where it is a table of texts."""
    commands: tuple[str, ...] = ()
    """How it was made, in addition to what is kept beside the heads."""

    def __post_init__(self) -> None:
        if any(letter.isspace() for letter in self.license):
            raise ConfigError(
                f"--license {self.license!r} is no name of a licence: write it as the Hub does, such as apache-2.0"
            )
