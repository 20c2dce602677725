"""Heads as the user writes them, `adapter:size=64,skip=true,lr=3e-4`, their options, and the heads and sets that ship.

The part before the colon is a registered name, with or without its version. What follows sets fields of the head's
config or of its training (`lr`, `optimizer` ...). A config is a frozen dataclass whose fields carry their range:

    @dataclass(frozen=True)
    class LadderConfig(HeadConfig):
        size: int = at_least(1, 64)       # 64 by default, never below 1
        dropout: float = rate()           # 0 by default, below 1

catalogue.csv has a row for every head that ships: what to type, the section of the papers' facts that it comes from
(docs/heads.md), its sets, and how sure its structure is: exact, reconstructed, or ours.

Torch is imported when a head is parsed or built: `--help` and the checks of settings read the sets without it.
"""

import csv
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast, get_args, get_type_hints

from bertvision.errors import ConfigError, nearest

if TYPE_CHECKING:
    from bertvision.heads.base import Geometry, Head

Unit = Literal["token", "window"]
"""What one row of logits belongs to: a token (answer spans), or a window (labels, scores, distances)."""
Gelu = Literal["tanh", "erf"]
"""The approximation of the papers' TensorFlow code, or the exact function."""

_MOST = 10**6  # more can only be a typing error


# ---- options


def at_least(least: float, default: float) -> Any:
    """A number from `least` to a million."""
    return dataclasses.field(default=default, metadata={"least": least})


def rate(default: float = 0.0) -> Any:
    """A part of all numbers that is dropped while training."""
    return dataclasses.field(default=default, metadata={"rate": True})


@dataclass(frozen=True)
class HeadConfig:
    """Checks the ranges of its fields when it is made. As it stands: a head without options."""

    head: ClassVar[str] = ""  # its name, set when it is registered

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
    name: str
    config: Any
    train: TrainOverrides = TrainOverrides()

    @property
    def label(self) -> str:
        """For tables and folders: the head and what differs from its defaults."""
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
    types = get_type_hints(TrainOverrides) | get_type_hints(cls.config_class)
    own = {field.name: field for field in dataclasses.fields(cls.config_class)}
    known = [*own, *(field.name for field in dataclasses.fields(TrainOverrides))]
    values: dict[str, Any] = {}
    for option in filter(None, map(str.strip, options.split(","))):
        key, equals, value = option.partition("=")
        key = key.strip().replace("-", "_")
        if key not in known:
            raise ConfigError(f"head {text!r} has no option {key!r}: {nearest(key, sorted(known))}")
        if key in values:
            raise ConfigError(f"head {text!r} sets {key} twice")
        values[key] = _convert(value.strip() if equals else "true", types[key], f"{key} of head {text!r}")
    for key, field in own.items():
        if field.default is field.default_factory is dataclasses.MISSING and key not in values:
            raise ConfigError(f"head {text!r} needs a value for {key}: {name}:{key}=...")
    config = cls.config_class(**{key: values.pop(key) for key in own if key in values})
    return HeadSpec(cls.name, config, TrainOverrides(**values))


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


def for_windows(text: str, tokens: int) -> str:
    """The text of a head, with this length where it has weights for every place of a window and sets none (ap_glue)."""
    if not hasattr(parse_head(text).config, "tokens") or "tokens=" in text:
        return text
    return f"{text}{',' if ':' in text else ':'}tokens={tokens}"


# ---- the catalogue


@dataclass(frozen=True)
class CatalogueRow:
    head: str  # what to type
    unit: Unit = "token"
    origin: Literal["exact", "reconstructed", "ours"] = "ours"
    section: str = ""  # section and row of the papers' facts; empty for ours
    paper: str = ""  # the paper's name for it
    published: float | None = None  # percent of the encoder's parameters, as printed
    counted: Literal["trainable", "total"] = "trainable"  # what that counts; total: running statistics too
    sets: tuple[str, ...] = ()


_LINES = Path(__file__).with_name("catalogue.csv").read_text(encoding="utf-8").splitlines()
CATALOGUE = tuple(
    CatalogueRow(
        **cast(
            "dict[str, Any]",
            row | {"published": float(row["published"] or 0) or None, "sets": tuple(row["sets"].split())},
        )
    )
    for row in csv.DictReader(_LINES)
)
"""Every head that ships, in the sizes of its paper: token heads first, the papers' in their order."""

EACH_LAYER = "each_layer"  # the set of a reader for every hidden state (heads/readouts.py)


def _sets(unit: Unit) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {EACH_LAYER: ("layer_reader:layer=0",)}
    for row in CATALOGUE:
        for name in row.sets if row.unit == unit else ():
            found[name] = (*found.get(name, ()), row.head)
    return found


SETS: dict[Unit, dict[str, tuple[str, ...]]] = {"token": _sets("token"), "window": _sets("window")}
"""Names for several heads at once, for `fit --heads`; all heads of a set read one window an example."""


def head_names() -> list[str]:
    from bertvision.heads.base import head_class, registered

    return [name for name in registered() if head_class(name).units]


def expand(texts: Sequence[str], unit: Unit = "token", *, states: int = 0) -> Iterator[tuple[str, bool]]:
    """(head, whether a set named it) of all `texts`, sets of `unit` written out; `states` = 0: not known yet."""
    readers = tuple(f"layer_reader:layer={k}" for k in range(states or 1))
    sets = SETS[unit] | {EACH_LAYER: readers}
    for text in map(str.strip, texts):
        if text in sets:
            yield from ((head, True) for head in sets[text])
        else:
            _check_name(text, unit)
            yield text, False


def _check_name(text: str, unit: Unit) -> None:
    from bertvision.heads.base import head_class

    name, sets = text.partition(":")[0].strip(), SETS[unit]
    what = f"{name} is a set of heads"
    if name in sets:
        raise ConfigError(f"{what} and takes no options, not {text!r}: name its heads one by one")
    if any(name in others for others in SETS.values()):
        raise ConfigError(f"{what} for another kind of task: use {', '.join(sets)} or the name of a head")
    if not head_class(name, sets=sets).units:
        raise ConfigError(f"{name} gives distances and has nothing to fit: it is for triplet pre-training")


def find_row(spec: HeadSpec) -> CatalogueRow | None:
    """The row of a head, however it was written; its training settings do not count."""
    heads = ((row, parse_head(row.head)) for row in CATALOGUE)
    return next((row for row, own in heads if (own.name, own.config) == (spec.name, spec.config)), None)
