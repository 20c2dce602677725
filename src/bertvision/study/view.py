"""A study as the sections of its report see it: systems by key, means over seeds, paired differences.

    Study.load(folder, dev, holdout)        reads folder/records/*/about.json and the answers beside it
    study.get("constant@1/adapter-386")     all seeds of a system: a Group
    group.scores("tuned"), study.versus(ours, theirs, "tuned")

`at` names the threshold for no answer: "zero"; "tuned" on a held-out part of the training data, re-weighted to as many
unanswerable questions as dev has; "oracle", the best on dev itself, which only shows how much a threshold could give.
Systems are chosen by `Group.holdout_f1`, never by dev.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import read_json
from bertvision.data.examples import SpanData
from bertvision.errors import ArtifactError
from bertvision.study.about import About
from bertvision.study.records import (
    LabelRecord,
    SpanRecord,
    answerable_of,
    half_unanswerable_threshold,
    oracle_threshold,
    weighted_f1,
)
from bertvision.tasks.span.compare import Difference, mcnemar, paired_bootstrap
from bertvision.tasks.span.score import summary

__all__ = ["At", "Group", "LabelGroup", "LabelSystem", "Scores", "Study", "System", "Versus"]

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


@dataclass(frozen=True)
class Versus:
    """One system minus another on the seeds both have."""

    exact: Difference
    f1: Difference
    p: float
    """McNemar's test on the exact matches of the first of these seeds."""
    seeds: list[int]
    """Empty: they share none, and all seeds of each were taken."""


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


@dataclass(frozen=True)
class Study:
    """Every system of a study."""

    dev: SpanData
    holdout: SpanData | None
    answerable: NDArray[np.bool_]
    """(Q,) which questions of dev have an answer."""
    groups: dict[str, Group]
    """By key, in the order of the records; systems that answer with spans."""
    labels: dict[str, LabelGroup]
    """The same of answer / no answer."""
    _cache: dict[tuple[str, str, str], Versus] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, dev: SpanData, holdout: SpanData | None, systems: Iterable[System | LabelSystem]) -> "Study":
        """Put systems of one key together; of a key and seed that occur twice the first one answers."""
        answerable = answerable_of(dev)
        held = None if holdout is None else answerable_of(holdout)
        groups: dict[str, Group] = {}
        labels: dict[str, LabelGroup] = {}
        for system in systems:
            key, seed = system.about.key, system.about.seed
            if isinstance(system, System):
                group = groups.setdefault(key, Group(key, [], answerable, holdout_answerable=held))
                (group.repeats if seed in group.seeds else group.systems).append(system)
            else:
                group = labels.setdefault(key, LabelGroup(key, [], answerable))
                (group.repeats if seed in group.seeds else group.systems).append(system)
        for group in (*groups.values(), *labels.values()):
            group.systems.sort(key=lambda system: system.about.seed)
        return cls(dev, holdout, answerable, groups, labels)

    @classmethod
    def load(cls, folder: Path, dev: SpanData, holdout: SpanData | None) -> "Study":
        """Read every record of a study's folder."""
        places = sorted(path.parent for path in (folder / "records").glob("*/about.json"))
        if not places:
            raise ArtifactError(f"{folder} holds no records: give the folder that `bertvision study` wrote")
        held = None if holdout is None else answerable_of(holdout)
        return cls.of(dev, holdout, (_read(place, dev, holdout, held) for place in places))

    def get(self, key: str) -> Group | None:
        return self.groups.get(key)

    def below(self, snapshot_key: str) -> list[Group]:
        """Heads and controls fitted on a snapshot, on all training data."""
        return [group for group in self.groups.values() if _is_below(group.about, snapshot_key)]

    def labels_below(self, snapshot_key: str) -> list[LabelGroup]:
        """The same of answer / no answer; the key with or without its task in front."""
        name = snapshot_key.removeprefix("answerable:")
        return [group for group in self.labels.values() if _is_below(group.about, name)]

    def best_head(self, snapshot_key: str) -> Group | None:
        """The head (no control) with the best F1 on the held-out part; None where no head has answers to it."""
        return _best(group for group in self.below(snapshot_key) if group.about.kind == "head")

    def best_snapshot(self, family: str = "") -> Group | None:
        """The snapshot with the best F1 on the held-out part among those whose family begins so."""
        return _best(
            group
            for group in self.groups.values()
            if group.about.kind == "snapshot"
            and not group.about.variant
            and group.about.snapshot.startswith(family)
        )

    def versus(self, ours: Group, theirs: Group, at: At) -> Versus:
        """Paired differences, ours minus theirs, of the means over the seeds both have."""
        place = (ours.key, theirs.key, at)
        if place not in self._cache:
            seeds = [seed for seed in ours.seeds if seed in theirs.seeds]
            kept = seeds or None
            first, second = ours.questions(at, kept), theirs.questions(at, kept)
            one, other = (group.questions(at, seeds[:1] or group.seeds[:1])[0] for group in (ours, theirs))
            self._cache[place] = Versus(
                paired_bootstrap(first[0], second[0]),
                paired_bootstrap(first[1], second[1]),
                mcnemar(one, other),
                seeds,
            )
        return self._cache[place]

    def _abouts(self) -> list[About]:
        """Of all systems, in the order of their folders."""
        systems: list[System | LabelSystem] = []
        for group in self.groups.values():
            systems += [*group.systems, *group.repeats]
        for group in self.labels.values():
            systems += [*group.systems, *group.repeats]
        return [system.about for system in sorted(systems, key=lambda system: system.number)]

    @property
    def environments(self) -> list[dict[str, Any]]:
        """What the systems were made with: each different one once."""
        found: list[dict[str, Any]] = []
        for about in self._abouts():
            if about.environment and about.environment not in found:
                found.append(about.environment)
        return found

    @property
    def environment(self) -> dict[str, Any]:
        """What the first system was made with."""
        return next(iter(self.environments), {})

    @property
    def commands(self) -> list[str]:
        """What was run: each command once, in order."""
        return list(dict.fromkeys(about.command for about in self._abouts() if about.command))


def _is_below(about: About, snapshot: str) -> bool:
    return (
        about.kind in ("head", "control")
        and about.snapshot == snapshot
        and about.data_fraction == 1
        and not about.fitted_on
        and not about.variant
    )


def _best(groups: Iterable[Group]) -> Group | None:
    known = [(value, group) for group in groups if (value := group.holdout_f1) is not None]
    return max(known, key=lambda entry: entry[0])[1] if known else None


def _read(
    place: Path, dev: SpanData, holdout: SpanData | None, held: NDArray[np.bool_] | None
) -> System | LabelSystem:
    """One folder of records/."""
    about = About.read(read_json(place / "about.json"), str(place / "about.json"))
    if about.task == "answerable":
        return LabelSystem(about, LabelRecord.load(place / "dev.safetensors", dev.fingerprint), place.name)
    record = SpanRecord.load(place / "dev.safetensors", dev.fingerprint)
    beside = place / "holdout.safetensors"
    if holdout is None or held is None or not beside.exists():
        return System(about, record, None, place.name)
    kept = SpanRecord.load(beside, holdout.fingerprint)
    return System(about, record, kept, place.name, half_unanswerable_threshold(kept, held))
