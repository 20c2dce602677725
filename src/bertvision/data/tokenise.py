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

from bertvision.data.windows import ragged_offsets
from bertvision.errors import EncoderError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
    def special(self) -> tuple[int, ...]:
        return self.prefix + self.middle + self.suffix


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
    texts = ["Who was there?", "She was there, and so was he."][not pair :]
    with _backend(tokenizer) as backend:
        whole = backend.encode(*texts)
        alone = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    ids = whole.ids
    types = whole.type_ids if segments and "token_type_ids" in tokenizer.model_input_names else [0] * len(ids)
    at = [[i for i, side in enumerate(whole.sequence_ids) if side == text] for text in range(len(texts))]
    special = [i for i, side in enumerate(whole.sequence_ids) if side is None]
    kept = special and all(alone) and [[ids[i] for i in own] for own in at] == alone
    if not kept or any(own != list(range(own[0], own[-1] + 1)) for own in at) or at != sorted(at):
        raise EncoderError(
            f"the tokenizer of {tokenizer.name_or_path} does not keep texts whole between special tokens; "
            "choose another encoder"
        )
    c, c_end = at[-1][0], at[-1][-1] + 1
    q, q_end = (at[0][0], at[0][-1] + 1) if pair else (c, c)
    # The classification token means "no answer"; where a tokenizer has none, the first special token does.
    null = next((i for i in special if ids[i] == tokenizer.cls_token_id), special[0])
    if q <= null < c:
        raise EncoderError(
            f"the tokenizer of {tokenizer.name_or_path} puts its [CLS] between the texts; choose another encoder"
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
    # An empty token may stand one past the last character.
    space = np.append(_SPACES[np.minimum(points, len(_SPACES) - 1)], False)
    bases = ragged_offsets(np.fromiter(map(len, texts), np.int64, len(texts)))[:-1]
    at = np.repeat(bases, lengths)
    moving = np.arange(len(chars))
    while True:
        begin, end = chars[moving].T
        moving = moving[(begin < end) & space[at[moving] + begin]]
        if not len(moving):
            return chars
        chars[moving, 0] += 1
