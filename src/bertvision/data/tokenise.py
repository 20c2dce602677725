"""Text becomes flat arrays of tokens: each text once, in batches.

The tokenizer's own pair call would tokenise a paragraph again for each question about it. Here texts are tokenised by
themselves, without special tokens, and `PairTemplate` says how that tokenizer joins two:

    [prefix] first [middle] second [suffix]        e.g. <s> question </s></s> paragraph </s>

The template is read off one real encoding, so no special token, segment id or order is assumed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.cutting import ragged_offsets
from bertvision.errors import EncoderError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["PairTemplate", "Ragged", "probe_template", "tokenise"]

# Texts a call: enough to keep every core busy, few enough that the tokenizer's own objects, some 50 times
# larger than the arrays made of them, never pile up.
_CHUNK = 4096

# Which code points are white space; none lies above U+3000, and the last entry stands for all above.
_SPACES = np.array([chr(point).isspace() for point in range(0x3002)])


@dataclass(frozen=True)
class PairTemplate:
    """How a tokenizer joins two texts; a single text is the second, without a first and a middle."""

    prefix: tuple[int, ...]
    """Ids before the first text; `middle` those before the second, `suffix` those after it."""
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    types: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]
    """Segment ids of prefix, first, middle, second and suffix."""
    null: int
    """Position that means "no answer", counted from the end where negative."""

    @property
    def num_special(self) -> int:
        return len(self.prefix) + len(self.middle) + len(self.suffix)

    @property
    def special_types(self) -> NDArray[np.uint8]:
        """(num_special,) segment ids of the special tokens."""
        return np.array(self.types[0] + self.types[2] + self.types[4], np.uint8)

    @property
    def piece_types(self) -> NDArray[np.uint8]:
        """(5,) segment ids of the pieces; 0 for those of special tokens."""
        return np.array([0, self.types[1], 0, self.types[3], 0], np.uint8)


@dataclass(frozen=True)
class Ragged:
    """Tokens of many texts, one after the other; those of text `i` are `offsets[i]` to `offsets[i + 1]`."""

    ids: NDArray[np.int32]
    """(N,)"""
    offsets: NDArray[np.int64]
    """(texts + 1,)"""
    chars: NDArray[np.int32] | None
    """(N, 2) first character and one past the last, white space in front left out; None where not asked for."""

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


def probe_template(
    tokenizer: "PreTrainedTokenizerBase", *, pair: bool = True, segments: bool = True
) -> PairTemplate:
    """Read the template of two texts, or of one, off the tokenizer's own encoding.

    Without `segments` all segment ids are 0, as they are where the encoder has none.
    """
    texts = ["Who was there?", "She was there, and so was he."] if pair else ["She was there, and so was he."]
    with _backend(tokenizer) as backend:
        whole = backend.encode(*texts)
        apart = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    ids, name = whole.ids, tokenizer.name_or_path
    has_types = segments and "token_type_ids" in tokenizer.model_input_names
    types = whole.type_ids if has_types else [0] * len(ids)
    sides = [-1 if side is None else side for side in whole.sequence_ids]
    if not all(apart) or not set(range(len(texts))) <= set(sides):
        raise EncoderError(
            f"the tokenizer of {name} makes no tokens of plain English; choose another encoder"
        )
    ranges = [(sides.index(i), sides.index(i) + len(own)) for i, own in enumerate(apart)]
    (q, q_end), (c, c_end) = ranges if pair else ((ranges[0][0], ranges[0][0]), ranges[0])
    expected = (
        [-1] * q + [0] * (q_end - q) + [-1] * (c - q_end) + [1] * (c_end - c) + [-1] * (len(ids) - c_end)
    )
    kept = all(ids[begin:end] == own for (begin, end), own in zip(ranges, apart, strict=True))
    if not kept or (pair and sides != expected):
        raise EncoderError(
            f"the tokenizer of {name} does not keep texts and special tokens apart; choose another encoder"
        )
    special = [*range(q), *range(q_end, c), *range(c_end, len(ids))]
    if not special:
        raise EncoderError(
            f"the tokenizer of {name} puts no special token around a text; choose another encoder"
        )
    # The classification token means "no answer"; where a tokenizer has none, the first special token does.
    null = next((i for i in special if ids[i] == tokenizer.cls_token_id), special[0])
    if q <= null < c:
        raise EncoderError(
            f"the tokenizer of {name} puts its [CLS] between the texts; choose another encoder"
        )
    return PairTemplate(
        prefix=tuple(ids[:q]), middle=tuple(ids[q_end:c]), suffix=tuple(ids[c_end:]),
        types=(tuple(types[:q]), types[q] if pair else 0, tuple(types[q_end:c]), types[c], tuple(types[c_end:])),
        null=null if null < q else null - len(ids),
    )  # fmt: skip


def tokenise(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase", *, chars: bool = False) -> Ragged:
    """Ids of each text without special tokens; with `chars` also where each token stands in its text."""
    ids, lengths, places = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)], [np.zeros((0, 2), np.int32)]
    with _backend(tokenizer) as backend:
        encode = backend.encode_batch if chars else backend.encode_batch_fast
        for begin in range(0, len(texts), _CHUNK):
            chunk = texts[begin : begin + _CHUNK]
            encoded = encode(chunk, add_special_tokens=False)
            lists = [e.ids for e in encoded]
            lengths.append(np.fromiter(map(len, lists), np.int64, len(lists)))
            count = int(lengths[-1].sum())
            ids.append(np.fromiter(chain.from_iterable(lists), np.int32, count))
            if chars:
                # One flat walk over the (start, end) tuples: half the time of an array for each text.
                pairs = chain.from_iterable(e.offsets for e in encoded)
                flat = np.fromiter(chain.from_iterable(pairs), np.int32, 2 * count)
                places.append(_trim(flat.reshape(-1, 2), chunk, lengths[-1]))
    offsets = ragged_offsets(np.concatenate(lengths))
    return Ragged(np.concatenate(ids), offsets, np.concatenate(places) if chars else None)


def _trim(chars: NDArray[np.int32], texts: Sequence[str], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """Move token starts past white space.

    Byte-level and SentencePiece tokenizers count the space in front of a word to the word; an answer cut
    at such an offset would begin with a space.
    """
    points = np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32)
    bases = ragged_offsets(np.fromiter(map(len, texts), np.int64, len(texts)))[:-1]
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
