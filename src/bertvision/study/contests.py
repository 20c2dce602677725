"""Two systems of one claim, side by side: who is compared with whom, at the two thresholds that claims use.

Both sides are chosen on the held-out part of train (picks.py); only the best member of an ensemble is the best on dev,
which can only be harder on the ensemble.
"""

from dataclasses import dataclass

from bertvision.study.picks import best_member, chosen, is_beyond, is_seed_head, strongest
from bertvision.study.view import At, Group, Study, Versus

__all__ = ["Contest", "against_strongest", "beyond_contests", "ensemble_gains", "paper_contest"]


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

    First the one a claim is made of: with the most seeds, then with the best seed head on the held-out part.
    """
    found = []
    for key in dict.fromkeys(g.about.snapshot for g in study.groups.values()):
        heads = study.below(key)
        ours = chosen((g for g in heads if is_beyond(g)), seeds=5)
        theirs = chosen((g for g in heads if is_seed_head(g)), seeds=5)
        if ours and theirs:
            found.append(Contest.of(study, ours, theirs))
    return sorted(found, key=lambda c: (len(c.tuned.seeds), c.theirs.holdout_f1 or 0.0), reverse=True)


def ensemble_gains(study: Study, at: At = "tuned") -> list[tuple[Group, Group, Versus]]:
    """(ensemble, its best member on dev, the difference), the ensemble chosen on the held-out part first."""
    found = []
    for join in (g for g in study.groups.values() if g.about.kind == "ensemble" and not g.about.variant):
        best = best_member(study, join, at)
        if best is not None:
            found.append((join, best, study.versus(join, best, at)))
    return sorted(found, key=lambda row: row[0].holdout_f1 or 0.0, reverse=True)
