"""What is known of one answered system of a study, beside its answers: how it was made and what that cost.

A system is one trained thing with one seed, read on one part of the data. Its folder in a study:

    records/NUMBER/about.json      this
    records/NUMBER/dev.safetensors, holdout.safetensors      its answers (study/records.py)

Systems that differ in the seed alone share a key, by which sections of the report ask for them:

    constant@0.3                     a snapshot: its tuning's family and the epochs behind it
    untuned                          the encoder as it came
    constant@0.3/adapter-386         a head fitted on that snapshot, on all training data
    constant@1/adapter-386~0.1       the same, fitted on a tenth of the data
    constant@1/adapter-386<constant@0.3    a head fitted on one snapshot, read on another
    join/NAME                        several systems joined
    constant@1#second                any of these, decoded for its second-best answers (#bertvision: as in the paper)
    answerable:pooled@1              systems of answer / no answer have their task in front
"""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from bertvision.config import from_mapping, to_mapping

__all__ = ["About", "Key", "Kind", "digest"]

Kind = Literal["snapshot", "control", "head", "ensemble"]


@dataclass(frozen=True)
class About:
    """How a system was made, and its cost."""

    experiment: str
    """The part of the recipe it is of."""
    kind: Kind
    label: str
    """The head as it is called in tables; of a snapshot its family and epochs."""
    seed: int = 0
    task: Literal["span", "answerable"] = "span"
    snapshot: str = ""
    """FAMILY@EPOCHS of the encoder whose states it reads; untuned for the encoder as it came."""
    fitted_on: str = ""
    """The snapshot a head was fitted on, where that is another one."""
    data_fraction: float = 1.0
    """Part of the training data it was fitted (or, of a snapshot, tuned) on."""
    variant: str = ""
    """second, bertvision: another decoding of the same system."""
    members: tuple[str, ...] = ()
    """Keys of what an ensemble joins."""
    how: str = ""
    """How it joins them."""
    # ---- the tuning behind it
    policy: str = ""
    schedule: str = ""
    lr: float = 0.0
    epochs: float = 0.0
    """Length of the tuning's schedule; the snapshot may be taken earlier."""
    batch_size: int = 0
    # ---- cost
    parameters: int | None = None
    """Of the head."""
    trainable: int | None = None
    """Everything that was trained for it, encoder included."""
    flops_per_token: int | None = None
    """Of the head, forward."""
    encoder_flops_per_token: int | None = None
    tune_seconds: float | None = None
    """Device time of the tuning from the raw encoder to this snapshot, scores and files not counted."""
    fit_seconds: float | None = None
    """Of one head fitted alone: its pass of the encoder and its own work."""
    inference_seconds: float | None = None
    """All windows of dev, encoder and this head."""
    peak_bytes: int | None = None
    """Most memory held while it was trained."""
    alone: bool = True
    """Nothing else ran on the device, so that its seconds count."""
    # ---- what else is told
    layer_weights: tuple[float, ...] = ()
    history: tuple[Any, ...] = ()
    """Records of its training: {epoch, loss} or {step, epoch, loss, lr}."""
    made: str = ""
    """Digest of settings, data and encoder it was made with: work with others is not taken for it."""
    command: str = ""
    commit: str = ""
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What it shares with its other seeds."""
        if self.kind == "ensemble":
            name = f"join/{self.label}"
        elif self.kind == "snapshot":
            name = self.snapshot
            name += f"~{self.data_fraction:g}" if self.data_fraction != 1 else ""
        else:
            name = f"{self.snapshot}/{self.label}"
            name += f"~{self.data_fraction:g}" if self.data_fraction != 1 else ""
            name += f"<{self.fitted_on}" if self.fitted_on else ""
        name += f"#{self.variant}" if self.variant else ""
        return name if self.task == "span" else f"{self.task}:{name}"

    @property
    def seconds(self) -> float | None:
        """From the raw encoder to this system; None where a part was not measured."""
        parts = [self.tune_seconds, self.fit_seconds]
        if self.kind == "snapshot":
            parts = parts[:1]
        elif self.snapshot == "untuned":
            parts = parts[1:]
        return None if None in parts else float(sum(part or 0.0 for part in parts))

    def as_dict(self) -> dict[str, Any]:
        return to_mapping(self)

    @classmethod
    def read(cls, values: dict[str, Any], source: str) -> "About":
        plain = {k: v for k, v in values.items() if k not in ("history", "environment")}
        made = from_mapping(cls, plain, source=source)
        return cls(
            **{
                **made.__dict__,
                "history": tuple(values.get("history", ())),
                "environment": dict(values.get("environment", {})),
            }
        )


class Key(NamedTuple):
    """What the key of a system that answers with spans says, taken apart."""

    snapshot: str
    label: str
    """Of a head; "" for a snapshot. Of an ensemble its name, with `join` for the snapshot."""
    fraction: float
    fitted_on: str

    @classmethod
    def of(cls, text: str) -> "Key":
        rest, _, fitted_on = text.partition("<")
        snapshot, _, label = rest.partition("/")
        if snapshot == "join":
            return cls(snapshot, label, 1.0, "")
        name, _, fraction = (label or snapshot).partition("~")
        share = float(fraction) if fraction else 1.0
        return cls(snapshot, name, share, fitted_on) if label else cls(name, "", share, "")


def digest(value: Any) -> str:
    """A short name of anything that can stand in JSON."""
    words = json.dumps(value, sort_keys=True)
    return hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
