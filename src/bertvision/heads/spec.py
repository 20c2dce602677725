"""Heads as the user writes them: `adapter:size=64,skip=true,lr=3e-4`.

The part before the colon is a registered name, with or without its version. The options set fields of the head's
config or of its training (`lr`, `optimizer`, `schedule`, `seed` ...); `skip` alone means `skip=true`.

Torch is imported when a head is parsed or built.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

from bertvision.errors import ConfigError, nearest

if TYPE_CHECKING:
    from bertvision.heads.base import Geometry, Head


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

        from bertvision.heads.base import check_unit, head_class

        cls = head_class(self.name)
        check_unit(cls, geometry.unit)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(self.config, geometry)


def parse_head(text: str) -> HeadSpec:
    """Read `name[.vN][:key=value,...]`."""
    from bertvision.heads.base import head_class

    name, _, options = text.partition(":")
    name = name.strip()
    cls = head_class(name)
    hints = {"config": get_type_hints(cls.config_class), "train": get_type_hints(TrainOverrides)}
    values: dict[str, dict[str, Any]] = {"config": {}, "train": {}}
    for option in filter(None, (part.strip() for part in options.split(","))):
        key, equals, value = option.partition("=")
        key = key.strip().replace("-", "_")
        group = next((group for group, known in hints.items() if key in known), None)
        if group is None:
            known = sorted({*hints["config"], *hints["train"]})
            raise ConfigError(f"head {text!r} has no option {key!r}: {nearest(key, known)}")
        if key in values[group]:
            raise ConfigError(f"head {text!r} sets {key} twice")
        value = value.strip() if equals else "true"
        values[group][key] = _convert(value, hints[group][key], f"{key} of head {text!r}")
    for field in dataclasses.fields(cls.config_class):
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in values["config"]:
            raise ConfigError(f"head {text!r} needs a value for {field.name}: {name}:{field.name}=...")
    return HeadSpec(cls.name, cls.config_class(**values["config"]), TrainOverrides(**values["train"]))


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
