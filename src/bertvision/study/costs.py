"""Device time of whole parts of a study, from what its systems cost one by one.

A tuning's snapshots lie on one run: it took what its last one took. Heads of one part share a pass of the encoder, and
the fit_seconds of each hold that pass and the head's own work; the pass is no longer than the cheapest head's seconds,
so n heads together took between sum - (n - 1) * least and sum. Where the study kept the times of whole units
(stages.py) these are used instead; they have loading and scoring in them, and both ends are the same:

    stages: [{"name": part, "seed": 0, "seconds": 512.3, "headline": true}, ...]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertvision.study.about import About
from bertvision.study.picks import family, is_seed_head
from bertvision.study.planned import COST_FAMILIES
from bertvision.study.view import Group, LabelGroup, Study

__all__ = ["PartTime", "headline_seconds", "part_times"]


@dataclass(frozen=True)
class PartTime:
    """What a part of the recipe took with one seed."""

    part: str
    seed: int
    kind: str
    """tuning or heads."""
    systems: int
    low: float | None
    high: float | None
    """Seconds; None where a system of the part was not timed alone."""
    headline: bool
    """Of the part of the study that has a limit: curves, pooling, adapter and control heads, the cost curve."""
    whole: bool = False
    """Measured from its beginning to its end, loading and scoring included."""


def part_times(study: Study, stages: Sequence[Mapping[str, Any]] = ()) -> list[PartTime]:
    """Every part that trained something, with each seed, in the order of the records."""
    found: dict[tuple[str, int, str], list[tuple[About, bool]]] = {}
    for group in (*study.groups.values(), *study.labels.values()):
        for about in (system.about for system in group.systems):
            if about.variant or about.fitted_on or about.kind == "ensemble":
                continue  # answered from what was there
            kind = "tuning" if about.kind == "snapshot" else "heads"
            found.setdefault((about.experiment, about.seed, kind), []).append((about, _headline(group)))
    measured = {(stage["name"], stage["seed"]): float(stage["seconds"]) for stage in stages}
    marked = {(stage["name"], stage["seed"]): bool(stage.get("headline")) for stage in stages}
    times = []
    for (part, seed, kind), entries in found.items():
        abouts = [about for about, _ in entries]
        low, high = _tuned(abouts) if kind == "tuning" else _fitted(abouts)
        if (part, seed) in measured:
            low = high = measured[part, seed]
        headline = marked.get((part, seed), any(flag for _, flag in entries))
        times.append(PartTime(part, seed, kind, len(abouts), low, high, headline, (part, seed) in measured))
    return times


def headline_seconds(
    study: Study, stages: Sequence[Mapping[str, Any]] = ()
) -> tuple[int, float, float] | None:
    """(seed, least, most) seconds of the headline part with the seed that ran most of its systems.

    None where one of its parts was not timed. Other seeds run less of it, and may do so side by side.
    """
    times = [time for time in part_times(study, stages) if time.headline]
    if not times:
        return None
    systems: dict[int, int] = {}
    for time in times:
        systems[time.seed] = systems.get(time.seed, 0) + time.systems
    seed = max(systems, key=lambda s: (systems[s], -s))
    own = [time for time in times if time.seed == seed]
    lows, highs = [t.low for t in own if t.low is not None], [t.high for t in own if t.high is not None]
    return (seed, sum(lows), sum(highs)) if len(lows) == len(own) else None


def _headline(group: Group | LabelGroup) -> bool:
    if isinstance(group, LabelGroup) or group.about.data_fraction != 1:
        return False
    if group.about.kind == "snapshot":
        return family(group).startswith(COST_FAMILIES)
    return group.about.kind == "control" or is_seed_head(group) or group.about.label == "average-pooling"


def _tuned(abouts: Sequence[About]) -> tuple[float, float] | tuple[None, None]:
    """One run a family: as long as its last snapshot."""
    longest: dict[str, float] = {}
    for about in abouts:
        if about.tune_seconds is None or not about.alone:
            return None, None
        run = about.snapshot.rpartition("@")[0]
        longest[run] = max(longest.get(run, 0.0), about.tune_seconds)
    return sum(longest.values()), sum(longest.values())


def _fitted(abouts: Sequence[About]) -> tuple[float, float] | tuple[None, None]:
    """Heads on one snapshot in one pass."""
    passes: dict[tuple[str, float], list[float]] = {}
    for about in abouts:
        if about.fit_seconds is None or not about.alone:
            return None, None
        passes.setdefault((about.snapshot, about.data_fraction), []).append(about.fit_seconds)
    most = sum(map(sum, passes.values()))
    return most - sum((len(own) - 1) * min(own) for own in passes.values()), most
