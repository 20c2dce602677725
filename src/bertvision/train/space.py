"""What a sweep varies: options of heads and of their training.

In a recipe                                              as a flag
    space:
      lr: {low: 1e-4, high: 1e-2, log: true}             --vary lr=1e-4..1e-2:log
      size: [64, 386]                                    --vary size=64,386

A name is an option of the head (`size`), a setting of its training (`lr`), or `batch_size`. Several heads may be
searched together; each then has the names that it knows. A grid takes lists only.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from bertvision.errors import ConfigError, nearest
from bertvision.heads.base import head_class
from bertvision.heads.spec import EACH_LAYER, TrainOverrides, Unit, expand, parse_head

BATCH = "batch_size"  # the one name that belongs to the fit and not to a head
DATABASE, TRIALS, GRID = "study.db", "trials", "grid"
"""What a search over trials, and a grid, leave in the folder of a sweep."""

Value = bool | int | float | str


@dataclass(frozen=True)
class Range:
    """A number between two ends, both included."""

    low: int | float
    high: int | float
    log: bool = False  # even in the logarithm

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers only: both ends are written as such."""
        return type(self.low) is type(self.high) is int

    def rounded(self, value: float) -> int | float:
        """To four digits, inside the range: more than a search can distinguish."""
        short = round(value) if self.whole else float(f"{value:.4g}")
        return short if self.low <= short <= self.high else value


Dimension = Range | tuple[Value, ...]  # a range, or the choices of a list


@dataclass(frozen=True)
class Candidate:
    """One head with values for what is varied."""

    head: str  # as it is typed, training settings included: adapter:size=64,lr=0.001
    batch_size: int | None
    values: dict[str, Value]  # by name; `head` among them where several heads are searched


@dataclass(frozen=True)
class Space:
    """Heads and what is varied of each."""

    heads: tuple[str, ...]  # as they are typed, without what is varied
    dimensions: dict[str, Dimension]

    def of(self, head: str) -> dict[str, Dimension]:
        """What is varied of one head."""
        known = _options(head)
        return {name: dimension for name, dimension in self.dimensions.items() if name in known}

    def candidate(self, head: str, values: Mapping[str, Value]) -> Candidate:
        own = ",".join(f"{name}={_text(value)}" for name, value in values.items() if name != BATCH)
        batch = values.get(BATCH)
        if batch is not None and (type(batch) is not int or batch < 1):
            raise ConfigError(f"space {BATCH}: {batch} is no number of windows: give whole numbers above 0")
        text = head + ("," if ":" in head else ":") * bool(own) + own
        return Candidate(text, batch, ({"head": head} if len(self.heads) > 1 else {}) | dict(values))

    def grid(self) -> list[Candidate]:
        """Every combination, head after head."""
        if BATCH in self.dimensions:
            raise ConfigError(
                f"--grid fits all heads on the same batches: leave {BATCH} out of the space, or search without --grid"
            )
        for name, dimension in self.dimensions.items():
            if isinstance(dimension, Range):
                raise ConfigError(
                    f"space {name}: a grid cannot take every number of a range: list them, {name}=A,B,C"
                )
        found = []
        for head in self.heads:
            lists = {name: d for name, d in self.of(head).items() if not isinstance(d, Range)}
            chosen = itertools.product(*lists.values())
            found += [self.candidate(head, dict(zip(lists, some, strict=True))) for some in chosen]
        return found

    def corners(self) -> Iterator[Candidate]:
        """Candidates that show every choice and both ends of every range: what cannot work should cost no trial."""
        for head in self.heads:
            shown = {
                name: (d.low, d.high) if isinstance(d, Range) else d for name, d in self.of(head).items()
            }
            first = {name: values[0] for name, values in shown.items()}
            for name, values in shown.items():
                yield from (self.candidate(head, first | {name: value}) for value in values)

    def to_mapping(self) -> dict[str, Any]:
        """As a recipe has it."""
        found: dict[str, Any] = {}
        for name, d in self.dimensions.items():
            if isinstance(d, Range):
                found[name] = {"low": d.low, "high": d.high} | ({"log": True} if d.log else {})
            else:
                found[name] = {"choices": list(d)}
        return found


def read_space(
    heads: Sequence[str], recipe: Mapping[str, Any], flags: Sequence[str] = (), *, unit: Unit = "token"
) -> Space:
    """The space of a recipe's `space:` and of --vary, which overrides it; `heads` suit the unit."""
    raw = {str(name): value for name, value in recipe.items()} | dict(map(_flag, flags))
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
    known = {name: kind for head in texts for name, kind in _options(head, unit).items()}
    dimensions: dict[str, Dimension] = {}
    for given, value in raw.items():
        name = given.replace("-", "_")
        if name not in known:
            raise ConfigError(f"no head of the sweep has an option {name!r}: {nearest(name, sorted(known))}")
        dimensions[name] = _dimension(name, value, known[name])
    space = Space(texts, dimensions)
    for candidate in space.corners():
        parse_head(candidate.head)  # refuses what the head sets itself, too
    return space


def _dimension(name: str, value: Any, kind: Any) -> Dimension:
    if isinstance(value, Mapping) and {"low", "high"} <= value.keys() <= {"low", "high", "log"}:
        low, high, log = (_plain(value.get(key, False)) for key in ("low", "high", "log"))
        numbers = {type(low), type(high)} <= {int, float} and type(log) is bool
        found, wrong = Range(low, high, log), ""  # pyright: ignore[reportArgumentType]
        if not numbers or not -math.inf < found.low < found.high < math.inf:
            wrong = f"low {low} must be a number below high {high}, and log true or false"
        elif found.log and found.low <= 0:
            wrong = "log needs a low above 0"
        elif kind is int and not found.whole:
            wrong = "it is a whole number, so its low and high must be as well"
        if wrong:
            raise ConfigError(f"space {name}: {wrong}")
        return found
    choices = value["choices"] if isinstance(value, Mapping) and [*value] == ["choices"] else value
    if not isinstance(choices, list | tuple) or not choices:
        raise ConfigError(f"space {name}: give choices, or low, high and log, not {value!r}")
    if not all(isinstance(choice, Value) for choice in choices):
        raise ConfigError(f"space {name}: choices must be numbers, texts or true and false, not {choices!r}")
    found = tuple(map(_plain, choices))
    if len(set(map(_text, found))) < len(found):  # 64 and "64" are one choice
        raise ConfigError(f"space {name} names a choice twice: {', '.join(map(_text, found))}")
    return found


def _flag(text: str) -> tuple[str, Any]:
    """NAME=A,B,C or NAME=LOW..HIGH[:log]."""
    name, _, value = text.partition("=")
    ends, colon, log = value.partition(":")
    low, dots, high = ends.partition("..")
    if not name or not value or (dots and colon and log != "log"):
        raise ConfigError(f"--vary {text} is no space: write NAME=LOW..HIGH[:log] or NAME=A,B,C")
    if dots:
        return name, {"low": low, "high": high, "log": bool(colon)}
    return name, [part for part in value.split(",") if part]


def _plain(value: Value) -> Value:
    truth = {"true": True, "false": False}
    if isinstance(value, str) and value.lower() in truth:
        return truth[value.lower()]
    for kind in (int, float) if isinstance(value, str) else ():
        with contextlib.suppress(ValueError):
            return kind(value)
    return value


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _options(head: str, unit: Unit | None = None) -> dict[str, Any]:
    hints = get_type_hints(TrainOverrides)
    del hints["seed"]  # --seeds: a trial's score is the mean over them
    training = {name: (get_args(kind) or (kind,))[0] for name, kind in hints.items()}  # int of int | None
    own = get_type_hints(head_class(head.partition(":")[0].strip(), unit).config_class)
    return own | training | {BATCH: int}
