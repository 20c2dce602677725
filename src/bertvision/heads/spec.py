"""Heads as the user writes them: `adapter:size=64,skip=true,lr=3e-4`.

What stands before the colon is a registered name, with or without its version. What follows sets fields of the
head's config, or of its training (`lr`, `optimizer`, `schedule`, `seed` ...); `skip` alone means `skip=true`.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

import torch

from bertvision.errors import ConfigError
from bertvision.heads.base import Geometry, Head, check_task, head_class, nearest

__all__ = ["HeadSpec", "TrainOverrides", "parse_head"]


@dataclass(frozen=True)
class TrainOverrides:
    """Training settings a single head may set for itself; None takes the fit's."""

    optimizer: Literal["adamw", "adam", "sgd"] | None = None
    lr: float | None = None
    schedule: Literal["constant", "linear"] | None = None
    warmup: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    patience: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 0:
            raise ConfigError(f"patience of a head must not be negative, not {self.patience}")


@dataclass(frozen=True)
class HeadSpec:
    """A head to be built: its class by name, its config, its own training settings."""

    name: str
    config: Any
    train: TrainOverrides = TrainOverrides()

    @property
    def label(self) -> str:
        """Short name for tables and folders: the head and what differs from its defaults."""
        parts = [self.name.removesuffix(".v1").replace("_", "-")]
        for field in dataclasses.fields(self.config):
            value = getattr(self.config, field.name)
            if field.name == "size":
                parts.append(str(value))
            elif value != field.default:
                parts.append(field.name.replace("_", "-") if value is True else f"{field.name}={value}")
        parts += [f"{f.name}={v}" for f in dataclasses.fields(self.train)
                  if f.name != "seed" and (v := getattr(self.train, f.name)) is not None]  # fmt: skip
        return "-".join(parts)

    def build(self, geometry: Geometry, *, seed: int) -> Head:
        """The head with weights drawn from `seed` alone, whatever was drawn before."""
        cls = head_class(self.name)
        check_task(cls, geometry.task)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(self.config, geometry)


def _convert(text: str, kind: Any, where: str) -> Any:
    """A field's value from its text."""
    # None is what leaving the option out means; nobody writes it.
    choices = tuple(c for c in get_args(kind) if c is not type(None))
    if len(choices) == 1 and get_args(choices[0]):
        choices = get_args(choices[0])
    if choices and all(isinstance(choice, str) for choice in choices):
        if text not in choices:
            raise ConfigError(f"{where} must be one of {', '.join(choices)}, not {text!r}")
        return text
    kind = choices[0] if choices else kind
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{where} must be a {kind.__name__}, not {text!r}") from error


def parse_head(text: str) -> HeadSpec:
    """Read `name[.vN][:key=value,...]`."""
    name, _, options = text.partition(":")
    name = name.strip()
    cls = head_class(name)
    fields = {"config": get_type_hints(cls.config_class), "train": get_type_hints(TrainOverrides)}
    values: dict[str, dict[str, Any]] = {"config": {}, "train": {}}
    for option in filter(None, (part.strip() for part in options.split(","))):
        key, equals, value = option.partition("=")
        key = key.strip().replace("-", "_")
        group = next((group for group, known in fields.items() if key in known), None)
        if group is None:
            known = sorted({*fields["config"], *fields["train"]})
            raise ConfigError(f"head {text!r} has no option {key!r}: {nearest(key, known)}")
        if key in values[group]:
            raise ConfigError(f"head {text!r} sets {key} twice")
        values[group][key] = _convert(
            value.strip() if equals else "true", fields[group][key], f"{key} of head {text!r}"
        )
    for field in dataclasses.fields(cls.config_class):
        if (
            field.default is field.default_factory is dataclasses.MISSING
            and field.name not in values["config"]
        ):
            raise ConfigError(f"head {text!r} needs a value for {field.name}: {name}:{field.name}=...")
    return HeadSpec(cls.name, cls.config_class(**values["config"]), TrainOverrides(**values["train"]))
