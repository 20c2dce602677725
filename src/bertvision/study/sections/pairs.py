"""Head against snapshot: which of them the analyses look at.

The snapshots of the papers, after 0.3 and 1 epoch at constant rate, and the strongest tuning with a decayed rate that
has heads; on each the head that is best on the held-out part of train at the threshold tuned there, among those that
have as many seeds as the snapshot where there are such.
"""

from dataclasses import dataclass

from bertvision.study.picks import chosen, strongest
from bertvision.study.view import Group, Study

__all__ = ["Pairing", "pairings"]

_PAPERS = ("constant@0.3", "constant@1")


@dataclass(frozen=True)
class Pairing:
    """A head and the snapshot it was fitted on."""

    head: Group
    snapshot: Group

    @property
    def seeds(self) -> list[int]:
        """Those both have."""
        return self.head.common(self.snapshot)

    @property
    def label(self) -> str:
        return f"{self.head.about.label} on {self.snapshot.key}"


def _heads(study: Study, snapshot: Group) -> list[Group]:
    return [group for group in study.below(snapshot.key) if group.about.kind == "head"]


def pairings(study: Study) -> list[Pairing]:
    """Those that were measured; a head and a snapshot without a seed in common are left out."""
    found = []
    for snapshot in (*map(study.get, _PAPERS), strongest(study, with_heads=True)):
        head = chosen(_heads(study, snapshot), len(snapshot.seeds)) if snapshot else None
        if snapshot and head and set(head.seeds) & set(snapshot.seeds):
            found.append(Pairing(head, snapshot))
    return found
