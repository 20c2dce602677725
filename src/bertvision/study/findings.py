"""What a study found, in sentences and figures made from the numbers: another run may say the opposite."""

from collections import Counter
from collections.abc import Sequence

from bertvision.report import words
from bertvision.study.contests import (
    Contest,
    Metric,
    against_strongest,
    beyond_contests,
    ensemble_gains,
    paper_contest,
    points,
)
from bertvision.study.picks import WITHIN, Cheapest, best_full, cheapest, name
from bertvision.study.verdicts import Goal
from bertvision.study.view import At, Group, Study
from bertvision.tasks.span.compare import Difference

__all__ = ["facts", "headline", "lede"]

# ---- the finding in one sentence


def headline(study: Study, *, whole: bool = True) -> str:
    """`whole`: all parts of the cost curve have run; else a cheaper way, or a better tuning, may yet come."""
    found, best = cheapest(study), best_full(study)
    if found is not None:
        return _cheap(found, whole=whole)
    if best is not None:
        f1 = words.score(best.scores("tuned").f1)
        return f"The best full fine-tuning, {name(best)}, scores {f1} F1 on dev at the tuned threshold."
    if study.groups:
        count = len(study.groups)
        return f"{count} {'system was' if count == 1 else 'systems were'} answered, no full fine-tuning among them."
    return f"{len(study.labels)} systems tell questions with an answer from those without."


def _cheap(found: Cheapest, *, whole: bool) -> str:
    best = f"{words.score(found.best.scores('tuned').f1)} F1"
    if found.group is found.best:
        none = "Nothing cheaper" if whole else "Nothing cheaper measured so far"
        return (
            f"{none} comes within {WITHIN:g} F1 of the best full fine-tuning: {name(found.best)}, {best} in "
            f"{words.duration(found.seconds)} of GPU time."
        )
    far = "" if whole else " so far"
    share = f"{100 * found.share:.0f} % of the GPU time"
    return (
        f"{_capital(name(found.group))} comes within {WITHIN:g} F1 of the best full fine-tuning{far} ({best}) with "
        f"{share}: {words.duration(found.seconds)} instead of {words.duration(found.best_seconds)}."
    )


def _capital(text: str) -> str:
    """Names of heads and families are left as they are typed."""
    return text[0].upper() + text[1:] if text.startswith(("full ", "the ")) else text


# ---- the findings below it


def lede(study: Study, judged: Sequence[Goal]) -> list[str]:
    said = [*_papers(study), *_strongest(study), *_joined(study), *_further(study)]
    if judged:
        said.append(_judged(judged))
    return said


def _judged(judged: Sequence[Goal]) -> str:
    counts = Counter(goal.verdict for goal in judged)
    line = f"Of {len(judged)} goals {counts['met']} are met and {counts['missed']} missed"
    if counts["met so far"] or counts["missed so far"]:
        line += f", {counts['met so far']} met and {counts['missed so far']} missed so far"
    rest = counts["not measured"]
    return f"{line}{f', {rest} could not be measured' if rest else ''}."


def _ends(study: Study, ours: Group, theirs: Group, at: At = "tuned", metric: Metric = "f1") -> str:
    size, sure = points(study, ours, theirs, at, metric)
    return f"{size} ({sure})"


def _papers(study: Study) -> list[str]:
    """Gains over snapshots at constant rate, as the papers measured them."""
    parts = []
    for key in ("constant@0.3", "constant@1"):
        contest = paper_contest(study, key)
        if contest is not None:
            ends = _ends(study, contest.ours, contest.theirs, "zero", "exact")
            parts.append(f"{ends} EM over {key} ({contest.ours.about.label})")
    if not parts:
        return []
    return [
        f"As in the papers, at constant rate and threshold 0, the best seed head has {' and '.join(parts)}."
    ]


def _verb(found: Difference) -> str:
    match words.verdict(vars(found)):
        case "gain":
            return "is ahead of"
        case "loss":
            return "is behind"
        case _:
            return "is level with"


def _strongest(study: Study) -> list[str]:
    contest = against_strongest(study)
    if contest is None:
        return []
    found = contest.tuned.f1
    said = [
        f"Against the strongest honest baseline, {name(contest.ours)} {_verb(found)} {contest.theirs.key} at the "
        f"tuned threshold: {_ends(study, contest.ours, contest.theirs)} F1; at threshold 0 "
        f"{_ends(study, contest.ours, contest.theirs, 'zero')}."
    ]
    said += _layers(study, contest)
    return said


def _layers(study: Study, contest: Contest) -> list[str]:
    """What reading all layers is worth beside the largest control on the same states."""
    controls = [g for g in study.below(contest.ours.about.snapshot) if g.about.kind == "control"]
    if not controls:
        return []
    control = max(controls, key=lambda g: (g.about.parameters or 0, g.about.label))
    found = study.versus(contest.ours, control, "tuned").f1
    return [
        f"It {_verb(found)} {control.about.label}, which reads the last state alone: "
        f"{_ends(study, contest.ours, control)} F1."
    ]


def _joined(study: Study) -> list[str]:
    rows = ensemble_gains(study)
    if not rows:
        return []
    join, member, found = rows[0]
    return [
        f"The ensemble {join.about.label} {_verb(found.f1)} its best member, {member.key}: "
        f"{_ends(study, join, member)} F1."
    ]


def _further(study: Study) -> list[str]:
    contests = beyond_contests(study)
    if not contests:
        return []
    first = contests[0]
    found = first.tuned.f1
    return [
        f"Beyond the papers, {name(first.ours)} {_verb(found)} the best seed head there, {first.theirs.about.label}: "
        f"{_ends(study, first.ours, first.theirs)} F1."
    ]


# ---- figures at a glance


def facts(study: Study, judged: Sequence[Goal]) -> list[dict[str, str]]:
    told: list[dict[str, str]] = []
    if (best := best_full(study)) is not None:
        note = f"{best.key}, tuned threshold, {len(best.seeds)} seed{'' if len(best.seeds) == 1 else 's'}"
        told.append(_fact("best full fine-tuning, F1", words.score(best.scores("tuned").f1), note))
    if (found := cheapest(study)) is not None:
        note = f"to within {WITHIN:g} F1 of it: {found.group.key}"
        told.append(_fact("GPU time needed", f"{100 * found.share:.0f} %", note))
    for key in ("constant@0.3", "constant@1"):
        if (contest := paper_contest(study, key)) is not None:
            size, sure = points(study, contest.ours, contest.theirs, "zero", "exact")
            told.append(_fact(f"EM over {key}", size, f"{contest.ours.about.label}, threshold 0, {sure}"))
    if (contest := against_strongest(study)) is not None:
        size, sure = points(study, contest.ours, contest.theirs, "tuned")
        note = f"{contest.ours.key}, tuned threshold, {sure}"
        told.append(_fact(f"F1 over {contest.theirs.key}", size, note))
    if judged:
        met = sum(goal.verdict == "met" for goal in judged)
        far = sum(goal.verdict == "met so far" for goal in judged)
        note = f"{far} more met so far, not all is measured" if far else "judged from the numbers below"
        told.append(_fact("goals met", f"{met} of {len(judged)}", note))
    systems = sum(len(group.systems) for group in (*study.groups.values(), *study.labels.values()))
    told.append(
        _fact(
            "systems answered", words.count(systems), f"{words.count(len(study.answerable))} questions each"
        )
    )
    return told


def _fact(title: str, value: str, note: str) -> dict[str, str]:
    return {"name": title, "value": value, "note": note}
