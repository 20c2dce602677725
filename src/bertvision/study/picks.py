"""Which systems of a study stand for a claim, chosen by rules that were fixed before it was run.

best full fine-tuning   the snapshot of a full tuning (families constant and decayed-*) with the highest F1 on dev,
                        over the seeds that all of them have: choosing it there raises the bar for everybody else
seed head               a head of BERTVision's rows 4 and 7 to 16 (pooling and adapters)
head beyond             a head that is neither a row of a paper nor a control
chosen                  of several systems the one with the highest F1 on the held-out part of train, at the
                        threshold tuned there, over the seeds that all of them have (seeds differ by more than
                        systems do); those with as many seeds as asked for come first
within reach            a paired difference to the best full fine-tuning, over the seeds both have, of at most 0.3 F1;
                        the cheapest is sought among systems with all seeds of the best: of many systems with one
                        seed some are near by luck
seconds                 device time from the raw encoder to the system, snapshot included, mean over seeds
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import fmean

from bertvision.heads.catalogue import CATALOGUE
from bertvision.heads.spec import TrainOverrides, parse_head
from bertvision.study.records import weighted_f1
from bertvision.study.view import At, Group, LabelGroup, Study, Versus

__all__ = [
    "WITHIN",
    "Cheapest",
    "best_full",
    "best_member",
    "cheapest",
    "chosen",
    "epochs",
    "family",
    "gap",
    "has_seeds_of",
    "holdout_f1",
    "is_beyond",
    "is_beyond_label",
    "is_full",
    "is_seed_head",
    "members",
    "name",
    "plain_systems",
    "priced",
    "seconds",
    "seed_list",
    "shared_seeds",
    "strongest",
    "with_seeds",
    "within_reach",
]

WITHIN = 0.3
"""F1 points below the best full fine-tuning that still count as level with it."""

_NOT_BEYOND = ("last-state", "cnn", "inception", "xception", "cacnn")
"""Controls, and networks of the papers in whatever shape."""
_TRAINING = re.compile(
    rf"-(?:{'|'.join(field.name for field in fields(TrainOverrides))})=(?:[\d.]+(?:e[-+]?\d+)?|[a-z]+)"
)


def _labels(sections: tuple[str, ...]) -> frozenset[str]:
    rows = (row for row in CATALOGUE if row.task == "span" and row.seed.startswith(sections))
    return frozenset(parse_head(row.head).label for row in rows)


_SEED_HEADS = _labels(("3.2",))
_PAPERS = _labels(("3.", "6.", "8"))


def family(group: Group | LabelGroup) -> str:
    """constant of constant@0.3; of a head that of its snapshot."""
    return group.about.snapshot.rpartition("@")[0] or group.about.snapshot


def epochs(group: Group) -> float | None:
    """0.3 of constant@0.3; None for the encoder as it came."""
    text = group.about.snapshot.rpartition("@")[2]
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def is_full(group: Group) -> bool:
    """A snapshot of a full tuning on all data."""
    about = group.about
    known = family(group) == "constant" or family(group).startswith("decayed-")
    whole = about.data_fraction == 1 and not about.variant and about.policy in ("", "full")
    return about.kind == "snapshot" and known and whole


def is_seed_head(group: Group) -> bool:
    """Whether it is one of the papers' pooling and adapter rows; its training settings do not count."""
    return group.about.kind == "head" and _TRAINING.sub("", group.about.label) in _SEED_HEADS


def is_beyond(group: Group) -> bool:
    """Whether it is neither of a paper nor a control."""
    return group.about.kind == "head" and is_beyond_label(group.about.label)


def is_beyond_label(label: str) -> bool:
    """The same of a head's name alone."""
    plain = _TRAINING.sub("", label)
    return plain not in _PAPERS and not plain.startswith(_NOT_BEYOND)


def plain_systems(study: Study) -> list[Group]:
    """Everything that answers in the usual way on the states it was made for."""
    return [g for g in study.groups.values() if not g.about.variant and not g.about.fitted_on]


def shared_seeds(groups: Iterable[Group]) -> list[int]:
    """The seeds that all of them have; where there are none, the one that the most of them have."""
    given = list(groups)
    counts = Counter(seed for group in given for seed in group.seeds)
    same = sorted(seed for seed, count in counts.items() if count == len(given))
    return same or sorted(counts, key=lambda seed: (-counts[seed], seed))[:1]


def seed_list(seeds: Sequence[int]) -> str:
    """ "seed 0" or "seeds 0, 1, 2"."""
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"


def holdout_f1(group: Group, seeds: Sequence[int] | None = None) -> float | None:
    """F1 in percent on the held-out part at the threshold tuned there, mean over these seeds (or all it has).

    None unless it has them all, each with answers to the held-out part.
    """
    kept = [one for one in group.systems if seeds is None or one.about.seed in seeds]
    known = group.holdout_answerable
    if known is None or not kept or (seeds is not None and len(kept) < len(seeds)):
        return None
    values = [weighted_f1(one.holdout, known, one.threshold) for one in kept if one.holdout is not None]
    return fmean(values) if len(values) == len(kept) else None


def chosen(groups: Iterable[Group], seeds: int = 1) -> Group | None:
    """The best on the held-out part over shared seeds; among those with so many seeds, or as near to it as any has."""
    known = [group for group in groups if holdout_f1(group) is not None]
    most = min(seeds, max((len(group.seeds) for group in known), default=0))
    pool = [group for group in known if len(group.seeds) >= most]
    # Where no seed is shared by all, some have none of those that most have: they cannot be compared.
    same = shared_seeds(pool)
    ranked = [(found, group) for group in pool if (found := holdout_f1(group, same)) is not None]
    if not ranked:
        ranked = [(holdout_f1(group) or 0.0, group) for group in pool]
    return max(ranked, key=lambda pair: pair[0], default=(0.0, None))[1]


def best_full(study: Study, at: At = "tuned") -> Group | None:
    """The best full fine-tuning that was measured, on dev."""
    full = [g for g in study.groups.values() if is_full(g)]
    same = shared_seeds(full)
    able = [g for g in full if set(same) <= set(g.seeds)] or full
    return max(
        able,
        key=lambda g: float(g.questions(at, [s for s in same if s in g.seeds] or None)[1].mean()),
        default=None,
    )


def strongest(study: Study, seeds: int = 5, *, with_heads: bool = False) -> Group | None:
    """The strongest baseline: the full fine-tuning with decayed rate that is best on the held-out part.

    Of those with so many seeds, where there are any; else of all, for a baseline must not be weak for want of seeds.
    """
    decayed = [g for g in study.groups.values() if is_full(g) and family(g).startswith("decayed-")]
    if with_heads:
        decayed = [g for g in decayed if any(head.about.kind == "head" for head in study.below(g.key))]
    return chosen(decayed, seeds if any(len(g.seeds) >= seeds for g in decayed) else 1)


def members(study: Study, join: Group) -> list[Group]:
    """What an ensemble joins, each once; those that are not in the study are left out.

    One that joins seeds names each ("KEY seed 3"), and its members are groups of that one seed.
    """
    found = []
    for member in dict.fromkeys(join.about.members):
        key, _, seed = member.partition(" seed ")
        group = study.get(key)
        if group is None:
            continue
        if not seed:
            found.append(group)
        elif int(seed) in group.seeds:
            found.append(with_seeds(group, [int(seed)]))
    return found


def best_member(study: Study, join: Group, at: At = "tuned") -> Group | None:
    """The member with the highest F1 on dev, over the seeds it shares with the ensemble.

    Taken on dev, it can only be harder on the ensemble than one that is chosen on the held-out part.
    """

    def f1(member: Group) -> float:
        return float(member.questions(at, member.common(join) or None)[1].mean())

    return max(members(study, join), key=f1, default=None)


def with_seeds(group: Group, seeds: Sequence[int]) -> Group:
    """Some of its seeds alone: "KEY seed 3"; the group itself where these are all it has."""
    kept = [system for system in group.systems if system.about.seed in seeds]
    if len(kept) == len(group.systems):
        return group
    told = "seed" if len(kept) == 1 else "seeds"
    key = f"{group.key} {told} {', '.join(str(system.about.seed) for system in kept)}"
    return replace(group, key=key, systems=kept, _cache={})


def seconds(study: Study, group: Group) -> float | None:
    """Mean device time from the raw encoder; None where it was not measured alone."""
    own = [s.about.seconds for s in group.systems if s.about.alone and s.about.seconds is not None]
    if own:
        return fmean(own)
    if group.about.kind not in ("head", "control"):
        return None
    # The tuning may have been timed with another seed than the fit.
    snapshot = study.get(group.about.snapshot)
    parts = (snapshot.mean("tune_seconds") if snapshot else None, group.mean("fit_seconds"))
    return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]


def priced(study: Study) -> list[tuple[Group, float]]:
    """Every system whose seconds are known, with them, cheapest first."""
    found = [(g, cost) for g in plain_systems(study) if (cost := seconds(study, g)) is not None]
    return sorted(found, key=lambda pair: pair[1])


def gap(ours: Group, theirs: Group, at: At) -> float:
    """F1 points by which one is ahead of another on dev: `Study.versus` without its interval."""
    common = ours.common(theirs) or None
    return 100.0 * float((ours.questions(at, common)[1] - theirs.questions(at, common)[1]).mean())


def within_reach(group: Group, best: Group, at: At = "tuned") -> bool:
    """Whether it is at most 0.3 F1 behind, over the seeds both have."""
    return gap(group, best, at) >= -WITHIN


def has_seeds_of(group: Group, best: Group) -> bool:
    """Whether it was run with every seed of another."""
    return best.common(group) == best.seeds


@dataclass(frozen=True)
class Cheapest:
    """The least device time that leads to within 0.3 F1 of the best full fine-tuning."""

    group: Group
    seconds: float
    best: Group
    best_seconds: float
    versus: Versus
    """Of the group against the best."""

    @property
    def share(self) -> float:
        """Of the best full fine-tuning's seconds, 0 to 1."""
        return self.seconds / self.best_seconds


def cheapest(study: Study, at: At = "tuned") -> Cheapest | None:
    """None where there is no full fine-tuning or its seconds are not known."""
    best = best_full(study, at)
    cost = seconds(study, best) if best else None
    if best is None or not cost:
        return None
    # The best one itself is always within reach of itself.
    able = (pair for pair in priced(study) if has_seeds_of(pair[0], best))
    group, least = next(pair for pair in able if within_reach(pair[0], best, at))
    return Cheapest(group, least, best, cost, study.versus(group, best, at))


def name(group: Group) -> str:
    """A system in words, for sentences; tables have its key."""
    about = group.about
    part = f" with {100 * about.data_fraction:g} % of the data" if about.data_fraction != 1 else ""
    if about.kind == "ensemble":
        return f"the ensemble {about.label}"
    if about.kind != "snapshot":
        return f"{about.label} on {about.snapshot}{part}"
    return f"{_tuning(group)}{part}"


def _tuning(group: Group) -> str:
    length, own = epochs(group), family(group)
    if length is None:
        return "the encoder as it came"
    units = f"{length:g} {'epoch' if length == 1 else 'epochs'}"
    if own == "constant":
        return f"full fine-tuning at constant rate, {units}"
    if own.startswith("decayed-"):
        return f"full fine-tuning with decayed rate, {units}"
    return f"{own}, {units}"
