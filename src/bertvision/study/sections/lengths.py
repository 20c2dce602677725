"""Do heads do better on shorter paragraphs? The lengths of what a head and its snapshot answer rightly.

The paper compares means of WordPiece lengths over two pairs of sets: all questions a system has right, and those that
it alone of the two has right. Records keep no word pieces; lengths here are whitespace-separated words, which are
fewer, so that the signs of differences can be compared and not the lengths themselves.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.report.words import UNKNOWN, count, signed
from bertvision.study import blocks
from bertvision.study.published import CONTEXT_LENGTHS
from bertvision.study.sections.pairs import Pairing, pairings
from bertvision.study.view import At, Study

__all__ = ["lengths", "right_sets"]

_PAPER = {"constant@0.3": 0.3, "constant@1": 1.0}
"""Epochs of the encoder whose model the paper compares with BERT."""
_BINS = 12
Array = NDArray[np.bool_]


def right_sets(pair: Pairing, at: At) -> list[tuple[Array, Array]]:
    """For each seed both have, (Q,) where the head and where the snapshot is exactly right."""
    found = []
    for seed in pair.seeds:
        ours, theirs = (group.questions(at, [seed])[0] > 0.5 for group in (pair.head, pair.snapshot))
        found.append((ours, theirs))
    return found


def lengths(study: Study) -> dict[str, Any] | None:
    """Mean lengths of what head and snapshot have right, beside the paper's; histograms of what one alone has right."""
    pairs = pairings(study)
    if not pairs:
        return None
    words = np.array([len(paragraph.split()) for paragraph in study.dev.paragraphs], np.float64)
    own = words[[example.paragraph for example in study.dev.examples]]  # (Q,)
    made: list[dict[str, Any]] = [_table(pairs, own)]
    made += [_histogram(pair, own) for pair in pairs]
    return blocks.section(
        "lengths",
        "Length of the paragraph",
        "Shows whether heads are right on shorter paragraphs than their snapshots. It does not show that length is the "
        "cause: what one system alone has right also differs in how many of its questions have an answer.",
        [blocks.text(*(_finding(pair, own) for pair in pairs)), *made],
    )


def _means(own: NDArray[np.float64], sets: list[Array]) -> float | None:
    """Mean length over the questions of a set, all seeds together."""
    known = np.concatenate([own[part] for part in sets])
    return float(known.mean()) if known.size else None


def _gap(own: NDArray[np.float64], pair: Pairing, at: At) -> tuple[float, float] | None:
    """Mean length of what the head alone has right minus that of what the snapshot alone has, and 1.96 standard errors.

    Over all seeds together; the error takes a question that is in the set of several seeds once.
    """
    sets = right_sets(pair, at)
    shares = [
        np.mean([one & ~other for one, other in sets], axis=0, dtype=np.float64),
        np.mean([other & ~one for one, other in sets], axis=0, dtype=np.float64),
    ]
    means, spread = [], 0.0
    for share in shares:
        if np.count_nonzero(share) < 2:
            return None
        mean = float((share * own).sum() / share.sum())
        spread += float(((share / share.sum()) ** 2 * (own - mean) ** 2).sum())
        means.append(mean)
    return means[0] - means[1], 1.96 * float(np.sqrt(spread))


def _table(pairs: list[Pairing], own: NDArray[np.float64]) -> dict[str, Any]:
    columns = [blocks.column("head and snapshot", "text"), blocks.column("threshold", "text")]
    for title in ("all it has right, words", "it alone has right, words"):
        columns += [blocks.column(name, group=title) for name in ("head", "snapshot", "head − snapshot")]
    columns += [blocks.column(name, group="alone: has an answer, %") for name in ("head", "snapshot")]
    columns += [blocks.column("all", group="paper, word pieces")]
    columns += [blocks.column("alone", group="paper, word pieces")]
    rows = []
    for pair in pairs:
        for at in ("zero", "tuned"):
            sets = right_sets(pair, at)
            ours, theirs = [one for one, _ in sets], [other for _, other in sets]
            only = [one & ~other for one, other in sets], [other & ~one for one, other in sets]
            cells: list[blocks.Cell] = [pair.label, "0" if at == "zero" else at]
            cells += _three(own, ours, theirs, None)
            cells += _three(own, *only, _gap(own, pair, at))
            for part in only:
                cells.append(blocks.value_cell(_share(pair, part), digits=0))
            cells += _paper(pair.snapshot.key) if at == "zero" else [blocks.value_cell(None)] * 2
            rows.append(blocks.row(cells, kind="head"))
    return blocks.table(
        f"Mean whitespace-separated words of the paragraph (all of dev: {own.mean():.2f}), all seeds together; below "
        "each mean its number of questions, below differences of what one alone has right 1.96 standard errors. The "
        "paper counts word pieces, of its own two models (head − BERT) on 3/10 and 1 epoch; its 161.58 reads 161.68 in "
        "one of its two texts.",
        columns,
        rows,
    )


def _three(
    own: NDArray[np.float64], ours: list[Array], theirs: list[Array], gap: tuple[float, float] | None
) -> list[blocks.Cell]:
    first, second = _means(own, ours), _means(own, theirs)
    cells: list[blocks.Cell] = []
    for mean, sets in ((first, ours), (second, theirs)):
        number = float(np.mean([part.sum() for part in sets]))
        shown = UNKNOWN if mean is None else f"{mean:.2f}"
        cells.append({"text": shown, "sub": count(number)})
    if gap is not None:
        return [*cells, {"text": signed(gap[0], digits=2), "sub": f"± {gap[1]:.2f}"}]
    if first is None or second is None:
        return [*cells, blocks.value_cell(None)]
    return [*cells, signed(first - second, digits=2)]


def _share(pair: Pairing, sets: list[Array]) -> float | None:
    """Percent of the questions of a set that have an answer."""
    total = sum(int(part.sum()) for part in sets)
    return 100.0 * sum(int((part & pair.head.answerable).sum()) for part in sets) / total if total else None


def _paper(snapshot: str) -> list[blocks.Cell]:
    if snapshot not in _PAPER:
        return [blocks.value_cell(None)] * 2
    return [
        blocks.published_cell(signed(model - bert, digits=2), f"{model:.2f} − {bert:.2f}")
        for model, bert in (CONTEXT_LENGTHS[_PAPER[snapshot], part] for part in ("all", "unique"))
    ]


def _histogram(pair: Pairing, own: NDArray[np.float64]) -> dict[str, Any]:
    sets = right_sets(pair, "tuned")
    # The longest hundredth shares the last bin: a few very long paragraphs would squeeze the rest.
    edges = np.linspace(own.min(), max(np.quantile(own, 0.99), own.min() + 1), _BINS + 1)
    clipped = np.clip(own, edges[0], edges[-1])
    drawn = []
    for group, kind, only in (
        (pair.snapshot, "snapshot", [other & ~one for one, other in sets]),
        (pair.head, "head", [one & ~other for one, other in sets]),
    ):
        counts = np.mean([np.histogram(clipped[part], edges)[0] for part in only], axis=0)
        drawn.append({"name": f"only {group.key}", "kind": kind, "counts": counts.tolist()})
    return blocks.histogram(
        f"Paragraphs of what one alone has right: {pair.label}",
        "Questions at tuned thresholds, mean over seeds; the longest hundredth of the paragraphs is in the last bin.",
        blocks.axis("words of the paragraph"),
        edges.tolist(),
        drawn,
    )


def _finding(pair: Pairing, own: NDArray[np.float64]) -> str:
    found = _gap(own, pair, "tuned")
    if found is None:
        return f"{pair.label}: too few questions on which only one of the two is right to compare lengths."
    size, error = found
    return (
        f"{pair.label}, tuned: the paragraphs of what the head alone has right are {abs(size):.1f} words "
        f"{'shorter' if size < 0 else 'longer'} in the mean than those of what the snapshot alone has right "
        f"(± {error:.1f}), which {'cannot' if abs(size) <= error else 'can'} be told from chance."
    )
