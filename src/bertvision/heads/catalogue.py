"""The heads that ship, as data (catalogue.csv): every head of the papers, the controls, and heads beyond them.

A row says what to type, where the head comes from, how sure that is, and which sets it is in:

    exact          the structure follows from public code or from the published count, and the count is met
    reconstructed  other structures would meet the count too, or no count was published
    ours           not in the papers: controls, and heads with a reason and a source of their own

`section` is the section of the papers' facts that a head comes from: 3.2 and 3.3 are BERTVision's twenty span models
in their order, 3.1 its layers, 4 its classification models, 6.1 Hulburd's context-aware CNN, 7 minBERT, 8 the
BERTVision repository. Only sizes are compared with the papers; docs/heads.md says what is not known.

This module imports no torch: `--help` and the checks of settings read it.
"""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertvision.errors import ConfigError, nearest
from bertvision.heads.spec import Unit

if TYPE_CHECKING:
    from bertvision.heads.spec import HeadSpec


Origin = Literal["exact", "reconstructed", "ours"]


@dataclass(frozen=True)
class CatalogueRow:
    head: str
    """What to type."""
    unit: Unit = "token"
    origin: Origin = "ours"
    section: str = ""
    """Section and row of the papers' facts; empty for ours."""
    paper: str = ""
    """The paper's name for it."""
    published: float | None = None
    """Percent of the encoder's parameters, as printed."""
    counted: Literal["trainable", "total"] = "trainable"
    """What the printed percentage counts; total includes the running statistics of batch norms."""
    sets: tuple[str, ...] = ()
    """Sets it is in, beside `all`."""


def _read() -> Iterator[CatalogueRow]:
    with (Path(__file__).parent / "catalogue.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            published = float(row["published"]) if row["published"] else None
            facts = {name: row[name] for name in ("head", "unit", "origin", "section", "paper", "counted")}
            yield CatalogueRow(**facts, published=published, sets=tuple(row["sets"].split()))  # pyright: ignore


CATALOGUE: tuple[CatalogueRow, ...] = tuple(_read())
"""Every head that ships, in the sizes of its paper: token heads first, the papers' in their order."""

EACH_LAYER = "each_layer"
"""The set of a reader for every hidden state (heads/readouts.py)."""

_APART = "minbert:vectors=2"
"""Reads two windows an example, so that it cannot share a fit with other heads."""


def _readers(states: int) -> tuple[str, ...]:
    return tuple(f"layer_reader:layer={k}" for k in range(states))


def _sets(unit: Unit) -> dict[str, tuple[str, ...]]:
    rows = [row for row in CATALOGUE if row.unit == unit and row.head != _APART]
    names = ("default", "papers", "pooling+adapters", "controls", "beyond")
    found = {name: tuple(row.head for row in rows if name in row.sets) for name in names}
    found = {name: heads for name, heads in found.items() if heads}
    return found | {"all": tuple(row.head for row in rows), EACH_LAYER: _readers(1)}


SETS: dict[Unit, dict[str, tuple[str, ...]]] = {"token": _sets("token"), "window": _sets("window")}
"""Names for several heads at once, for `fit --heads`; all heads of a set read one window an example."""


def head_names() -> list[str]:
    """Versioned names of all heads that can be fitted."""
    from bertvision.heads.base import head_class, registered

    return [name for name in registered() if head_class(name).units]


def expand(texts: Sequence[str], unit: Unit = "token", *, states: int = 0) -> Iterator[tuple[str, bool]]:
    """(head, whether a set named it) of everything in `texts`, with the sets of `unit` written out.

    Whether a head that was named by itself suits the unit is not checked here (`head_class`). `states` is the number of
    hidden states that are read, for each_layer; 0 = not known yet, where one reader stands for all.
    """
    sets = SETS[unit] | ({EACH_LAYER: _readers(states)} if states else {})
    for text in map(str.strip, texts):
        if text in sets:
            yield from ((head, True) for head in sets[text])
        else:
            _check_name(text, sets)
            yield text, False


def _check_name(text: str, sets: dict[str, tuple[str, ...]]) -> None:
    """Refuse what is not a head that can be fitted."""
    from bertvision.heads.base import head_class, registered

    name = text.partition(":")[0].strip()
    if name in sets:
        raise ConfigError(
            f"{name} is a set of heads and takes no options, not {text!r}: name its heads one by one"
        )
    if not any(name in (known, known.rsplit(".v", 1)[0]) for known in registered()):
        if any(name in others for others in SETS.values()):
            raise ConfigError(
                f"{name} is a set of heads for another kind of task: use {', '.join(sets)} or the name of a head"
            )
        bare = sorted({known.rsplit(".v", 1)[0] for known in head_names()})
        raise ConfigError(f"there is no head {name!r}: {nearest(name, [*sets, *bare])}")
    if not head_class(name).units:
        raise ConfigError(
            f"{name} gives distances between texts and has nothing to fit: it is for triplet pre-training"
        )


def find_row(spec: "HeadSpec") -> CatalogueRow | None:
    """The row of a head, however it was written; its training settings do not count."""
    from bertvision.heads.spec import parse_head

    for row in CATALOGUE:
        found = parse_head(row.head)
        if (found.name, found.config) == (spec.name, spec.config):
            return row
    return None
