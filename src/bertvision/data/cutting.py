"""Text becomes windows: each text is tokenised once, long ones are cut, and one gather assembles all windows.

The tokenizer's own pair call would tokenise a paragraph again for each question about it. Here texts are tokenised by
themselves, without special tokens, and `PairTemplate` says how that tokenizer joins two:

    [prefix] first [middle] second [suffix]        e.g. <s> question </s></s> paragraph </s>

The windows of one example begin `step` tokens apart and hold at most `room` tokens of the text that is cut; all
but the last are full.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import atomic_file
from bertvision.data.examples import SpanData, TextData, content_hash
from bertvision.data.windows import (
    WindowConfig,
    Windows,
    pack_windows,
    ragged_offsets,
    spread,
    unpack_windows,
)
from bertvision.errors import ConfigError, DataError, EncoderError, OutputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

SCHEMA = 2  # raise it whenever `make_windows` gives other arrays for the same input

# Texts a call: enough to keep every core busy, few enough that the tokenizer's own objects, some 50 times
# larger than the arrays made of them, never pile up.
_CHUNK = 4096

# ---- tokens


@dataclass(frozen=True)
class PairTemplate:
    """Ids a tokenizer puts around two texts; a single text is the second, without a first and a middle."""

    prefix: tuple[int, ...]
    middle: tuple[int, ...]
    suffix: tuple[int, ...]
    types: tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]]
    """Segment ids of prefix, first, middle, second and suffix."""
    null: int  # position that means "no answer", counted from the end where negative

    @property
    def special(self) -> tuple[int, ...]:
        return self.prefix + self.middle + self.suffix


@dataclass(frozen=True)
class Ragged:
    """Tokens of many texts, one after the other; those of text `i` are `offsets[i]` to `offsets[i + 1]`."""

    ids: NDArray[np.int32]  # (N,)
    offsets: NDArray[np.int64]  # (texts + 1,)
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
    """Read the template of two texts, or of one, off the tokenizer's own encoding."""
    texts = ["Who was there?", "She was there, and so was he."][not pair :]
    with _backend(tokenizer) as backend:
        whole = backend.encode(*texts)
        alone = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    ids, sides = whole.ids, list(enumerate(whole.sequence_ids))
    types = whole.type_ids if segments and "token_type_ids" in tokenizer.model_input_names else [0] * len(ids)
    special = [i for i, side in sides if side is None]
    at = [[i for i, _ in run] for side, run in groupby(sides, itemgetter(1)) if side is not None]
    refused = f"the tokenizer of {tokenizer.name_or_path} %s; choose another encoder"
    if not special or not all(alone) or [[ids[i] for i in own] for own in at] != alone:
        raise EncoderError(refused % "does not keep texts whole between special tokens")
    c, c_end = at[-1][0], at[-1][-1] + 1
    q, q_end = (at[0][0], at[0][-1] + 1) if pair else (c, c)
    # The classification token means "no answer"; where a tokenizer has none, the first special token does.
    null = next((i for i in special if ids[i] == tokenizer.cls_token_id), special[0])
    if q <= null < c:
        raise EncoderError(refused % "puts its [CLS] between the texts")
    return PairTemplate(
        prefix=tuple(ids[:q]), middle=tuple(ids[q_end:c]), suffix=tuple(ids[c_end:]),
        types=(tuple(types[:q]), types[q] if pair else 0, tuple(types[q_end:c]), types[c], tuple(types[c_end:])),
        null=null if null < q else null - len(ids),
    )  # fmt: skip


def _tokenise(texts: Sequence[str], tokenizer: "PreTrainedTokenizerBase", *, chars: bool) -> Ragged:
    """The tokens of each text by itself, without special tokens."""
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
                places.append(np.fromiter(chain.from_iterable(pairs), np.int32, 2 * count).reshape(-1, 2))
                _trim(places[-1], chunk, lengths[-1])
    offsets = ragged_offsets(np.concatenate(lengths))
    return Ragged(np.concatenate(ids), offsets, np.concatenate(places) if chars else None)


def _trim(chars: NDArray[np.int32], texts: Sequence[str], lengths: NDArray[np.int64]) -> None:
    """Move token starts past the white space that byte-level and SentencePiece tokenizers count to a word."""
    letters = np.frombuffer("".join(texts).encode("utf-32-le"), "<U1")
    # (letters + 1,) the next one that is no white space; an empty token may stand one past the last.
    solid = np.where(np.append(np.strings.isspace(letters), False), len(letters), np.arange(len(letters) + 1))
    solid = np.minimum.accumulate(solid[::-1])[::-1]
    base = np.repeat(ragged_offsets(np.fromiter(map(len, texts), np.int64, len(texts)))[:-1], lengths)
    begin, end = chars.T
    chars[:, 0] = np.where(begin < end, np.minimum(solid[base + begin] - base, end), begin)


# ---- where windows begin


@dataclass(frozen=True)
class Cut:
    """Where windows begin in the context, the text that is cut: of a question the paragraph, else the longer text."""

    kept: NDArray[np.int64]  # (E,) tokens of the other text that stand in every window
    document: NDArray[np.int64]  # (E,) tokens of the context
    second: NDArray[np.bool_]  # (E,) whether the context is the second text
    example: NDArray[np.int64]  # (W,)
    begin: NDArray[np.int64]  # (W,) first context token, counted in the context
    length: NDArray[np.int64]  # (W,) context tokens


def _cut(data: SpanData | TextData, lengths: NDArray[np.int64], special: int, config: WindowConfig) -> Cut:
    """Cut pairs of texts of `lengths` (E, 2) tokens."""
    spans = isinstance(data, SpanData)
    whole = config.max_seq_length - special
    second = (lengths[:, 1] >= lengths[:, 0]) | spans
    kept, document = np.where(second[:, None], lengths, lengths[:, ::-1]).T
    if spans:
        most = config.max_query_length
        too_long = kept > most
        what = f"questions are longer than {most} tokens and are cut (--max-query-length)"
    else:
        most = whole // 2
        too_long = (kept > most) & (kept + document > whole)
        what = f"pairs have two long texts; the shorter is cut off at {most} tokens (--max-seq-length)"
    _warn(data, too_long, what)
    kept = np.where(too_long, most, kept)
    if config.apart:
        what = f"texts are longer than {whole} tokens and are cut off (--max-seq-length)"
        _warn(data, document > whole, what)
        document = np.minimum(document, whole)
    room = whole - kept
    shared = config.doc_stride if config.stride == "overlap" else 0
    narrow = (room < 1) | ((document > room) & (room <= shared))
    if narrow.any():
        worst = int(np.where(narrow, room, whole).argmin())
        beyond = f" beyond the overlap of {shared}" if shared else ""
        flags = [*["--doc-stride"] * (shared > 0), *["--max-query-length"] * spans]
        raise DataError(
            f"{data.name}: {'question' if spans else 'example'} {data.examples[worst].id} takes "
            f"{kept[worst] + special} tokens with its special tokens and leaves no room for the text that is cut"
            f"{beyond} in a window of {config.max_seq_length}; raise --max-seq-length"
            + (f" or lower {' or '.join(flags)}" if flags else "")
        )
    if config.stride == "overlap":
        step = np.where(document > room, room - shared, room)
    else:
        step = np.minimum(room, config.doc_stride)
    # Every example has a window, even one whose context the tokenizer turns into nothing.
    count = 1 + np.maximum(0, -((room - document) // step))
    example = np.repeat(np.arange(len(kept)), count)
    begin = spread(np.zeros(len(count), np.int64), count) * step[example]
    length = np.minimum(document[example] - begin, room[example])
    return Cut(kept, document, second, example, begin, length)


def _warn(data: SpanData | TextData, which: NDArray[np.bool_], what: str) -> None:
    if which.any():
        logger.warning("%s: %d of %d %s", data.name, which.sum(), len(which), what)


def _max_context(cut: Cut) -> NDArray[np.bool_]:
    """Whether each context token of each window has its maximal context there, by Google's rule. That is the window
    with the largest min(tokens to the left, to the right) + 0.01 * length, the first of equals."""
    best = np.ones(int(cut.length.sum()), bool)
    several = (np.bincount(cut.example) > 1)[cut.example]
    lengths = cut.length[several]
    length, left = np.repeat(lengths, lengths), spread(np.zeros(len(lengths), np.int64), lengths)
    score = np.minimum(left, length - 1 - left) + 0.01 * length
    begin = ragged_offsets(cut.document)[cut.example] + cut.begin
    token = spread(begin[several], lengths)  # counted over all contexts
    order = np.lexsort((-score, token))  # stable: of equals the first
    highest = np.zeros(len(token), bool)
    highest[order] = np.diff(token[order], prepend=-1) > 0
    best[np.repeat(several, cut.length)] = highest
    return best


# ---- windows


def make_windows(
    data: SpanData | TextData, tokenizer: "PreTrainedTokenizerBase", config: WindowConfig
) -> Windows:
    """Cut every example of `data` into labelled windows; questions are labelled by their first answer. The tokenizer
    must be a fast one. The caller checks that the encoder has as many positions as a window."""
    spans = data if isinstance(data, SpanData) else data.spans
    if spans is not None:
        if config.apart:
            raise ConfigError("--apart is for pairs with a label or a score, not for questions: leave it out")
        windows = _windows(spans, [(e.question, spans.context(e)) for e in spans.examples], tokenizer, config)
        if isinstance(data, SpanData):
            return windows
        # (W, 1) 1 where the answer is not inside a window, 0 where it is, -1 where it is not known
        missing = windows.labels[:, :1] == windows.null[:, None]
        known = np.array([e.label is not None for e in data.examples])[windows.example, None]
        return replace(windows, labels=np.where(known, missing, -1).astype(np.int32))
    assert isinstance(data, TextData)
    apart = config.apart and data.pairs
    pairs = [(e.first, e.second) if e.second is not None else ("", e.first) for e in data.examples]
    pairs = [("", one) for pair in pairs for one in pair] if apart else pairs
    windows = _windows(data, pairs, tokenizer, replace(config, apart=apart))
    example = windows.example // 2 if apart else windows.example
    unknown, dtype = (np.nan, np.float32) if data.kind == "score" else (-1, np.int32)
    labels = np.array([unknown if e.label is None else e.label for e in data.examples], dtype)
    return replace(windows, example=example, labels=labels[example, None])


def _windows(
    data: SpanData | TextData,
    pairs: list[tuple[str, str]],
    tokenizer: "PreTrainedTokenizerBase",
    config: WindowConfig,
) -> Windows:
    """Windows of pairs of texts, or of ("", text); labelled where they are questions and paragraphs."""
    spans = isinstance(data, SpanData)
    joined = isinstance(data, SpanData) or (data.pairs and not config.apart)
    template = probe_template(tokenizer, pair=joined, segments=config.segments)
    numbers: dict[str, int] = {}
    of = np.array([numbers.setdefault(text, len(numbers)) for pair in pairs for text in pair], np.int64)
    of = of.reshape(-1, 2)  # which texts an example has: each different text is tokenised once
    tokens = _tokenise(list(numbers), tokenizer, chars=spans)
    cut = _cut(data, tokens.lengths[of], len(template.special), config)
    windows = _assemble(tokens, of, cut, template)
    if not spans:
        return windows
    answer = _answer_tokens(data, tokens, of[:, 1])[cut.example]
    inside = (answer[:, 0] >= cut.begin) & (answer[:, 1] < cut.begin + cut.length)
    in_window = answer - cut.begin[:, None] + windows.context[:, :1]
    labels = np.where(inside[:, None], in_window, windows.null[:, None]).astype(np.int32)
    return replace(windows, labels=labels)


def _assemble(tokens: Ragged, of: NDArray[np.int64], cut: Cut, template: PairTemplate) -> Windows:
    """All windows, without labels; `of` (E, 2) says which texts of `tokens` an example has."""
    # The pool: special tokens, then the tokens of all texts.
    fixed = np.array(template.special, np.int32)
    prefix, middle, suffix = len(template.prefix), len(template.middle), len(template.suffix)
    second, kept = cut.second[cut.example], cut.kept[cut.example]  # (W,)
    first_at, second_at = len(fixed) + tokens.offsets[of[cut.example]].T  # (W,) each

    def pieces(*each: Any) -> NDArray[Any]:
        """(5 W,) a value for each piece of each window."""
        return np.stack(np.broadcast_arrays(*each, kept)[:5], axis=1).ravel()

    begins = pieces(
        0, first_at + np.where(second, 0, cut.begin), prefix,
        second_at + np.where(second, cut.begin, 0), prefix + middle,
    )  # fmt: skip
    lengths = pieces(
        prefix, np.where(second, kept, cut.length), middle, np.where(second, cut.length, kept), suffix
    )
    source = spread(begins, lengths)
    in_context = np.repeat(pieces(False, ~second, False, second, False), lengths)
    types = np.repeat(pieces(0, template.types[1], 0, template.types[3], 0).astype(np.uint8), lengths)
    special = np.flatnonzero(source < len(fixed))
    of_special = np.array(template.types[0] + template.types[2] + template.types[4], np.uint8)
    types[special] = of_special[source[special]]
    offsets = ragged_offsets(lengths.reshape(-1, 5).sum(axis=1))
    begin = prefix + np.where(second, kept + middle, 0)
    chars = np.full((len(source), 2), -1, np.int32)
    if tokens.chars is not None:
        chars[in_context] = tokens.chars[source[in_context] - len(fixed)]
    best = in_context.copy()
    best[in_context] = _max_context(cut)
    return Windows(
        ids=np.concatenate([fixed, tokens.ids])[source],
        types=types,
        chars=chars,
        offsets=offsets,
        example=cut.example.astype(np.int32),
        context=np.stack([begin, begin + cut.length], axis=1).astype(np.int32),
        labels=np.zeros((len(kept), 0), np.int32),
        null=(template.null + (template.null < 0) * np.diff(offsets)).astype(np.int32),
        best=best,
    )


def _answer_tokens(data: SpanData, tokens: Ragged, paragraph: NDArray[np.int64]) -> NDArray[np.int64]:
    """(examples, 2) first and last token of the first answer, counted in the paragraph; (-1, -1) without one. The first
    token is the first that ends after the answer begins, the last the last that begins before it ends. Both are looked
    up for all examples at once: number of the text and character offset make one ascending key."""
    answers = [e.answers[0] if e.answers else None for e in data.examples]
    ends = [(a.start, a.start + len(a.text)) if a else (-1, -1) for a in answers]
    spans = np.array(ends, np.int64).reshape(-1, 2)
    has_answer = spans[:, 0] >= 0
    assert tokens.chars is not None
    stretch = int(max(tokens.chars.max(initial=0), spans.max(initial=0))) + 1
    bases = np.repeat(np.arange(len(tokens.lengths)) * stretch, tokens.lengths)
    # A normaliser may reorder characters; the running maximum keeps the keys ascending all the same.
    begins, ends = np.maximum.accumulate(bases[:, None] + tokens.chars, axis=0).T
    wanted = paragraph[:, None] * stretch + spans
    first = np.searchsorted(ends, wanted[:, 0], side="right") - tokens.offsets[paragraph]
    last = np.searchsorted(begins, wanted[:, 1], side="left") - 1 - tokens.offsets[paragraph]
    # An answer of characters the tokenizer drops has no token.
    found = has_answer & (first <= last) & (first >= 0) & (last < tokens.lengths[paragraph])
    _warn(data, has_answer & ~found, "answers have no token of their own and count as unanswerable")
    return np.where(found[:, None], np.stack([first, last], axis=1), -1)


# ---- windows on disk


def default_cache_dir() -> Path:
    """The folder named by BERTVISION_CACHE, or ~/.cache/bertvision."""
    named = os.environ.get("BERTVISION_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "bertvision"


def windows_for(
    data: SpanData | TextData,
    tokenizer: "PreTrainedTokenizerBase",
    config: WindowConfig,
    *,
    tokenizer_fingerprint: str,
    cache_dir: Path | None,
) -> tuple[Windows, str]:
    """The windows of `data` and a hash of everything that decides them. They are read from `cache_dir` (usually
    `default_cache_dir()`) where they are kept, else made and kept there; None keeps nothing. `tokenizer_fingerprint` is
    any hash of the tokenizer's files."""
    # Which token means "no answer" and whether there are segment ids stand in the tokenizer's config, which a hash of
    # its vocabulary alone does not see.
    templates = [asdict(probe_template(tokenizer, pair=pair)) for pair in (True, False)]
    key = content_hash([SCHEMA, data.fingerprint, tokenizer_fingerprint, templates, asdict(config)])
    if cache_dir is None:
        return make_windows(data, tokenizer, config), key
    path = cache_dir / "windows" / f"{key}.safetensors"
    with suppress(OSError):  # not there yet, or not to be read
        windows = unpack_windows(path.read_bytes())
        if windows is not None:
            return windows, key
        logger.warning("%s is damaged; its windows are made again", path)
    windows = make_windows(data, tokenizer, config)
    try:
        with atomic_file(path) as temporary:
            temporary.write_bytes(pack_windows(windows))
    except (OutputError, OSError) as error:
        logger.warning("windows are not kept in %s: %s", path, error)
    return windows, key
