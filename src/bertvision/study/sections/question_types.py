"""Which questions a head gains and loses: with and without an answer, and by their question word.

The counts of the paper are those recomputed from its own notebooks; of its figure the bars of BERT after 3/10 epoch are
swapped and divided by the wrong totals, and those of its first model have swapped denominators.
"""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.report.words import change, count
from bertvision.study import blocks
from bertvision.study.published import ABOUT_RIGHT, NO_ANSWER_RIGHT
from bertvision.study.resample import paired
from bertvision.study.sections.pairs import Pairing, pairings
from bertvision.study.view import Group, Study
from bertvision.tasks.span.compare import Difference

__all__ = ["WORDS", "kind_of_question", "question_types"]

WORDS = ("who", "what", "when", "where", "which", "why", "how", "other")
_WORD = re.compile(r"\b(who(?:m|se)?|what|when|where|which|why|how)\b")
_HAS, _NO = 5928, 5945
"""Questions of SQuAD 2.0 dev with and without an answer."""
_FEWEST = 5
"""Questions a kind needs to be compared on."""


_PAPER = {
    "constant@0.3": "BERT of 3/10 epochs",
    "constant@1": "BERT of one epoch",
    "constant@2": "BERT of two epochs",
    "constant@0.3/adapter-386-skip": "head of 3/10 epochs",
    "constant@1/adapter-386-skip<constant@0.3": "head of 3/10 epochs, read on one epoch",
    "constant@1/adapter-386": "head of one epoch",
}
"""Systems the paper counts, by the keys they have here."""
_NULLS = ("constant@0.3/adapter-386-skip", "65")
"""Whose wrong answers to answerable questions were "no answer" in so many percent."""


def kind_of_question(question: str) -> str:
    """Its first question word, wherever it stands; "other" without one."""
    found = _WORD.search(question.lower())
    return "other" if found is None else "who" if found[1].startswith("who") else found[1]


def question_types(study: Study) -> dict[str, Any] | None:
    """Has and no answer beside the paper's counts, then F1 by question word."""
    pairs = pairings(study)
    shown = [group for key in _PAPER if (group := study.get(key))]
    shown = list(
        {group.key: group for group in (*shown, *(g for p in pairs for g in (p.snapshot, p.head)))}.values()
    )
    if not shown:
        return None
    made = [blocks.text(*_findings(pairs)), _answers(shown)]
    kinds = np.array([kind_of_question(example.question) for example in study.dev.examples])
    for pair in pairs:
        made += _words(pair, kinds)
    return blocks.section(
        "question-types",
        "Questions with and without an answer, and question words",
        "Shows on which questions heads and snapshots are right: a system that says no answer more often wins on one "
        "half of dev what it loses on the other. It does not show understanding: kinds are told by a question's words "
        "alone, and with many kinds one interval in twenty lies off zero by chance.",
        made,
    )


def _answers(shown: list[Group]) -> dict[str, Any]:
    columns = [blocks.column("system", "text")]
    for title in ("no answer, right", "has answer, exactly right"):
        columns += [blocks.column(name, group=title) for name in ("count", "at 0", "tuned", "paper")]
    columns.append(blocks.column("wrong has-answer that said no answer, at 0"))
    made = []
    for group in shown:
        name = _PAPER.get(group.key, "")
        printed = NO_ANSWER_RIGHT.get(name, (None, None))
        cells: list[blocks.Cell] = [{"text": group.key, "sub": f"paper: {name}"} if name else group.key]
        for part, given, total in (
            (~group.answerable, printed[0], _NO),
            (group.answerable, printed[1], _HAS),
        ):
            zero, tuned = (group.questions(at)[0][part] for at in ("zero", "tuned"))
            cells.append(f"{count(float(zero.sum()))} of {count(int(part.sum()))}")
            cells += [blocks.value_cell(_percent(zero)), blocks.value_cell(_percent(tuned))]
            about = "about " if total == _HAS and name in ABOUT_RIGHT else ""
            sub = f"{about}{given:,} of {total:,}" if given else ""
            paper = blocks.published_cell(100 * given / total, sub) if given else None
            cells.append(paper or blocks.value_cell(None))
        said = blocks.value_cell(_said_nothing(group))
        if group.key == _NULLS[0]:
            said = {"text": said if isinstance(said, str) else said["text"], "sub": f"paper {_NULLS[1]}"}
        made.append(blocks.row([*cells, said], kind=group.about.kind))
    return blocks.table(
        "Exact match in percent of the unanswerable and of the answerable questions of dev, means over seeds; counts "
        "at threshold 0. The paper's counts are recomputed from its notebooks (its figure swaps bars and denominators) "
        "and are those of BERT-large on all of train; those told as about come from rounded shares.",
        columns,
        made,
    )


def _percent(values: NDArray[np.float64]) -> float | None:
    return 100.0 * float(values.mean()) if values.size else None


def _said_nothing(group: Group) -> float | None:
    """Percent of the wrong answers to answerable questions that were "no answer", at threshold 0."""
    wrong = nothing = 0
    for system, (exact, _) in zip(group.systems, group.each("zero"), strict=True):
        missed = group.answerable & (exact < 0.5)
        wrong += int(missed.sum())
        nothing += int((missed & system.dev.is_null(0.0)).sum())
    return 100.0 * nothing / wrong if wrong else None


def _words(pair: Pairing, kinds: NDArray[np.str_]) -> list[dict[str, Any]]:
    ours, theirs = (group.questions("tuned", pair.seeds)[1] for group in (pair.head, pair.snapshot))
    parts = [(word, kinds == word) for word in WORDS if int((kinds == word).sum()) >= _FEWEST]
    if not parts:
        return []
    labels = [f"{word} ({count(int(part.sum()))})" for word, part in parts]
    drawn = [
        {"name": group.key, "kind": kind, "values": [_percent(values[part]) for _, part in parts]}
        for group, kind, values in ((pair.snapshot, "snapshot", theirs), (pair.head, "head", ours))
    ]
    rows = [
        blocks.interval_row(label, paired(ours[part], theirs[part]))
        for label, (_, part) in zip(labels, parts, strict=True)
    ]
    return [
        blocks.bars(
            f"F1 by question word: {pair.label}",
            "At tuned thresholds; the number of questions in brackets. The first question word counts, wherever it "
            "stands in the question.",
            blocks.axis("F1 on dev", unit="%"),
            labels,
            drawn,
        ),
        blocks.intervals(
            f"Head minus snapshot by question word: {pair.label}",
            "Paired differences at tuned thresholds with 95 % intervals over the questions of the kind.",
            rows,
        ),
    ]


def _part(pair: Pairing, part: NDArray[np.bool_]) -> Difference | None:
    """Exact match at threshold 0, head minus snapshot, on a part of the questions."""
    ours, theirs = (group.questions("zero", pair.seeds)[0][part] for group in (pair.head, pair.snapshot))
    return paired(ours, theirs) if part.any() else None


def _findings(pairs: list[Pairing]) -> list[str]:
    said = []
    for pair in pairs:
        has, no = _part(pair, pair.head.answerable), _part(pair, ~pair.head.answerable)
        if has and no:
            said.append(
                f"{pair.label} against its snapshot at threshold 0: {change(no.difference)} points of exact match on "
                f"questions without an answer and {change(has.difference)} on those with one."
            )
    if pairs:
        said.append(
            "In the paper heads win on questions without an answer and lose on those with one: +16.7 and −7.7 points "
            "on 3/10 epoch (80.6 against 63.9 %, 59.2 against 66.9 %), +9.3 and −5.2 on 1 epoch."
        )
    return said
