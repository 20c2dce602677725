"""Triplets for pre-training an encoder: an anchor, a text that should be near it, and texts that should be far.

    set     anchors                         positive                        negatives of the same set
    sst     every sentence                  one of the same label           of another label
    sts     every sentence                  one of the same half of scores  of the other half
    quora   first of each duplicate pair    its paraphrase                  of a pair that is no duplicate

The halves are 0..2 and 3..5; scores between them and sentences in both halves (or of two labels) are left out. Texts
of a row differ, and no negative of a Quora anchor is a paraphrase of it, not even through other questions. As the same
text may come in several rows, `groups` counts in a list of texts that are all different:

    groups[e] = anchor, positive, 3 negatives of the same set, 1 of each other set        (E, 4 + sets)
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertvision.data.cutting import make_windows
from bertvision.data.examples import TextData, TextExample, content_hash
from bertvision.data.windows import WindowConfig, Windows
from bertvision.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

TripletSet = Literal["sst", "sts", "quora"]

_WANTED: dict[TripletSet, tuple[str, bool, str]] = {
    "sst": ("label", False, "single texts with a label"),
    "sts": ("score", True, "pairs with a score from 0 to 5"),
    "quora": ("label", True, "pairs with two classes"),
}
"""Kind of the labels, whether they are of pairs, and both in words."""
_NEGATIVES = 3  # of the anchor's own set


@dataclass(frozen=True)
class TripletData:
    kind: ClassVar = "triplet"
    texts: list[str]  # all different
    groups: NDArray[np.int64]  # (E, K), K = 2 + negatives
    origin: NDArray[np.int64]  # (E,) the set an anchor is from, as a number in `sets`
    sets: tuple[TripletSet, ...]
    name: str = "triplets"  # for messages and reports; never part of the fingerprint

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def negatives(self) -> int:
        return self.groups.shape[1] - 2

    def take(self, indices: Sequence[int] | NDArray[np.integer]) -> "TripletData":
        chosen = np.asarray(indices, np.int64)
        return replace(self, groups=self.groups[chosen], origin=self.origin[chosen])

    @cached_property
    def fingerprint(self) -> str:
        rows = zip(self.groups.tolist(), self.origin.tolist(), strict=True)
        return content_hash([self.sets[origin], *(self.texts[i] for i in row)] for row, origin in rows)


def mine_triplets(sets: Mapping[TripletSet, TextData], *, seed: int) -> TripletData:
    """Triplets of one, two or three sets; a function of the data and the seed."""
    if not sets or not sets.keys() <= _WANTED.keys():
        raise ConfigError(f"triplets are made of {', '.join(_WANTED)}, not of {', '.join(sets) or 'none'}")
    names: tuple[TripletSet, ...] = tuple(name for name in _WANTED if name in sets)
    number: dict[str, int] = {}  # text -> its number, over all sets
    mined = [_mine(name, sets[name], number) for name in names]
    rows = []
    for name, own in zip(names, mined, strict=True):
        rng = np.random.default_rng([seed, list(_WANTED).index(name)])
        others = [other.every for other in mined if other is not own]
        rows.append(_rows(name, own, others, len(number), rng))
    logger.info("triplets: %d anchors of %s", sum(map(len, rows)), ", ".join(names))
    origin = np.repeat(np.arange(len(names)), [len(own) for own in rows])
    return TripletData(list(number), np.concatenate(rows), origin, names, f"triplets of {', '.join(names)}")


class _Mined(NamedTuple):
    rows: NDArray[np.int64]
    """(A, 1) anchors, whose positives are drawn among the texts of their kind, or (A, 2) anchors and positives."""
    kind: dict[int, int]  # text -> what it has in common with those that are near it
    far: NDArray[np.int64]  # texts that negatives of the set's own anchors are drawn from
    every: NDArray[np.int64]  # all texts of the set, for the anchors of other sets


def _mine(name: TripletSet, data: TextData, number: dict[str, int]) -> _Mined:
    """Anchors and pools of one set; texts it brings first get their numbers here."""
    if not len(data):
        raise DataError(f"{data.name}: there are no examples to make triplets of")
    *form, wanted = _WANTED[name]
    if [data.kind, data.pairs] != form or (name == "quora" and len(data.classes) != 2):
        raise ConfigError(f"{data.name}: the {name} set of triplets is {wanted}")
    texts = (text for e in data.examples for text in (e.first, e.second) if text is not None and text.strip())
    every = np.unique(np.array([number.setdefault(text, len(number)) for text in texts], np.int64))
    labelled: list[tuple[list[int], float]] = []  # where the label is known and no text is blank
    for e in data.examples:
        own = [number.get(text, -1) for text in (e.first, e.second) if text is not None]
        if e.label is not None and min(own) >= 0:
            labelled.append((own, e.label))
    if name == "quora":  # paraphrases are the second class, such as 1 of 0 and 1
        same = [(a, b) for (a, b), label in labelled if label == 1 and a != b]
        far = np.unique(np.array([text for pair, label in labelled if label != 1 for text in pair], np.int64))
        near = {text: {text} for text in every.tolist()}  # paraphrases, those through others too
        for a, b in same:
            joined = near[a] | near[b]
            near.update(dict.fromkeys(joined, joined))
        kind = {text: min(cluster) for text, cluster in near.items()}
        return _Mined(np.array(same, np.int64).reshape(-1, 2), kind, far, every)
    # Classes are kinds as they are; of scores each half is one, and those between say nothing.
    kinds: dict[int, set[int]] = {}
    for own, label in labelled:
        if name == "sst" or not 2 < label < 3:
            for text in own:
                kinds.setdefault(text, set()).add(int(label if name == "sst" else label >= 3))
    # Texts of two kinds are left out, and anchors that are alone in theirs.
    one = {text: next(iter(own)) for text, own in kinds.items() if len(own) == 1}
    counts = Counter(one.values())
    anchors = np.array([text for text, own in one.items() if counts[own] > 1], np.int64)
    return _Mined(anchors[:, None], one, np.array(list(one), np.int64), every)


def _rows(
    name: TripletSet, mine: _Mined, others: list[NDArray[np.int64]], texts: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(A, K) the rows of one set's anchors."""
    rows, kind = mine.rows, np.full(texts, -1, np.int64)
    kind[list(mine.kind)] = list(mine.kind.values())

    def add(pool: NDArray[np.int64], alike: bool | None = None) -> None:
        """A text from the pool that is not in its row yet, of the anchor's kind, of another (False), or of any."""
        nonlocal rows
        found, missing = np.full(len(rows), -1, np.int64), np.arange(len(rows))
        while len(missing):  # what does not suit is drawn again
            drawn = pool[rng.integers(len(pool), size=len(missing))]
            suits = (rows[missing] != drawn[:, None]).all(axis=1)
            if alike is not None:
                suits &= (kind[drawn] == kind[rows[missing, 0]]) == alike
            found[missing[suits]] = drawn[suits]
            missing = missing[~suits]
        rows = np.column_stack([rows, found])

    # Where too few texts are far from an anchor, drawing would never end.
    counts = Counter(kind[mine.far].tolist())
    near = max((counts[k] for k in np.unique(kind[rows[:, 0]]).tolist()), default=0)
    if len(rows) == 0 or len(mine.far) - near < _NEGATIVES:
        raise DataError(f"{name} has too few texts: an anchor needs one of its kind, {_NEGATIVES} of another")
    if rows.shape[1] == 1:
        add(np.array(list(mine.kind), np.int64), alike=True)
    for _ in range(_NEGATIVES):
        add(mine.far, alike=False)
    for every in others:
        if len(every) <= rows.shape[1]:
            raise DataError(f"a set with only {len(every)} texts is too small for triplets: leave it out")
        add(every)
    return rows


def triplet_windows(data: TripletData, tokenizer: "PreTrainedTokenizerBase", config: WindowConfig) -> Windows:
    """(E * K) windows, the K of a row side by side; labels (W, 1) zeros. A longer text is read through its first."""
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
    example = np.repeat(np.arange(len(data)), data.groups.shape[1]).astype(np.int32)
    return replace(windows, example=example, labels=np.zeros((len(windows), 1), np.int32))
