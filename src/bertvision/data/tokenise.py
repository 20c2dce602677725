"""Text becomes flat arrays of tokens: each question and each paragraph once, in batches.

The tokenizer's own pair call would tokenise a paragraph again for each question about it. Here the two
sides are tokenised apart, without special tokens, and `PairTemplate` says how that tokenizer joins them:

    [prefix] question [middle] context [suffix]        e.g. <s> question </s></s> context </s>

The template is read off one real pair, so no special token, segment id or order is assumed.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertvision.errors import EncoderError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "PairTemplate",
    "Ragged",
    "probe_single",
    "probe_template",
    "tokenise_paragraphs",
    "tokenise_questions",
]

# Texts a call: enough to keep every core busy, few enough that the tokenizer's own objects, some 50 times
# larger than the arrays made of them, never pile up.
_CHUNK = 4096

# Which code points are white space; none lies above U+3000, and the last entry stands for all above.
_SPACES = np.array([chr(point).isspace() for point in range(0x3002)])


@dataclass(frozen=True)
class PairTemplate:
    """How a tokenizer joins a question and a context."""

    prefix: tuple[int, ...]
    """Ids before the question; `middle` those before the context, `suffix` those after it."""
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    types: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]
    """Segment ids of prefix, question, middle, context and suffix."""
    null: int
    """Position that means "no answer", counted from the end where negative."""

    @property
    def num_special(self) -> int:
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    @property
    def fingerprint(self) -> str:
        return json.dumps(asdict(self))

    def without_types(self) -> "PairTemplate":
        """The same template with all segment ids 0."""
        prefix, _, middle, _, suffix = self.types
        types = ((0,) * len(prefix), 0, (0,) * len(middle), 0, (0,) * len(suffix))
        return replace(self, types=types)


@dataclass(frozen=True)
class Ragged:
    """Tokens of many texts, one after the other; those of text `i` are `offsets[i]` to `offsets[i + 1]`."""

    ids: NDArray[np.int32]
    """(N,)"""
    offsets: NDArray[np.int64]
    """(texts + 1,)"""
    chars: NDArray[np.int32]
    """(N, 2) first character and one past the last, white space in front left out; (0, 2) for questions."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


@contextmanager
def _backend(tokenizer: "PreTrainedTokenizerBase") -> Iterator[Any]:
    """The Rust tokenizer with truncation and padding, which some tokenizer files switch on, off."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise EncoderError(f"{tokenizer.name_or_path} has no fast tokenizer; choose an encoder that has one")
    truncation, padding = backend.truncation, backend.padding
    backend.no_truncation()
    backend.no_padding()
    try:
        yield backend
    finally:
        if truncation is not None:
            backend.enable_truncation(**truncation)
        if padding is not None:
            backend.enable_padding(**padding)


def probe_template(tokenizer: "PreTrainedTokenizerBase") -> PairTemplate:
    """Read the pair template off the tokenizer's own encoding of one pair."""
    question, context = "Who was there?", "She was there, and so was he."
    with _backend(tokenizer) as backend:
        pair = backend.encode(question, context)
        apart = [backend.encode(text, add_special_tokens=False).ids for text in (question, context)]
    sides = [(-1 if side is None else side) for side in pair.sequence_ids]
    ids, has_types = pair.ids, "token_type_ids" in tokenizer.model_input_names
    types = pair.type_ids if has_types else [0] * len(ids)
    name = tokenizer.name_or_path
    if 0 not in sides or 1 not in sides:
        raise EncoderError(
            f"the tokenizer of {name} makes no tokens of plain English; choose another encoder"
        )
    q, c = sides.index(0), sides.index(1)
    q_end, c_end = q + len(apart[0]), c + len(apart[1])
    expected = (
        [-1] * q + [0] * (q_end - q) + [-1] * (c - q_end) + [1] * (c_end - c) + [-1] * (len(ids) - c_end)
    )
    if sides != expected or ids[q:q_end] != apart[0] or ids[c:c_end] != apart[1]:
        raise EncoderError(
            f"the tokenizer of {name} does not keep question and context apart; choose another encoder"
        )
    segments = (types[:q], types[q_end:c], types[c_end:])
    # The classification token means "no answer"; where a tokenizer has none, the first token does.
    special = [i for i, side in enumerate(sides) if side < 0 and ids[i] == tokenizer.cls_token_id]
    null = special[0] if special else 0
    if null >= q:
        null -= len(ids)
        if -null > len(ids) - c_end:
            raise EncoderError(
                f"the tokenizer of {name} puts its [CLS] between the texts; choose another encoder"
            )
    return PairTemplate(
        prefix=tuple(ids[:q]), middle=tuple(ids[q_end:c]), suffix=tuple(ids[c_end:]),
        types=(tuple(segments[0]), types[q], tuple(segments[1]), types[c], tuple(segments[2])),
        null=null,
    )  # fmt: skip


def probe_single(tokenizer: "PreTrainedTokenizerBase") -> PairTemplate:
    """The template of a single text: that of a pair whose first text and what follows it are empty."""
    text = "She was there, and so was he."
    with _backend(tokenizer) as backend:
        whole = backend.encode(text)
        bare = backend.encode(text, add_special_tokens=False).ids
    ids, name = whole.ids, tokenizer.name_or_path
    begin = next((i for i, side in enumerate(whole.sequence_ids) if side is not None), 0)
    end = begin + len(bare)
    if not bare or ids[begin:end] != bare:
        raise EncoderError(
            f"the tokenizer of {name} changes a text between its marks; choose another encoder"
        )
    types = whole.type_ids if "token_type_ids" in tokenizer.model_input_names else [0] * len(ids)
    marks = [*range(begin), *range(end, len(ids))]
    if not marks:
        raise EncoderError(f"the tokenizer of {name} puts no mark around a text; choose another encoder")
    null = next((i for i in marks if ids[i] == tokenizer.cls_token_id), marks[0])
    return PairTemplate(
        prefix=tuple(ids[:begin]), middle=(), suffix=tuple(ids[end:]),
        types=(tuple(types[:begin]), 0, (), types[begin], tuple(types[end:])),
        null=null if null < begin else null - len(ids),
    )  # fmt: skip


def tokenise_questions(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase") -> Ragged:
    """Ids of each text, without special tokens and without character offsets."""
    ids, lengths = [], []
    with _backend(tokenizer) as backend:
        for begin in range(0, len(texts), _CHUNK):
            lists = [
                e.ids
                for e in backend.encode_batch_fast(texts[begin : begin + _CHUNK], add_special_tokens=False)
            ]
            lengths.append(np.fromiter(map(len, lists), np.int64, len(lists)))
            ids.append(np.fromiter(chain.from_iterable(lists), np.int32, int(lengths[-1].sum())))
    return Ragged(_join(ids, np.int32), _cumulative(_join(lengths, np.int64)), np.zeros((0, 2), np.int32))


def tokenise_paragraphs(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase") -> Ragged:
    """Ids and character offsets of each text, without special tokens."""
    ids, lengths, chars = [], [], []
    with _backend(tokenizer) as backend:
        for begin in range(0, len(texts), _CHUNK):
            chunk = texts[begin : begin + _CHUNK]
            encoded = backend.encode_batch(chunk, add_special_tokens=False)
            lists = [e.ids for e in encoded]
            lengths.append(np.fromiter(map(len, lists), np.int64, len(lists)))
            count = int(lengths[-1].sum())
            ids.append(np.fromiter(chain.from_iterable(lists), np.int32, count))
            # One flat walk over the (start, end) tuples: half the time of an array for each text.
            pairs = chain.from_iterable(e.offsets for e in encoded)
            flat = np.fromiter(chain.from_iterable(pairs), np.int32, 2 * count)
            chars.append(_trim(flat.reshape(-1, 2), chunk, lengths[-1]))
    return Ragged(_join(ids, np.int32), _cumulative(_join(lengths, np.int64)), _join(chars, np.int32, (0, 2)))


def _trim(chars: NDArray[np.int32], texts: Sequence[str], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """Move token starts past white space.

    Byte-level and SentencePiece tokenizers count the space in front of a word to the word; an answer cut
    at such an offset would begin with a space.
    """
    points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    bases = _cumulative(np.fromiter(map(len, texts), np.int64, len(texts)))[:-1]
    at = chars[:, 0] + np.repeat(bases, lengths)
    # An empty token may stand one past the last character.
    starts_on_space = _is_space(points[np.minimum(at, len(points) - 1)]) & (chars[:, 1] > chars[:, 0])
    if not starts_on_space.any():
        return chars
    places = np.arange(len(points) + 1)
    places[:-1][_is_space(points)] = len(points)
    next_word = np.minimum.accumulate(places[::-1])[::-1]  # nearest non-space at or after each character
    starts = np.minimum(next_word[at] - (at - chars[:, 0]), chars[:, 1])
    return np.stack([np.where(starts_on_space, starts, chars[:, 0]), chars[:, 1]], axis=1).astype(np.int32)


def _is_space(points: NDArray[np.uint32]) -> NDArray[np.bool_]:
    return _SPACES[np.minimum(points, len(_SPACES) - 1)]


def _join(parts: Sequence[NDArray[Any]], dtype: Any, empty: tuple[int, ...] = (0,)) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(empty, dtype)


def _cumulative(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of the ragged pieces begins, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])
