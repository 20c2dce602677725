"""Triplets for pre-training an encoder: an anchor, a text that should be near it, and texts that should be far.

    set     anchors                         positive                        negatives of the same set
    sst     every sentence                  one of the same label           of another label
    sts     every sentence                  one of the same half of scores  of the other half
    quora   first of each duplicate pair    its paraphrase                  of a pair that is no duplicate

The halves are 0..2 and 3..5; a score between them says nothing, nor does a sentence that has both halves (or an SST
sentence with two labels): those are left out. Each anchor has three negatives of its own set and one of each other
set. Texts of a row differ from each other, and no negative of a Quora anchor is a paraphrase of it, not even through
other questions. As the same text may come in several rows, `groups` counts in a list of texts that are all different:

    groups[e] = anchor, positive, 3 negatives of the same set, 1 of each other set        (E, 4 + sets)
"""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.data.examples import content_hash
from bertvision.data.texts import TextData, TextExample
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TripletData", "TripletSet", "mine_triplets", "triplet_windows"]

logger = logging.getLogger(__name__)

TripletSet = Literal["sst", "sts", "quora"]

_NEGATIVES = 3
"""Of the anchor's own set."""


@dataclass(frozen=True)
class TripletData:
    """Rows of texts: anchor, positive, negatives."""

    texts: list[str]
    """All different."""
    groups: NDArray[np.int64]
    """(E, K) which text stands where; K = 2 + negatives."""
    origin: NDArray[np.int64]
    """(E,) the set an anchor is from, as a number in `sets`."""
    sets: tuple[TripletSet, ...]
    name: str = "triplets"
    """For messages and reports; never part of the fingerprint."""

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def negatives(self) -> int:
        return self.groups.shape[1] - 2

    def take(self, indices: Sequence[int] | NDArray[np.integer]) -> "TripletData":
        """The rows at `indices`, in that order."""
        chosen = np.asarray(indices, np.int64)
        return dataclasses.replace(self, groups=self.groups[chosen], origin=self.origin[chosen])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the content: the rows' texts and where they are from."""
        rows = zip(self.groups.tolist(), self.origin.tolist(), strict=True)
        return content_hash([self.sets[origin], *(self.texts[i] for i in row)] for row, origin in rows)


@dataclass(frozen=True)
class _Mined:
    """What one set gives."""

    anchors: NDArray[np.int64]
    """(A,)"""
    positives: NDArray[np.int64] | None
    """(A,); None = drawn among the texts of the anchor's kind."""
    kind: dict[int, int]
    """Text -> what it has in common with those that are near it."""
    far: NDArray[np.int64]
    """Texts that negatives of the set's own anchors are drawn from."""
    every: NDArray[np.int64]
    """All texts of the set, for the anchors of other sets."""


def mine_triplets(sets: Mapping[TripletSet, TextData], *, seed: int) -> TripletData:
    """Triplets of one, two or three sets; a function of the data and the seed."""
    known: tuple[TripletSet, ...] = ("sst", "sts", "quora")
    if not sets or any(name not in known for name in sets):
        raise ConfigError(
            f"triplets are made of the sets {', '.join(known)}, not of {', '.join(sets) or 'none'}"
        )
    names: tuple[TripletSet, ...] = tuple(name for name in known if name in sets)
    for name in names:
        if len(sets[name]) == 0:
            raise DataError(f"{sets[name].name}: there are no examples to make triplets of")
    number: dict[str, int] = {}  # text -> its number, over all sets
    mined = [_MINERS[name](sets[name], number) for name in names]
    rows = [
        _rows(names[i], mined, i, len(number), np.random.default_rng([seed, known.index(names[i])]))
        for i in range(len(names))
    ]
    found = ", ".join(f"{len(own)} of {name}" for name, own in zip(names, rows, strict=True))
    logger.info("triplets: %s, %d different texts", found, len(number))
    origin = np.repeat(np.arange(len(names)), [len(own) for own in rows])
    return TripletData(list(number), np.concatenate(rows), origin, names, f"triplets of {', '.join(names)}")


def _rows(
    name: TripletSet, mined: list[_Mined], own: int, texts: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(A, K) the rows of one set's anchors."""
    mine = mined[own]
    kind = np.full(texts, -1, np.int64)
    kind[list(mine.kind)] = list(mine.kind.values())
    members = np.array(list(mine.kind), np.int64)
    _check_enough(name, kind, mine.far, mine.anchors)
    if mine.positives is None:
        rows = _with_one(mine.anchors[:, None], members, rng, kind, alike=True)
    else:
        rows = np.stack([mine.anchors, mine.positives], axis=1)
    for _ in range(_NEGATIVES):
        rows = _with_one(rows, mine.far, rng, kind, alike=False)
    for i, other in enumerate(mined):
        if i != own:
            if len(other.every) <= rows.shape[1]:
                raise DataError(
                    f"a set with only {len(other.every)} texts is too small for triplets: leave it out"
                )
            rows = _with_one(rows, other.every, rng)
    return rows


def _with_one(
    rows: NDArray[np.int64],
    pool: NDArray[np.int64],
    rng: np.random.Generator,
    kind: NDArray[np.int64] | None = None,
    *,
    alike: bool = False,
) -> NDArray[np.int64]:
    """(A, K + 1) the rows and a text from the pool that none of them has yet; with `kind`, one that is of the anchor's
    kind or that is not. What does not suit is drawn again."""
    found = np.full(len(rows), -1, np.int64)
    missing = np.arange(len(rows))
    while len(missing):
        drawn = pool[rng.integers(len(pool), size=len(missing))]
        suits = (rows[missing] != drawn[:, None]).all(axis=1)
        if kind is not None:
            suits &= (kind[drawn] == kind[rows[missing, 0]]) == alike
        found[missing[suits]] = drawn[suits]
        missing = missing[~suits]
    return np.column_stack([rows, found])


def _check_enough(
    name: TripletSet, kind: NDArray[np.int64], far: NDArray[np.int64], anchors: NDArray[np.int64]
) -> None:
    """Refuse a set in which drawing would never end."""
    kinds, counts = np.unique(kind[far], return_counts=True)
    alike = dict(zip(kinds.tolist(), counts.tolist(), strict=True))
    worst = max((alike.get(k, 0) for k in np.unique(kind[anchors]).tolist()), default=0)
    if len(anchors) == 0 or len(far) - worst < _NEGATIVES:
        raise DataError(
            f"{name} has too few texts for triplets: an anchor needs one of its kind and {_NEGATIVES} of another"
        )


# ---- the sets


def _sst(data: TextData, number: dict[str, int]) -> _Mined:
    if data.kind != "label" or data.pairs:
        raise ConfigError(f"{data.name}: the sst set of triplets is single texts with a label")
    every, told = _texts(data, number), _told(data, number)
    return _of_kinds(every, ((first, int(label)) for first, _, label in told))


def _sts(data: TextData, number: dict[str, int]) -> _Mined:
    if data.kind != "score" or not data.pairs:
        raise ConfigError(f"{data.name}: the sts set of triplets is pairs with a score from 0 to 5")
    every, told = _texts(data, number), _told(data, number)
    halves = ((text, int(score >= 3)) for *pair, score in told if score <= 2 or score >= 3 for text in pair)
    return _of_kinds(every, halves)


def _quora(data: TextData, number: dict[str, int]) -> _Mined:
    if data.kind != "label" or not data.pairs or len(data.classes) != 2:
        raise ConfigError(f"{data.name}: the quora set of triplets is pairs with two classes")
    every, told = _texts(data, number), list(_told(data, number))
    same = [(a, b) for a, b, label in told if label == data.positive and a != b]
    other = [text for a, b, label in told if label != data.positive for text in (a, b)]
    pairs = np.array(same, np.int64).reshape(-1, 2)
    return _Mined(
        pairs[:, 0], pairs[:, 1], _clusters(every, same), np.unique(np.array(other, np.int64)), every
    )


_MINERS = {"sst": _sst, "sts": _sts, "quora": _quora}


def _texts(data: TextData, number: dict[str, int]) -> NDArray[np.int64]:
    """The numbers of all texts of a set, each once; new texts get theirs here."""
    texts = (text for e in data.examples for text in (e.first, e.second) if text is not None and text.strip())
    return np.unique(np.array([number.setdefault(text, len(number)) for text in texts], np.int64))


def _told(data: TextData, number: dict[str, int]) -> Iterator[tuple[int, int, float]]:
    """(first text, second text or -1, label) of the examples whose label is known and whose texts are not blank."""
    for e in data.examples:
        texts = [number.get(text, -1) for text in (e.first, e.second) if text is not None]
        if e.label is not None and min(texts) >= 0:
            yield texts[0], (texts[1] if len(texts) > 1 else -1), float(e.label)


def _of_kinds(every: NDArray[np.int64], told: Iterable[tuple[int, int]]) -> _Mined:
    """Texts of one kind each; those that were told two are left out, and so are anchors that are alone in theirs."""
    kinds: dict[int, set[int]] = {}
    for text, kind in told:
        kinds.setdefault(text, set()).add(kind)
    kind = {text: next(iter(own)) for text, own in kinds.items() if len(own) == 1}
    counts: dict[int, int] = {}
    for own in kind.values():
        counts[own] = counts.get(own, 0) + 1
    anchors = np.array([text for text, own in kind.items() if counts[own] > 1], np.int64)
    return _Mined(anchors, None, kind, np.array(list(kind), np.int64), every)


def _clusters(every: NDArray[np.int64], same: list[tuple[int, int]]) -> dict[int, int]:
    """Text -> one text of those it is a paraphrase of, directly or through others."""
    parent = {text: text for text in every.tolist()}

    def root(text: int) -> int:
        while parent[text] != text:
            parent[text] = parent[parent[text]]  # shorter for the next time
            text = parent[text]
        return text

    for a, b in same:
        parent[root(a)] = root(b)
    return {text: root(text) for text in parent}


# ---- windows


def triplet_windows(data: TripletData, tokenizer: "PreTrainedTokenizerBase", config: WindowConfig) -> Windows:
    """(E * K) windows, the K of a row side by side; labels (W, 1) zeros. A longer text is read through its first."""
    from bertvision.data.windows import make_windows

    used, place = np.unique(data.groups, return_inverse=True)
    examples = [TextExample(str(i), data.texts[i]) for i in used.tolist()]
    made = make_windows(TextData(examples, "label", ("text",), data.name), tokenizer, config)
    first = made.example_starts
    if len(made) > len(first):
        logger.warning(
            "%d of %d texts of the triplets are longer than %d tokens and are cut (--max-seq-length)",
            int((np.bincount(made.example) > 1).sum()), len(first), config.max_seq_length,
        )  # fmt: skip
    windows = made.take(first[place.ravel()])
    return dataclasses.replace(
        windows,
        example=np.repeat(np.arange(len(data)), data.groups.shape[1]).astype(np.int32),
        labels=np.zeros((len(windows), 1), np.int32),
    )
