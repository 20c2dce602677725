"""Which parts of the recipe a claim stands on, and how many of them have all their records.

A report may be made while its study is half run. A part (a tuning, a fit, a join) is done when every one of its seeds
has as many records as the part makes: a snapshot for each mark, a system for each head, one for a join.

    plan = Plan.of(settings, study)                     # settings as the recipe tells them, or {}
    plan.cost.told                                      # "7 of 19 parts"; empty where nothing is missing
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertvision.heads.catalogue import expand
from bertvision.heads.spec import parse_head
from bertvision.study.picks import is_beyond_label
from bertvision.study.view import Study

__all__ = ["COST_FAMILIES", "Plan", "Progress"]

COST_FAMILIES = ("constant", "decayed-", "cut-", "houlsby-", "lora-")
"""Families of the fine-tuning curves and of the cost curve."""

Part = Mapping[str, Any]


@dataclass(frozen=True)
class Progress:
    """How many of some parts are done."""

    done: int
    of: int

    @property
    def whole(self) -> bool:
        return self.done == self.of

    @property
    def told(self) -> str:
        return "" if self.whole else f"{self.done} of {self.of} parts"


@dataclass(frozen=True)
class Plan:
    """The recipe's parts beside the records; without a recipe nothing is known to be missing."""

    tune: Sequence[Part]
    fit: Sequence[Part]
    join: Sequence[Part]
    records: Mapping[tuple[str, int], int]
    """(part, seed) to the number of its records."""

    @classmethod
    def of(cls, settings: Mapping[str, Any], study: Study) -> "Plan":
        found: Counter[tuple[str, int]] = Counter()
        for group in (*study.groups.values(), *study.labels.values()):
            found.update((s.about.experiment, s.about.seed) for s in (*group.systems, *group.repeats))
        tune, fit = ([p for p in settings.get(kind) or () if _is_headline(p)] for kind in ("tune", "fit"))
        return cls(tune, fit, settings.get("join") or (), found)

    def papers(self, key: str) -> Progress:
        """A snapshot at constant rate and its heads."""
        return self._progress(lambda family: family == key.partition("@")[0], lambda p: p["snapshot"] == key)

    @property
    def decayed(self) -> Progress:
        """Full tunings with decayed rate, and the heads on them."""
        return self._progress(
            lambda family: family.startswith("decayed-"), lambda p: p["snapshot"].startswith("decayed-")
        )

    @property
    def cost(self) -> Progress:
        """All that the cost curve shows, which is the headline part as well."""
        return self._progress(lambda _: True, lambda _: True)

    @property
    def beyond(self) -> Progress:
        """Every fit on a snapshot that gets heads beyond the papers."""
        snapshots = {p["snapshot"] for p in self.fit if any(map(is_beyond_label, _labels(p)))}
        return self._progress(lambda _: False, lambda p: p["snapshot"] in snapshots)

    @property
    def joins(self) -> Progress:
        done = [all(self.records.get((p["name"], seed)) for seed in _join_seeds(p)) for p in self.join]
        return Progress(sum(done), len(done))

    def _progress(self, tuned: Callable[[str], bool], fitted: Callable[[Part], bool]) -> Progress:
        made = [(p, _marks(p)) for p in self.tune if tuned(p.get("family") or p["name"])]
        made += [(p, len(_labels(p))) for p in self.fit if fitted(p)]
        done = [
            all(self.records.get((p["name"], seed), 0) >= size for seed in p.get("seeds") or (0,))
            for p, size in made
        ]
        return Progress(sum(done), len(done))


def _is_headline(part: Part) -> bool:
    """On all data, for answers, and of the curves: not Hulburd's models, CACNNs, or the raw encoder."""
    if part.get("fraction", 1) != 1 or part.get("task", "span") != "span":
        return False
    family = part["snapshot"] if "snapshot" in part else part.get("family") or part["name"]
    return family.startswith(COST_FAMILIES)


def _marks(part: Part) -> int:
    tuning = part.get("finetune") or {}
    return len({float(mark) for mark in (*(tuning.get("snapshots") or ()), tuning.get("epochs", 1))})


def _labels(part: Part) -> list[str]:
    return list(dict.fromkeys(parse_head(head).label for head, _ in expand(tuple(part["heads"]), "span")))


def _join_seeds(part: Part) -> Sequence[int]:
    return (0,) if part.get("over_seeds") else part.get("seeds") or (0,)
