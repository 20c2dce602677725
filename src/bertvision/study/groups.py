"""All seeds of a system of a study: its answers question by question, and the scores of their means.

`at` names the threshold for no answer: "zero"; "tuned" on a held-out part of the training data, re-weighted to as many
unanswerable questions as dev has; "oracle", the best on dev itself, which only shows how much a threshold could give.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertvision.study.about import About
from bertvision.study.records import LabelRecord, SpanRecord, oracle_threshold, weighted_f1
from bertvision.tasks.span.score import summary

__all__ = ["At", "Group", "LabelGroup", "LabelSystem", "Scores", "System"]

At = Literal["zero", "tuned", "oracle"]
Pair = tuple[NDArray[np.float64], NDArray[np.float64]]
"""(Q,) exact match and F1."""


@dataclass(frozen=True)
class System:
    """One trained thing with one seed."""

    about: About
    dev: SpanRecord
    holdout: SpanRecord | None
    number: str
    """Name of its folder under records/."""
    threshold: float = 0.0
    """Tuned on the held-out part; 0 where there is none."""

    @property
    def tuned(self) -> bool:
        """Whether there was anything to tune the threshold on."""
        return self.holdout is not None


@dataclass(frozen=True)
class LabelSystem:
    """The same, of answer / no answer."""

    about: About
    dev: LabelRecord
    number: str


@dataclass(frozen=True)
class Scores:
    """Percent, means over seeds."""

    exact: float
    f1: float
    has_f1: float
    """F1 of the answerable questions."""
    no_exact: float
    """Exact match of the unanswerable ones."""
    sd_exact: float | None
    """Standard deviation over the seeds (n - 1); None of a single one."""
    sd_f1: float | None
    per_seed: list[dict[str, Any]]
    """seed, exact, f1 and threshold of each."""


def _sd(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


S = TypeVar("S", System, LabelSystem)


@dataclass(frozen=True)
class _Seeds(Generic[S]):
    """What groups of both tasks have in common."""

    key: str
    systems: list[S]
    """One a seed, in their order."""
    answerable: NDArray[np.bool_]
    """(Q,) which questions of dev have an answer."""
    repeats: list[S] = field(default_factory=list)
    """The same key and seed run again: only their costs count."""

    @property
    def about(self) -> About:
        return self.systems[0].about

    @property
    def seeds(self) -> list[int]:
        return [system.about.seed for system in self.systems]

    def common(self, other: "_Seeds[Any]") -> list[int]:
        """The seeds that another has too."""
        return [seed for seed in self.seeds if seed in other.seeds]

    def mean(self, name: str) -> float | None:
        """Mean of a numeric field of `About` over the systems that have it; of seconds, those that ran alone."""
        abouts = [
            s.about for s in (*self.systems, *self.repeats) if s.about.alone or not name.endswith("seconds")
        ]
        values = [value for about in abouts if (value := getattr(about, name)) is not None]
        return float(np.mean(values)) if values else None


@dataclass(frozen=True)
class Group(_Seeds[System]):
    """All seeds of a system that answers with spans."""

    holdout_answerable: NDArray[np.bool_] | None = None
    """(H,) the same of the held-out part."""
    _cache: dict[tuple[str, int], Pair] = field(default_factory=dict, repr=False, compare=False)

    def threshold(self, system: System, at: At) -> float:
        if at == "oracle":
            return oracle_threshold(system.dev, self.answerable)
        return system.threshold if at == "tuned" else 0.0

    def each(self, at: At) -> list[Pair]:
        """(Q,) exact match and F1 of each seed."""
        for number, system in enumerate(self.systems):
            if (at, number) not in self._cache:
                self._cache[at, number] = system.dev.at(self.threshold(system, at), self.answerable)
        return [self._cache[at, number] for number in range(len(self.systems))]

    def questions(self, at: At, seeds: Sequence[int] | None = None) -> Pair:
        """(Q,) exact match and F1 between 0 and 1, means over the seeds (all, or those given)."""
        kept = [
            pair
            for seed, pair in zip(self.seeds, self.each(at), strict=True)
            if seeds is None or seed in seeds
        ]
        return np.mean([exact for exact, _ in kept], axis=0), np.mean([f1 for _, f1 in kept], axis=0)

    def scores(self, at: At) -> Scores:
        mean = summary(*self.questions(at), self.answerable)
        per_seed = [
            {
                "seed": system.about.seed,
                "exact": 100.0 * float(exact.mean()),
                "f1": 100.0 * float(f1.mean()),
                "threshold": self.threshold(system, at),
            }
            for system, (exact, f1) in zip(self.systems, self.each(at), strict=True)
        ]
        return Scores(
            exact=mean["exact"],
            f1=mean["f1"],
            has_f1=mean.get("HasAns_f1", float("nan")),
            no_exact=mean.get("NoAns_exact", float("nan")),
            sd_exact=_sd([record["exact"] for record in per_seed]),
            sd_f1=_sd([record["f1"] for record in per_seed]),
            per_seed=per_seed,
        )

    @property
    def tuned(self) -> bool:
        """Whether every seed has a threshold tuned on the held-out part."""
        return all(system.tuned for system in self.systems)

    @cached_property
    def holdout_f1(self) -> float | None:
        """What systems are chosen by: F1 in percent on the held-out part at the threshold tuned there, mean over seeds.

        Questions are weighted so that half of them are unanswerable, as in dev.
        """
        known = self.holdout_answerable
        values = [
            weighted_f1(system.holdout, known, system.threshold)
            for system in self.systems
            if system.holdout is not None and known is not None
        ]
        return float(np.mean(values)) if values else None


@dataclass(frozen=True)
class LabelGroup(_Seeds[LabelSystem]):
    """All seeds of a system that answers whether there is an answer; "no answer" is the positive class."""

    @property
    def each(self) -> list[NDArray[np.bool_]]:
        """(E,) where each seed is right."""
        return [system.dev.at(0.5, ~self.answerable) for system in self.systems]

    @property
    def questions(self) -> NDArray[np.float64]:
        """(E,) share of the seeds that are right."""
        return np.stack(self.each).mean(axis=0, dtype=np.float64)

    @property
    def per_seed(self) -> list[dict[str, Any]]:
        """seed, accuracy and F1 of each, percent."""
        none, found = ~self.answerable, []
        for system, right in zip(self.systems, self.each, strict=True):
            said = system.dev.says()
            f1 = 2.0 * float((said & none).sum()) / max(int(said.sum()) + int(none.sum()), 1)
            found.append(
                {"seed": system.about.seed, "accuracy": 100.0 * float(right.mean()), "f1": 100.0 * f1}
            )
        return found

    @property
    def accuracy(self) -> float:
        return float(np.mean([record["accuracy"] for record in self.per_seed]))

    @property
    def f1(self) -> float:
        return float(np.mean([record["f1"] for record in self.per_seed]))

    @property
    def sd(self) -> float | None:
        """Of the accuracy over the seeds."""
        return _sd([record["accuracy"] for record in self.per_seed])

    @property
    def sd_f1(self) -> float | None:
        return _sd([record["f1"] for record in self.per_seed])
