"""A study as the sections of its report see it: systems by key, means over seeds, paired differences.

    Study.load(folder, dev, holdout)        reads folder/records/*/about.json and the answers beside it
    study.get("constant@1/adapter-386")     all seeds of a system: a Group (groups.py)
    group.scores("tuned"), study.versus(ours, theirs, "tuned")

Which systems stand for a claim is chosen in picks.py, on the held-out part; what is chosen on dev is said there.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import read_json
from bertvision.data.examples import SpanData
from bertvision.errors import ArtifactError
from bertvision.study.about import About
from bertvision.study.groups import At, Group, LabelGroup, LabelSystem, Scores, System
from bertvision.study.records import LabelRecord, SpanRecord, answerable_of, half_unanswerable_threshold
from bertvision.study.resample import paired_all
from bertvision.tasks.span.compare import Difference, mcnemar

__all__ = ["At", "Group", "LabelGroup", "LabelSystem", "Scores", "Study", "System", "Versus"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Versus:
    """One system minus another on the seeds both have."""

    exact: Difference
    f1: Difference
    p: float
    """McNemar's test on the exact matches of the first of these seeds."""
    seeds: list[int]
    """Empty: they share none, and all seeds of each were taken."""


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
        """Read every record of a study's folder that is whole."""
        found = sorted(path for path in (folder / "records").glob("*") if path.is_dir())
        places = [place for place in found if _is_whole(place)]
        if halves := [place.name for place in found if place not in places]:
            logger.warning(
                "%d records are not whole and left out (%s ...): the command that made them completes them",
                len(halves), halves[0],
            )  # fmt: skip
        if not places:
            raise ArtifactError(f"{folder} holds no records: give the folder that `bertvision study` wrote")
        held = None if holdout is None else answerable_of(holdout)
        return cls.of(dev, holdout, (_read(place, dev, holdout, held) for place in places))

    @property
    def silence(self) -> float:
        """What saying no answer to every question of dev scores, percent."""
        return 100.0 * float((~self.answerable).mean())

    def get(self, key: str) -> Group | None:
        return self.groups.get(key)

    def below(self, snapshot_key: str) -> list[Group]:
        """Heads and controls fitted on a snapshot, on all training data."""
        return [
            group
            for group in self.groups.values()
            if _reads(group.about, snapshot_key) and group.about.data_fraction == 1
        ]

    def labels_below(self, snapshot: str) -> list[LabelGroup]:
        """The same of answer / no answer, on whatever part of the data; of several parts the largest."""
        found: dict[str, LabelGroup] = {}
        for group in sorted(self.labels.values(), key=lambda group: group.about.data_fraction):
            if _reads(group.about, snapshot):
                found[group.about.label] = group
        return sorted(found.values(), key=lambda group: group.about.label)

    def versus(self, ours: Group, theirs: Group, at: At) -> Versus:
        """Paired differences, ours minus theirs, of the means over the seeds both have."""
        place = (ours.key, theirs.key, at)
        if place not in self._cache:
            seeds = ours.common(theirs)
            kept = seeds or None
            first, second = ours.questions(at, kept), theirs.questions(at, kept)
            one, other = (group.questions(at, seeds[:1] or group.seeds[:1])[0] for group in (ours, theirs))
            exact, f1 = paired_all([(first[0], second[0]), (first[1], second[1])])
            self._cache[place] = Versus(exact, f1, mcnemar(one, other), seeds)
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


def _reads(about: About, snapshot: str) -> bool:
    """Whether it was fitted on the snapshot's states and answers from them in the usual way."""
    usual = not about.fitted_on and not about.variant
    return usual and about.kind in ("head", "control") and about.snapshot == snapshot


def _is_whole(place: Path) -> bool:
    """A kill, or a copy that was broken off, may have left less."""
    return all((place / name).exists() for name in ("about.json", "dev.safetensors"))


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
