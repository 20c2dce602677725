"""Heads as the user writes them, `adapter:size=64,skip=true,lr=3e-4`, and the options they have.

The part before the colon is a registered name, with or without its version. What follows sets fields of the head's
config or of its training (`lr`, `optimizer`, `schedule`, `seed` ...); `skip` alone means `skip=true`. A config is a
frozen dataclass whose fields carry the range of their values:

    @dataclass(frozen=True)
    class LadderConfig(HeadConfig):
        size: int = at_least(1, 64)       # 64 by default, never below 1
        dropout: float = rate()           # 0 by default, below 1

Torch is imported when a head is parsed or built.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_type_hints

from bertvision.errors import ConfigError, nearest

if TYPE_CHECKING:
    from bertvision.heads.base import Geometry, Head

Unit = Literal["token", "window"]
"""What one row of logits belongs to: a token (answer spans), or a window (labels, scores, distances)."""
Gelu = Literal["tanh", "erf"]

_MOST = 10**6
"""Largest size: more can only be a typing error."""


# ---- options


def at_least(least: float, default: float) -> Any:
    """A number from `least` to a million."""
    return dataclasses.field(default=default, metadata={"least": least})


def rate(default: float = 0.0) -> Any:
    """A part of all numbers that is dropped while training."""
    return dataclasses.field(default=default, metadata={"rate": True})


@dataclass(frozen=True)
class HeadConfig:
    """Checks the ranges of its fields when it is made."""

    head: ClassVar[str] = ""
    """Name of the head, set when it is registered."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, where = getattr(self, field.name), f"{field.name} of {self.head}"
            least = field.metadata.get("least")
            if least is not None and not least <= value <= _MOST:
                raise ConfigError(f"{where} must lie between {least:g} and {_MOST:,}, not {value}")
            if "rate" in field.metadata and not 0 <= value < 1:
                raise ConfigError(f"{where} must lie between 0 and 1, 1 not included, not {value}")
        self.check()

    def check(self) -> None:
        """Refuse values that do not go together."""


@dataclass(frozen=True)
class NoOptions(HeadConfig):
    pass


@dataclass(frozen=True)
class DownConfig(HeadConfig):
    """Options of heads that reduce states by a `Down` (heads/adapter.py)."""

    size: int = at_least(1, 386)
    """a: numbers a state is reduced to."""
    gelu: Gelu = "tanh"
    """tanh approximation as in the papers' TensorFlow code, erf for the exact one."""


@dataclass(frozen=True)
class TrainOverrides:
    """Training settings that a single head may set for itself; None takes those of the fit."""

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


# ---- heads as text


@dataclass(frozen=True)
class HeadSpec:
    """A head to be built: the name of its class, its config, its own training settings."""

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
        own = dataclasses.asdict(self.train)
        parts += [f"{name}={value}" for name, value in own.items() if name != "seed" and value is not None]
        return "-".join(parts)

    def build(self, geometry: "Geometry", *, seed: int) -> "Head":
        """The head with weights drawn from `seed` alone; the global random state stays as it is."""
        import torch

        from bertvision.heads.base import head_class

        cls = head_class(self.name, geometry.unit)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(self.config, geometry)


def parse_head(text: str) -> HeadSpec:
    """Read `name[.vN][:key=value,...]`."""
    from bertvision.heads.base import head_class

    name, _, options = text.partition(":")
    cls = head_class(name.strip())
    own, training = get_type_hints(cls.config_class), get_type_hints(TrainOverrides)
    values: dict[str, Any] = {}
    for option in filter(None, (part.strip() for part in options.split(","))):
        key, equals, value = option.partition("=")
        key = key.strip().replace("-", "_")
        if key not in (known := training | own):
            raise ConfigError(f"head {text!r} has no option {key!r}: {nearest(key, sorted(known))}")
        if key in values:
            raise ConfigError(f"head {text!r} sets {key} twice")
        value = value.strip() if equals else "true"
        values[key] = _convert(value, known[key], f"{key} of head {text!r}")
    for field in dataclasses.fields(cls.config_class):
        if field.default is field.default_factory is dataclasses.MISSING and field.name not in values:
            raise ConfigError(f"head {text!r} needs a value for {field.name}: {name}:{field.name}=...")
    config = cls.config_class(**{key: value for key, value in values.items() if key in own})
    return HeadSpec(
        cls.name, config, TrainOverrides(**{k: value for k, value in values.items() if k not in own})
    )


def for_windows(text: str, tokens: int) -> str:
    """The text of a head with weights for every place of a window (ap_glue), made for this length unless it sets its
    own; the text of any other head as it is."""
    if not hasattr(parse_head(text).config, "tokens") or "tokens=" in text:
        return text
    return f"{text}{',' if ':' in text else ':'}tokens={tokens}"


def _convert(text: str, kind: Any, where: str) -> Any:
    """A field's value from its text; `kind` is a type, a Literal of strings, or either of them `| None`."""
    options = [option for option in get_args(kind) if option is not type(None)]
    if len(options) == 1 and not isinstance(options[0], str):  # X | None: nobody writes None
        return _convert(text, options[0], where)
    if options:
        if text not in options:
            raise ConfigError(f"{where} must be one of {', '.join(options)}, not {text!r}")
        return text
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError) as error:
        raise ConfigError(f"{where} must be a {kind.__name__}, not {text!r}") from error
