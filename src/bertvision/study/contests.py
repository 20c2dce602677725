"""Two systems of one claim, side by side: who is compared with whom, at the two thresholds that claims use.

Both sides are chosen on the held-out part of train, over the seeds that all candidates have (picks.py); only the best
member of an ensemble is the best on dev, which can only be harder on the ensemble.
"""

from dataclasses import dataclass
from typing import Literal

from bertvision.report import words
from bertvision.study.picks import (
    best_member,
    chosen,
    holdout_f1,
    is_beyond,
    is_seed_head,
    shared_seeds,
    strongest,
)
from bertvision.study.view import At, Group, Study, Versus

__all__ = [
    "Contest",
    "Metric",
    "against_strongest",
    "beyond_contests",
    "ensemble_gains",
    "paper_contest",
    "points",
    "seed_changes",
]

Metric = Literal["exact", "f1"]


def seed_changes(ours: Group, theirs: Group, at: At, metric: Metric = "f1") -> list[float]:
    """Points that one is ahead by with each seed both have."""
    which = 0 if metric == "exact" else 1
    pairs = [
        (ours.questions(at, [seed])[which], theirs.questions(at, [seed])[which])
        for seed in ours.common(theirs)
    ]
    return [100.0 * float((first - second).mean()) for first, second in pairs]


def points(study: Study, ours: Group, theirs: Group, at: At, metric: Metric = "f1") -> tuple[str, str]:
    """A difference in words, "+8.4", and how sure it is: "+7.8 … +9.0; seeds +6.4, +10.4".

    The interval is over questions alone; what another seed may bring stands beside it, where there are several.
    """
    found = getattr(study.versus(ours, theirs, at), metric)
    each = seed_changes(ours, theirs, at, metric)
    sure = words.interval(found.low, found.high)
    if len(each) > 1:
        sure += f"; seeds {', '.join(words.change(one) for one in each)}"
    return words.change(found.difference), sure


@dataclass(frozen=True)
class Contest:
    """Two systems of one claim, at the two thresholds that claims use."""

    ours: Group
    theirs: Group
    zero: Versus
    tuned: Versus

    @classmethod
    def of(cls, study: Study, ours: Group, theirs: Group) -> "Contest":
        return cls(ours, theirs, study.versus(ours, theirs, "zero"), study.versus(ours, theirs, "tuned"))


def paper_contest(study: Study, key: str) -> Contest | None:
    """The best seed head on a snapshot, chosen on the held-out part, against that snapshot."""
    snapshot = study.get(key)
    head = chosen((g for g in study.below(key) if is_seed_head(g)), seeds=3)
    return Contest.of(study, head, snapshot) if head and snapshot else None


def against_strongest(study: Study) -> Contest | None:
    """The best head on a decayed snapshot against the strongest such snapshot, both chosen on the held-out part."""
    baseline = strongest(study)
    heads = [
        g for g in study.groups.values()
        if g.about.kind == "head" and g.about.snapshot.startswith("decayed-") and g.about.data_fraction == 1
        and not g.about.variant and not g.about.fitted_on
    ]  # fmt: skip
    head = chosen(heads, seeds=5)
    return Contest.of(study, head, baseline) if head and baseline else None


def beyond_contests(study: Study) -> list[Contest]:
    """On every snapshot that has both: the best head beyond the papers against the best seed head.

    First the one a claim is made of: with the most seeds, then with the best seed head on the held-out part, over the
    seeds that these have in common.
    """
    found = []
    for key in dict.fromkeys(g.about.snapshot for g in study.groups.values()):
        heads = study.below(key)
        ours = chosen((g for g in heads if is_beyond(g)), seeds=5)
        theirs = chosen((g for g in heads if is_seed_head(g)), seeds=5)
        if ours and theirs:
            found.append(Contest.of(study, ours, theirs))
    same = shared_seeds(c.theirs for c in found)
    return sorted(found, key=lambda c: (len(c.tuned.seeds), holdout_f1(c.theirs, same) or 0.0), reverse=True)


def ensemble_gains(study: Study, at: At = "tuned") -> list[tuple[Group, Group, Versus]]:
    """(ensemble, its best member on dev, the difference), the largest gain on the held-out part first."""
    found = []
    for join in (g for g in study.groups.values() if g.about.kind == "ensemble" and not g.about.variant):
        best = best_member(study, join, at)
        if best is not None:
            found.append((join, best, study.versus(join, best, at)))
    return sorted(found, key=lambda row: _held_gain(row[0], row[1]), reverse=True)


def _held_gain(join: Group, member: Group) -> float:
    """F1 of an ensemble over its member on the held-out part; one that is not known comes last."""
    common = join.common(member) or None
    first, second = holdout_f1(join, common), holdout_f1(member, common)
    return float("-inf") if first is None or second is None else first - second
