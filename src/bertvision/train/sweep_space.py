"""What a sweep varies: options of heads and of their training, as ranges or as lists of choices.

In a recipe                                              as a flag
    space:
      lr: {low: 1e-4, high: 1e-2, log: true}             --vary lr=1e-4..1e-2:log
      dropout: {low: 0, high: 0.3, step: 0.1}            --vary dropout=0..0.3:step=0.1
      size: {choices: [64, 386]}                         --vary size=64,386
      weight_decay: {low: 1e-4, high: 0.1, points: 4}    --vary weight_decay=1e-4..0.1:points=4

A name is an option of the head (`size`), a setting of its training (`lr`), or `batch_size`. Several heads may be
searched together; each then has the names that it knows. `points` and `step` say which values of a range a grid takes,
and a search over trials keeps to the steps.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_type_hints

from bertvision.errors import ConfigError, nearest
from bertvision.heads.base import check_unit, head_class
from bertvision.heads.catalogue import EACH_LAYER, expand
from bertvision.heads.options import Unit
from bertvision.heads.spec import TrainOverrides, parse_head

__all__ = ["BATCH", "Candidate", "Choices", "Dimension", "Range", "Space", "read_space"]

BATCH = "batch_size"
"""The one name that belongs to the fit and not to a head."""

Value = bool | int | float | str


@dataclass(frozen=True)
class Choices:
    """A value out of a list."""

    values: tuple[Value, ...]

    def grid(self, name: str) -> tuple[Value, ...]:
        return self.values


@dataclass(frozen=True)
class Range:
    """A number between two ends, both of them included."""

    low: float
    high: float
    log: bool = False
    """Even in the logarithm."""
    step: float = 0.0
    """Distance of neighbouring values; 0 = any number."""
    points: int = 0
    """So many values in a grid, ends included."""
    whole: bool = False
    """Whole numbers only: the option wants them."""

    def grid(self, name: str) -> tuple[Value, ...]:
        """The values a grid takes."""
        if self.step:
            count = math.floor((self.high - self.low) / self.step + 1e-9) + 1
            return tuple(self.rounded(self.low + i * self.step) for i in range(count))
        if not self.points:
            raise ConfigError(
                f"--grid cannot take every {name} from {self.low:g} to {self.high:g}: give it choices, a step or points"
            )
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        steps = [low + (high - low) * i / max(self.points - 1, 1) for i in range(self.points)]
        values = [self.rounded(math.exp(value) if self.log else value) for value in steps]
        return tuple(dict.fromkeys(values))  # whole numbers may fall together

    def rounded(self, value: float) -> int | float:
        """As it is used and told: four digits are more than a search can tell apart."""
        if self.whole:
            return round(min(max(value, self.low), self.high))
        short = float(f"{value:.4g}")
        return short if self.low <= short <= self.high else min(max(value, self.low), self.high)


Dimension = Choices | Range


@dataclass(frozen=True)
class Candidate:
    """One head with values for what is varied."""

    head: str
    """As it is typed, training settings included: adapter:size=64,lr=0.001."""
    batch_size: int | None
    values: dict[str, Value]
    """By name; `head` among them where several heads are searched."""


@dataclass(frozen=True)
class Space:
    """Heads and what is varied of each."""

    heads: tuple[str, ...]
    """As they are typed, without what is varied."""
    dimensions: dict[str, Dimension]

    def of(self, head: str) -> dict[str, Dimension]:
        """What is varied of one head, with whole numbers where the option wants them."""
        known = _options(head)
        found: dict[str, Dimension] = {}
        for name, dimension in self.dimensions.items():
            if name in known:
                whole = isinstance(dimension, Range) and known[name] is int
                found[name] = _whole(name, dimension) if whole else dimension
        return found

    def candidate(self, head: str, values: Mapping[str, Value]) -> Candidate:
        """The head with these values; ranges are rounded as they are told."""
        dimensions = self.of(head)
        used: dict[str, Value] = {}
        for name, value in values.items():
            dimension = dimensions[name]
            used[name] = dimension.rounded(float(value)) if isinstance(dimension, Range) else value
        own = [f"{name}={_text(value)}" for name, value in used.items() if name != BATCH]
        text = head + ("" if not own else ("," if ":" in head else ":") + ",".join(own))
        batch = used.get(BATCH)
        if batch is not None and (type(batch) is not int or batch < 1):
            raise ConfigError(f"space {BATCH}: {batch} is no number of windows: give whole numbers above 0")
        told = ({"head": head} if len(self.heads) > 1 else {}) | used
        return Candidate(text, batch, told)

    def grid(self) -> list[Candidate]:
        """Every combination, head after head."""
        if BATCH in self.dimensions:
            raise ConfigError(
                f"--grid fits all heads on the same batches: leave {BATCH} out of the space, or search without --grid"
            )
        return [candidate for head in self.heads for candidate in self._combinations(head)]

    def _combinations(self, head: str) -> Iterator[Candidate]:
        dimensions = self.of(head)
        values = [dimension.grid(name) for name, dimension in dimensions.items()]
        for chosen in itertools.product(*values):
            yield self.candidate(head, dict(zip(dimensions, chosen, strict=True)))

    def corners(self) -> Iterator[Candidate]:
        """Candidates that show every choice and both ends of every range: what cannot work should cost no trial."""
        for head in self.heads:
            shown = {
                name: d.values if isinstance(d, Choices) else (d.low, d.high)
                for name, d in self.of(head).items()
            }
            first = {name: values[0] for name, values in shown.items()}
            for name, values in shown.items():
                for value in values:
                    yield self.candidate(head, first | {name: value})

    def to_mapping(self) -> dict[str, Any]:
        """As a recipe has it."""
        told: dict[str, Any] = {}
        for name, d in self.dimensions.items():
            if isinstance(d, Choices):
                told[name] = {"choices": list(d.values)}
            else:
                more = {"log": d.log, "step": d.step, "points": d.points}
                told[name] = {"low": d.low, "high": d.high} | {k: v for k, v in more.items() if v}
        return told


def read_space(
    heads: Sequence[str], recipe: Mapping[str, Any], flags: Sequence[str] = (), *, unit: Unit = "token"
) -> Space:
    """The space of a recipe's `space:` and of --vary, which stands over it; `heads` suit the unit."""
    raw: dict[str, Any] = {str(name): value for name, value in recipe.items()}
    raw |= dict(_flag(text) for text in flags)
    if not raw:
        raise ConfigError(
            "nothing is varied: name it with --vary lr=1e-4..1e-2:log size=64,386, or under space: in a recipe"
        )
    if EACH_LAYER in [head.strip() for head in heads]:
        raise ConfigError(
            f"--heads {EACH_LAYER} stands for readers of all hidden states, which are no rivals in a search: fit them "
            "with `bertvision fit`, or name one of them, such as layer_reader:layer=0"
        )
    texts = tuple(dict.fromkeys(text.strip() for text, _ in expand(heads, unit)))
    dimensions = {name.replace("-", "_"): _dimension(name, value) for name, value in raw.items()}
    for head in texts:
        check_unit(head_class(head.partition(":")[0].strip()), unit)
    space = Space(texts, dimensions)
    for name in dimensions:
        known = {option for head in texts for option in _options(head)}
        if name not in known:
            raise ConfigError(f"no head of the sweep has an option {name!r}: {nearest(name, sorted(known))}")
        for head in texts:
            if name in _written(head):
                raise ConfigError(f"head {head!r} sets {name}, which the space varies: leave one of them out")
    for candidate in space.corners():
        parse_head(candidate.head)
    return space


# ---- reading


def _dimension(name: str, value: Any) -> Dimension:
    """A dimension from a recipe's mapping; a bare list means choices."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = {"choices": value}
    if not isinstance(value, Mapping) or ("choices" in value) == ("low" in value or "high" in value):
        raise ConfigError(f"space {name}: give choices, or low and high, not {value!r}")
    known = ("choices",) if "choices" in value else ("low", "high", "log", "step", "points")
    for key in value:
        if key not in known:
            raise ConfigError(f"space {name} has no setting {key!r}: {nearest(str(key), list(known))}")
    if "choices" in value:
        return _choices(name, value["choices"])
    for key in ("low", "high"):
        if key not in value:
            raise ConfigError(f"space {name} has no {key}: give low and high")
    found = Range(
        _number(name, "low", value["low"]),
        _number(name, "high", value["high"]),
        value.get("log", False) is True,
        _number(name, "step", value.get("step", 0.0)),
        int(_number(name, "points", value.get("points", 0))),
    )
    if not found.low < found.high:
        raise ConfigError(f"space {name}: low {found.low:g} must lie below high {found.high:g}")
    if found.log and (found.low <= 0 or found.step):
        raise ConfigError(f"space {name}: log needs a low above 0 and no step")
    if found.step < 0 or found.points < 0 or (found.step and found.points):
        raise ConfigError(f"space {name}: give a step or points, not both, and neither below 0")
    return found


def _choices(name: str, values: Any) -> Choices:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ConfigError(f"space {name}: choices must be a list of values, not {values!r}")
    if not all(isinstance(value, bool | int | float | str) for value in values):
        raise ConfigError(f"space {name}: choices must be numbers, words or true and false, not {values!r}")
    # 5e-5 of YAML is a text, and 64 and "64" are one choice.
    texts = [_text(_plain(value)) for value in values]
    if len(set(texts)) < len(texts):
        raise ConfigError(f"space {name} names a choice twice: {', '.join(texts)}")
    return Choices(tuple(_plain(value) for value in values))


def _flag(text: str) -> tuple[str, Any]:
    """NAME=A,B,C or NAME=LOW..HIGH[:log][:step=S][:points=N]."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise ConfigError(f"--vary {text} is no space: write NAME=LOW..HIGH[:log] or NAME=A,B,C")
    if ".." not in value:
        return name, {"choices": [part for part in value.split(",") if part]}
    ends, *more = value.split(":")
    low, _, high = ends.partition("..")
    settings: dict[str, Any] = {"low": low, "high": high}
    for part in more:
        key, equals, own = part.partition("=")
        settings[key] = own if equals else True
    return name, settings


def _plain(value: Value) -> Value:
    """A text as the number or the truth it stands for."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _number(name: str, key: str, value: Any) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"space {name}: {key} must be a number, not {value!r}")
    return number


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


# ---- heads


def _options(head: str) -> dict[str, Any]:
    """Names a space may vary of a head, with their types."""
    cls = head_class(head.partition(":")[0].strip())
    training = {name: _bare(kind) for name, kind in get_type_hints(TrainOverrides).items()}
    training.pop("seed")  # --seeds: a trial's score is the mean over them
    return get_type_hints(cls.config_class) | training | {BATCH: int}


def _bare(kind: Any) -> Any:
    """int of `int | None`."""
    return next((arg for arg in getattr(kind, "__args__", ()) if arg in (int, float, str)), kind)


def _written(head: str) -> set[str]:
    """Options a head's text sets."""
    options = head.partition(":")[2].split(",")
    return {option.partition("=")[0].strip().replace("-", "_") for option in options if option.strip()}


def _whole(name: str, dimension: Dimension) -> Range:
    assert isinstance(dimension, Range)
    ends = (dimension.low, dimension.high, dimension.step)
    if not all(float(end).is_integer() for end in ends):
        raise ConfigError(
            f"space {name}: {name} is a whole number, so its low, high and step must be as well"
        )
    return Range(dimension.low, dimension.high, dimension.log, dimension.step, dimension.points, whole=True)
