"""The goals of the study, each judged from what was measured: met, missed, or not measured.

A goal that asks for a size (so many points, so large a share) is met when the measured mean reaches it; one that asks
for a system to be ahead is met when the whole interval lies above zero. Systems are chosen as picks.py says, on the
held-out part of train; seeds that are fewer than a goal asks for are told beside the verdict and do not change it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bertvision.report import words
from bertvision.study.contests import against_strongest, beyond_contests, ensemble_gains, paper_contest
from bertvision.study.costs import headline_seconds
from bertvision.study.picks import WITHIN, Cheapest, cheapest, name, strongest
from bertvision.study.view import Study

__all__ = ["BEYOND", "Goal", "Verdict", "goals_of"]

Verdict = Literal["met", "missed", "not measured"]

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


def goals_of(study: Study, stages: Sequence[Mapping[str, Any]] = ()) -> list[Goal]:
    """Every goal in the order of the study; `stages` as costs.headline_seconds wants them."""
    return [
        *(_papers(study, key, points) for key, points in PAPERS.items()),
        _strongest(study),
        _cost(study),
        _ensembles(study),
        _beyond(study),
        _time(study, stages),
    ]


def _verdict(met: bool) -> Verdict:
    return "met" if met else "missed"


def _seeds(seeds: Sequence[int], wanted: int) -> str:
    if not seeds:  # an ensemble of seeds against one of them
        return "all seeds joined"
    said = f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'}"
    return said if len(seeds) >= wanted else f"{said} instead of {wanted}"


def _points(found: Any, metric: str) -> str:
    return f"{words.change(found.difference)} {metric} ({words.interval(found.low, found.high)})"


def _papers(study: Study, key: str, points: float) -> Goal:
    title = f"As in the papers: the best seed head over {key}"
    wanted = f"at least +{points:g} EM at threshold 0"
    contest = paper_contest(study, key)
    if contest is None:
        return Goal(title, wanted, words.UNKNOWN, "not measured", f"{key} or its seed heads are missing")
    found = contest.zero
    measured = f"{contest.ours.about.label}: {_points(found.exact, 'EM')}, {_seeds(found.seeds, 3)}"
    note = f"at the tuned threshold {_points(contest.tuned.exact, 'EM')}"
    return Goal(title, wanted, measured, _verdict(found.exact.difference >= points), note)


def _strongest(study: Study) -> Goal:
    title = "Against the strongest honest baseline: a head on a decayed snapshot"
    wanted = "ahead in F1 at threshold 0 and at the tuned threshold, five seeds"
    contest = against_strongest(study)
    if contest is None:
        return Goal(title, wanted, words.UNKNOWN, "not measured", "no decayed snapshot with heads")
    zero, tuned = contest.zero.f1, contest.tuned.f1
    measured = (
        f"{name(contest.ours)} against {contest.theirs.key}: {_points(zero, 'F1')} at 0, "
        f"{_points(tuned, 'F1')} tuned, {_seeds(contest.tuned.seeds, 5)}"
    )
    notes = []
    if crossed := [
        at for at, found in (("0", zero), ("the tuned threshold", tuned)) if found.low <= 0 <= found.high
    ]:
        notes.append(f"the interval contains zero at {' and at '.join(crossed)}")
    other = strongest(study, seeds=1)
    if other is not None and other is not contest.theirs:
        found = study.versus(contest.ours, other, "tuned")
        told = f"{_points(found.f1, 'F1')} against it"
        notes.append(f"{other.key}, {_seeds(found.seeds, 5)}, is stronger on the held-out part: {told}")
    note = "; ".join(notes)
    return Goal(title, wanted, measured, _verdict(zero.low > 0 and tuned.low > 0), note)


def _cost(study: Study) -> Goal:
    title = f"Cost: the cheapest way to within {WITHIN:g} F1 of the best full fine-tuning"
    wanted = f"at most {100 * SHARE:.0f} % of its GPU-seconds, from the raw encoder"
    found = cheapest(study)
    if found is None:
        return Goal(title, wanted, words.UNKNOWN, "not measured", "no full fine-tuning with known seconds")
    other = cheapest(study, "zero")
    note = f"at threshold 0: {_price(other)}" if other else ""
    return Goal(title, wanted, _price(found), _verdict(found.share <= SHARE), note)


def _price(found: Cheapest) -> str:
    return (
        f"{name(found.group)}: {100 * found.share:.0f} % ({words.duration(found.seconds)} of "
        f"{words.duration(found.best_seconds)}), {_points(found.versus.f1, 'F1')} against {found.best.key}, "
        f"{_seeds(found.versus.seeds, 3)}"
    )


def _ensembles(study: Study) -> Goal:
    title = "Ensembles: one over its best member"
    wanted = f"at least +{ENSEMBLE:g} F1 at the tuned threshold"
    rows = ensemble_gains(study)
    if not rows:
        return Goal(title, wanted, words.UNKNOWN, "not measured", "no ensemble with its members")
    join, member, found = rows[0]
    measured = f"{join.about.label} over {member.key}: {_points(found.f1, 'F1')}, {_seeds(found.seeds, 3)}"
    top = max(rows, key=lambda row: row[2].f1.difference)
    note = (
        "chosen on the held-out part" if join.holdout_f1 is not None else "no held-out part to choose it on"
    )
    if top[0] is not join:
        note += (
            f"; the largest gain of all {len(rows)} on dev: {top[0].about.label}, {_points(top[2].f1, 'F1')}"
        )
    return Goal(title, wanted, measured, _verdict(found.f1.difference >= ENSEMBLE), note)


def _beyond(study: Study) -> Goal:
    title = "Beyond: a head over the best seed head on the same snapshot"
    wanted = f"at least +{BEYOND:g} F1 at the tuned threshold, five seeds"
    contests = beyond_contests(study)
    if not contests:
        return Goal(title, wanted, words.UNKNOWN, "not measured", "no snapshot with heads of both kinds")
    first = contests[0]
    found = first.tuned
    measured = (
        f"{first.ours.about.label} over {first.theirs.about.label} on {first.ours.about.snapshot}: "
        f"{_points(found.f1, 'F1')}, {_seeds(found.seeds, 5)}"
    )
    others = [
        f"{c.ours.about.label} on {c.ours.about.snapshot} {words.change(c.tuned.f1.difference)}"
        for c in contests[1:]
    ]
    note = f"on other snapshots: {', '.join(others)}" if others else ""
    return Goal(title, wanted, measured, _verdict(found.f1.difference >= BEYOND), note)


def _time(study: Study, stages: Sequence[Mapping[str, Any]]) -> Goal:
    title = "Time: the headline part (curves, pooling, adapter and control heads, cost curve)"
    wanted = f"at most {MINUTES} GPU-minutes per seed"
    found = headline_seconds(study, stages)
    if found is None:
        return Goal(title, wanted, words.UNKNOWN, "not measured", "not all of its systems have seconds")
    seed, least, most = found
    if least == most:
        return Goal(
            title,
            wanted,
            f"{words.duration(most)} with seed {seed}, which ran most of it",
            _verdict(most <= 60 * MINUTES),
        )
    measured = (
        f"between {words.duration(least)} and {words.duration(most)} with seed {seed}, which ran most of it"
    )
    note = "heads fitted together share a pass of the encoder whose length is not known apart"
    open_ = least <= 60 * MINUTES < most
    return Goal(title, wanted, measured, "not measured" if open_ else _verdict(most <= 60 * MINUTES), note)
