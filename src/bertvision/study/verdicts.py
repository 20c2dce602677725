"""The goals of the study, each judged from what was measured: met, missed (both perhaps so far), or not measured.

A goal that asks for a size (so many points, so large a share) is met when the measured mean reaches it; one that asks
for a system to be ahead is met when the whole interval lies above zero. Systems are chosen as picks.py says. A verdict
is "so far" while parts of the recipe that the goal stands on have no records (planned.py), or while there are fewer
seeds than the goal asks for: what is missing may turn it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bertvision.report import words
from bertvision.study.contests import (
    against_strongest,
    beyond_contests,
    ensemble_gains,
    paper_contest,
    points,
)
from bertvision.study.costs import headline_seconds
from bertvision.study.picks import WITHIN, Cheapest, cheapest, name, strongest
from bertvision.study.planned import Plan, Progress
from bertvision.study.view import At, Group, Study

__all__ = ["BEYOND", "Goal", "Verdict", "goals_of"]

Verdict = Literal["met", "missed", "met so far", "missed so far", "not measured"]

SHARE = 0.40
"""Of the best full fine-tuning's device time."""
BEYOND = 0.3
ENSEMBLE = 0.6
PAPERS = {"constant@0.3": 4.5, "constant@1": 2.1}
"""EM points of the best seed head over its snapshot, threshold 0."""
MINUTES = 25


@dataclass(frozen=True)
class Goal:
    """One goal and what became of it."""

    name: str
    wanted: str
    measured: str
    verdict: Verdict
    note: str = ""


def goals_of(study: Study, settings: Mapping[str, Any] | None = None) -> list[Goal]:
    """Every goal in the order of the study; `settings` is its recipe, with "stages" as costs.py wants them."""
    plan = Plan.of(settings or {}, study)
    return [
        *(_papers(study, key, size, plan.papers(key)) for key, size in PAPERS.items()),
        _strongest(study, plan.decayed),
        _cost(study, plan.cost),
        _ensembles(study, plan.joins),
        _beyond(study, plan.beyond),
        _time(study, (settings or {}).get("stages") or (), plan.cost),
    ]


def _verdict(met: bool, progress: Progress, seeds: Sequence[int] = (), wanted: int = 0) -> Verdict:
    if progress.whole and len(seeds) >= wanted:
        return "met" if met else "missed"
    return "met so far" if met else "missed so far"


def _notes(progress: Progress, *notes: str) -> str:
    """What stands below a measured value, with the parts that are there where some are not."""
    return "; ".join(filter(None, (progress.told, *notes)))


def _seeds(seeds: Sequence[int], wanted: int) -> str:
    if not seeds:  # an ensemble of seeds against one of them
        return "all seeds joined"
    said = f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'}"
    return said if len(seeds) >= wanted else f"{said} instead of {wanted}"


def _points(study: Study, ours: Group, theirs: Group, at: At, metric: Literal["EM", "F1"] = "F1") -> str:
    size, sure = points(study, ours, theirs, at, "exact" if metric == "EM" else "f1")
    return f"{size} {metric} ({sure})"


def _papers(study: Study, key: str, size: float, progress: Progress) -> Goal:
    title = f"As in the papers: the best seed head over {key}"
    wanted = f"at least +{size:g} EM at threshold 0"
    contest = paper_contest(study, key)
    if contest is None:
        note = _notes(progress, f"{key} or its seed heads are missing")
        return Goal(title, wanted, words.UNKNOWN, "not measured", note)
    ours, theirs, found = contest.ours, contest.theirs, contest.zero
    measured = f"{ours.about.label}: {_points(study, ours, theirs, 'zero', 'EM')}, {_seeds(found.seeds, 3)}"
    note = _notes(progress, f"at the tuned threshold {_points(study, ours, theirs, 'tuned', 'EM')}")
    verdict = _verdict(found.exact.difference >= size, progress, found.seeds, 3)
    return Goal(title, wanted, measured, verdict, note)


def _strongest(study: Study, progress: Progress) -> Goal:
    title = "Against the strongest honest baseline: a head on a decayed snapshot"
    wanted = "ahead in F1 at threshold 0 and at the tuned threshold, five seeds"
    contest = against_strongest(study)
    if contest is None:
        note = _notes(progress, "no decayed snapshot with heads")
        return Goal(title, wanted, words.UNKNOWN, "not measured", note)
    zero, tuned = contest.zero.f1, contest.tuned.f1
    measured = (
        f"{name(contest.ours)} against {contest.theirs.key}: "
        f"{_points(study, contest.ours, contest.theirs, 'zero')} at 0, "
        f"{_points(study, contest.ours, contest.theirs, 'tuned')} tuned, {_seeds(contest.tuned.seeds, 5)}"
    )
    notes = []
    if crossed := [
        at for at, found in (("0", zero), ("the tuned threshold", tuned)) if found.low <= 0 <= found.high
    ]:
        notes.append(f"the interval contains zero at {' and at '.join(crossed)}")
    other = strongest(study, seeds=1)
    if other is not None and other is not contest.theirs:
        found = study.versus(contest.ours, other, "tuned")
        told = f"{_points(study, contest.ours, other, 'tuned')} against it"
        notes.append(f"{other.key}, {_seeds(found.seeds, 5)}, is stronger on the held-out part: {told}")
    verdict = _verdict(zero.low > 0 and tuned.low > 0, progress, contest.tuned.seeds, 5)
    return Goal(title, wanted, measured, verdict, _notes(progress, *notes))


def _cost(study: Study, progress: Progress) -> Goal:
    title = f"Cost: the cheapest way to within {WITHIN:g} F1 of the best full fine-tuning"
    wanted = f"at most {100 * SHARE:.0f} % of its GPU-seconds, from the raw encoder"
    found = cheapest(study)
    if found is None:
        note = _notes(progress, "no full fine-tuning with known seconds")
        return Goal(title, wanted, words.UNKNOWN, "not measured", note)
    other = cheapest(study, "zero")
    note = _notes(progress, f"at threshold 0: {_price(study, other, 'zero')}" if other else "")
    verdict = _verdict(found.share <= SHARE, progress)
    return Goal(title, wanted, _price(study, found, "tuned"), verdict, note)


def _price(study: Study, found: Cheapest, at: At) -> str:
    if found.group is found.best:  # no difference to itself
        took = words.duration(found.best_seconds)
        return f"nothing cheaper with the seeds of {name(found.best)} ({took}), {_seeds(found.best.seeds, 3)}"
    return (
        f"{name(found.group)}: {100 * found.share:.0f} % ({words.duration(found.seconds)} of "
        f"{words.duration(found.best_seconds)}), {_points(study, found.group, found.best, at)} against "
        f"{found.best.key}, {_seeds(found.versus.seeds, 3)}"
    )


def _ensembles(study: Study, progress: Progress) -> Goal:
    title = "Ensembles: one over its best member"
    wanted = f"at least +{ENSEMBLE:g} F1 at the tuned threshold"
    rows = ensemble_gains(study)
    if not rows:
        note = _notes(progress, "no ensemble with its members")
        return Goal(title, wanted, words.UNKNOWN, "not measured", note)
    join, member, found = rows[0]
    gain = _points(study, join, member, "tuned")
    measured = f"{join.about.label} over {member.key}: {gain}, {_seeds(found.seeds, 3)}"
    top = max(rows, key=lambda row: row[2].f1.difference)
    note = (
        "chosen by its gain on the held-out part"
        if join.holdout_f1 is not None
        else "no held-out part to choose it on"
    )
    if top[0] is not join:
        note += (
            f"; the largest gain of all {len(rows)} on dev: {top[0].about.label}, "
            f"{_points(study, top[0], top[1], 'tuned')}"
        )
    verdict = _verdict(found.f1.difference >= ENSEMBLE, progress)
    return Goal(title, wanted, measured, verdict, _notes(progress, note))


def _beyond(study: Study, progress: Progress) -> Goal:
    title = "Beyond: a head over the best seed head on the same snapshot"
    wanted = f"at least +{BEYOND:g} F1 at the tuned threshold, five seeds"
    contests = beyond_contests(study)
    if not contests:
        note = _notes(progress, "no snapshot with heads of both kinds")
        return Goal(title, wanted, words.UNKNOWN, "not measured", note)
    first = contests[0]
    found = first.tuned
    measured = (
        f"{first.ours.about.label} over {first.theirs.about.label} on {first.ours.about.snapshot}: "
        f"{_points(study, first.ours, first.theirs, 'tuned')}, {_seeds(found.seeds, 5)}"
    )
    others = [
        f"{c.ours.about.label} on {c.ours.about.snapshot} {words.change(c.tuned.f1.difference)}"
        for c in contests[1:]
    ]
    note = f"on other snapshots: {', '.join(others)}" if others else ""
    verdict = _verdict(found.f1.difference >= BEYOND, progress, found.seeds, 5)
    return Goal(title, wanted, measured, verdict, _notes(progress, note))


def _time(study: Study, stages: Sequence[Mapping[str, Any]], progress: Progress) -> Goal:
    title = "Time: the headline part (curves, pooling, adapter and control heads, cost curve)"
    wanted = f"at most {MINUTES} GPU-minutes per seed"
    found = headline_seconds(study, stages)
    if found is None:
        note = _notes(progress, "not all of its systems have seconds")
        return Goal(title, wanted, words.UNKNOWN, "not measured", note)
    seed, least, most = found
    limit = 60 * MINUTES
    # What is missing only adds to it: a limit that is broken stays broken.
    verdict: Verdict = "missed" if least > limit else _verdict(met=True, progress=progress)
    if least == most:
        measured = f"{words.duration(most)} with seed {seed}, which ran most of it"
        return Goal(title, wanted, measured, verdict, _notes(progress))
    measured = (
        f"between {words.duration(least)} and {words.duration(most)} with seed {seed}, which ran most of it"
    )
    note = "heads fitted together share a pass of the encoder whose length is not known apart"
    open_ = least <= limit < most
    return Goal(title, wanted, measured, "not measured" if open_ else verdict, _notes(progress, note))
