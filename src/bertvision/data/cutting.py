"""Where long texts are cut into windows, and which window shows a token best.

The windows of one example begin `step` tokens apart and hold at most `room` tokens of the text that is cut; all
but the last are full. `spread` is the one gather everything is assembled with.
"""

import logging
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import atomic_file
from bertvision.data.examples import SpanData, TextData, content_hash
from bertvision.data.tokenise import PairTemplate, Ragged, probe_template, tokenise
from bertvision.data.windows import (
    WindowConfig,
    Windows,
    pack_windows,
    ragged_offsets,
    spread,
    unpack_windows,
)
from bertvision.errors import ConfigError, DataError, OutputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Cut:
    """Where the windows of each example begin; arrays of (examples,) first, of (W,) below.

    The text that is cut is called the context: of a question the paragraph, of a pair the longer text.
    """

    kept: NDArray[np.int64]  # tokens of the other text that stand in every window
    document: NDArray[np.int64]  # tokens of the context
    room: NDArray[np.int64]  # most context tokens in a window
    step: NDArray[np.int64]  # tokens between the beginnings of windows
    count: NDArray[np.int64]  # windows

    example: NDArray[np.int64]  # which example
    number: NDArray[np.int64]  # which window of its example
    begin: NDArray[np.int64]  # first context token, counted in the context
    length: NDArray[np.int64]  # context tokens


def cut_evenly(
    kept: NDArray[np.int64], document: NDArray[np.int64], *, room: NDArray[np.int64], step: NDArray[np.int64]
) -> Cut:
    """Windows of at most `room` tokens, `step` apart, until every token of the context is in one."""
    # Every example has a window, even one whose context the tokenizer turns into nothing.
    count = 1 + np.maximum(0, -((room - document) // step))
    example = np.repeat(np.arange(len(kept)), count)
    number = spread(np.zeros(len(count), np.int64), count)
    begin = number * step[example]
    length = np.minimum(document[example] - begin, room[example])
    return Cut(kept, document, room, step, count, example, number, begin, length)


def max_context(
    cut: Cut, context_at: NDArray[np.int64], *, in_context: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """(N,) whether a context token has its maximal context in its window.

    Google's rule: the window with the largest min(tokens to the left, tokens to the right) + 0.01 * window
    length, the first of equals. All windows of an example but the last are full and evenly spaced, so the
    best of those is the one whose centre is nearest; it remains to compare it with the last.
    """
    best = in_context  # right already where an example has one window
    several = cut.count[cut.example] > 1
    example = np.repeat(cut.example[several], cut.length[several])  # a number for each of their tokens
    number = np.repeat(cut.number[several], cut.length[several])
    token = spread(cut.begin[several], cut.length[several])  # counted in the paragraph
    document, room, step = cut.document[example], cut.room[example], cut.step[example]
    last = cut.count[example] - 1
    nearest = -((room - 1 + step - 2 * token) // (2 * step))  # rounded up, so that halves go to the first
    nearest = np.clip(nearest, 0, last - 1)
    from_left = token - nearest * step
    score = np.minimum(from_left, room - 1 - from_left) + 0.01 * room
    score[from_left >= room] = -1.0
    from_left = token - last * step
    last_score = np.minimum(from_left, document - 1 - token) + 0.01 * (document - last * step)
    owner = np.where((from_left >= 0) & (last_score > score), last, nearest)
    best[spread(context_at[several], cut.length[several])] = owner == number
    return best


def make_windows(
    data: SpanData | TextData, tokenizer: "PreTrainedTokenizerBase", config: WindowConfig
) -> Windows:
    """Cut every example of `data` into labelled windows.

    Args:
        data: Questions, labelled by their first answer, or texts with a label or a score.
        tokenizer: A fast Hugging Face tokenizer.
        config: Lengths, stride, segment ids. The caller checks that the encoder has that many positions.
    """
    spans = data if isinstance(data, SpanData) else data.spans
    if spans is not None:
        if config.apart:
            raise ConfigError(
                "--apart is for pairs with a label or a score: a question is read together with its paragraph"
            )
        windows = _windows(spans, [(e.question, spans.context(e)) for e in spans.examples], tokenizer, config)
        return windows if isinstance(data, SpanData) else replace(windows, labels=_answerable(data, windows))
    assert isinstance(data, TextData)
    apart = config.apart and data.pairs
    pairs = [(e.first, e.second) if e.second is not None else ("", e.first) for e in data.examples]
    pairs = [("", one) for pair in pairs for one in pair] if apart else pairs
    windows = _windows(data, pairs, tokenizer, replace(config, apart=apart))
    example = windows.example // 2 if apart else windows.example
    return replace(windows, example=example, labels=_text_labels(data)[example])


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
    tokens = tokenise(list(numbers), tokenizer, chars=spans)
    cut, second_is_cut = _cut(data, tokens.lengths[of], len(template.special), config)
    windows = _assemble(tokens, of, cut, second_is_cut, template)
    if not spans:
        return windows
    return replace(windows, labels=_answer_labels(windows, cut, _answer_tokens(data, tokens, of[:, 1])))


def _cut(
    data: SpanData | TextData, lengths: NDArray[np.int64], special: int, config: WindowConfig
) -> tuple[Cut, NDArray[np.bool_]]:
    """Where the windows of each pair begin, and (E,) whether its second text is cut; `lengths` (E, 2)."""
    spans = isinstance(data, SpanData)
    whole = config.max_seq_length - special
    second_is_cut = (lengths[:, 1] >= lengths[:, 0]) | spans
    kept = np.where(second_is_cut, lengths[:, 0], lengths[:, 1])
    document = np.where(second_is_cut, lengths[:, 1], lengths[:, 0])
    if spans:
        most, too_long = config.max_query_length, kept > config.max_query_length
        _warn(
            data.name, too_long, f"questions are longer than {most} tokens and are cut (--max-query-length)"
        )
    else:
        most, too_long = whole // 2, (kept > whole // 2) & (kept + document > whole)
        _warn(data.name, too_long, f"pairs have two long texts; the shorter is cut off at {most} tokens "
                                   "(--max-seq-length)")  # fmt: skip
    kept = np.where(too_long, most, kept)
    if config.apart:
        _warn(data.name, document > whole,
              f"texts are longer than {whole} tokens and are cut off (--max-seq-length)")  # fmt: skip
        document = np.minimum(document, whole)
    room = whole - kept
    shared = config.doc_stride if config.stride == "overlap" else 0
    narrow = (room < 1) | ((document > room) & (room <= shared))
    if narrow.any():
        worst = int(np.where(narrow, room, whole).argmin())
        beyond = f" beyond the overlap of {shared}" if shared else ""
        lower = [*["--doc-stride"] * (shared > 0), *["--max-query-length"] * spans]
        raise DataError(
            f"{data.name}: {'question' if spans else 'example'} {data.examples[worst].id} takes "
            f"{kept[worst] + special} tokens with its special tokens and leaves no room for the text that is cut"
            f"{beyond} in a window of {config.max_seq_length}; raise --max-seq-length"
            + (f" or lower {' or '.join(lower)}" if lower else "")
        )
    if config.stride == "overlap":
        step = np.where(document > room, room - shared, room)
    else:
        step = np.minimum(room, config.doc_stride)
    return cut_evenly(kept, document, room=room, step=step), second_is_cut


def _warn(name: str, which: NDArray[np.bool_], what: str) -> None:
    if which.any():
        logger.warning("%s: %d of %d %s", name, which.sum(), len(which), what)


def _assemble(
    tokens: Ragged,
    of: NDArray[np.int64],
    cut: Cut,
    second_is_cut: NDArray[np.bool_],
    template: PairTemplate,
) -> Windows:
    """All windows, without labels; `of` (E, 2) says which texts of `tokens` an example has."""
    # The pool: special tokens, then the tokens of all texts.
    fixed = np.array(template.special, np.int32)
    pool = np.concatenate([fixed, tokens.ids])
    prefix, middle, suffix = len(template.prefix), len(template.middle), len(template.suffix)
    example, second = cut.example, second_is_cut[cut.example]  # (W,)
    kept, zero = cut.kept[example], np.zeros(len(example), np.int64)
    first_at, second_at = len(fixed) + tokens.offsets[of[example]].T  # (W,) each

    def pieces(*each: Any) -> NDArray[Any]:
        """(5 W,) a value for each piece of each window."""
        return np.stack(np.broadcast_arrays(*each, zero)[:5], axis=1).ravel()

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
    types[special] = np.array(template.types[0] + template.types[2] + template.types[4], np.uint8)[
        source[special]
    ]

    offsets = ragged_offsets(lengths.reshape(-1, 5).sum(axis=1))
    begin = prefix + np.where(second, kept + middle, 0)
    null = template.null + (zero if template.null >= 0 else np.diff(offsets))
    chars = np.full((len(source), 2), -1, np.int32)
    if tokens.chars is not None:
        chars[in_context] = tokens.chars[source[in_context] - len(fixed)]
    return Windows(
        ids=pool[source],
        types=types,
        chars=chars,
        offsets=offsets,
        example=example.astype(np.int32),
        context=np.stack([begin, begin + cut.length], axis=1).astype(np.int32),
        labels=np.zeros((len(example), 0), np.int32),
        null=null.astype(np.int32),
        best=max_context(cut, offsets[:-1] + begin, in_context=in_context),
    )


# ---- labels


def _answer_labels(windows: Windows, cut: Cut, answers: NDArray[np.int64]) -> NDArray[np.int32]:
    """(W, 2) where the answer of each window's example stands in it; its null token twice where it does not.

    `answers` (examples, 2) counts tokens of the paragraph.
    """
    answer = answers[cut.example]
    inside = (answer[:, 0] >= cut.begin) & (answer[:, 1] < cut.begin + cut.length)
    in_window = answer - cut.begin[:, None] + windows.context[:, :1]
    return np.where(inside[:, None], in_window, windows.null[:, None]).astype(np.int32)


def _answer_tokens(data: SpanData, tokens: Ragged, paragraph: NDArray[np.int64]) -> NDArray[np.int64]:
    """(examples, 2) first and last token of the first answer, counted in the paragraph; (-1, -1) without one.

    The first token is the first that ends after the answer begins, the last the last that begins before it ends. Both
    are looked up for all examples at once: number of the text and character offset make one ascending key.
    """
    spans = np.array([
        (e.answers[0].start, e.answers[0].start + len(e.answers[0].text)) if e.answers else (-1, -1)
        for e in data.examples
    ], np.int64).reshape(-1, 2)  # fmt: skip
    has_answer = spans[:, 0] >= 0
    assert tokens.chars is not None
    stretch = int(max(tokens.chars.max(initial=0), spans.max(initial=0))) + 1
    bases = np.repeat(np.arange(len(tokens.lengths)) * stretch, tokens.lengths)
    # A normaliser may reorder characters; the running maximum keeps the keys ascending all the same.
    begins = np.maximum.accumulate(bases + tokens.chars[:, 0])
    ends = np.maximum.accumulate(bases + tokens.chars[:, 1])
    wanted = paragraph[:, None] * stretch + spans
    first = np.searchsorted(ends, wanted[:, 0], side="right") - tokens.offsets[paragraph]
    last = np.searchsorted(begins, wanted[:, 1], side="left") - 1 - tokens.offsets[paragraph]
    # An answer of characters the tokenizer drops has no token.
    found = has_answer & (first <= last) & (first >= 0) & (last < tokens.lengths[paragraph])
    _warn(data.name, has_answer & ~found, "answers have no token of their own and count as unanswerable")
    return np.where(found[:, None], np.stack([first, last], axis=1), -1)


def _answerable(data: TextData, windows: Windows) -> NDArray[np.int32]:
    """(W, 1) 1 where the answer is not inside a window of a question, 0 where it is, -1 where it is not known."""
    missing = windows.labels[:, :1] == windows.null[:, None]
    known = np.array([e.label is not None for e in data.examples])[windows.example]
    return np.where(known[:, None], missing, -1).astype(np.int32)


def _text_labels(data: TextData) -> NDArray[Any]:
    """(E, 1) label of each example; -1 or NaN where it is not known."""
    unknown, dtype = (np.nan, np.float32) if data.kind == "score" else (-1, np.int32)
    return np.array([unknown if e.label is None else e.label for e in data.examples], dtype).reshape(-1, 1)


SCHEMA = 2
"""Raise it whenever `make_windows` gives other arrays for the same input."""


def default_cache_dir() -> Path:
    """The folder named by BERTVISION_CACHE, or ~/.cache/bertvision."""
    named = os.environ.get("BERTVISION_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "bertvision"


def windows_fingerprint(
    data: SpanData | TextData,
    tokenizer: "PreTrainedTokenizerBase",
    config: WindowConfig,
    *,
    tokenizer_fingerprint: str,
) -> str:
    """Hash of everything that decides the windows."""
    # Which token means "no answer" and whether there are segment ids stand in the tokenizer's config, which a hash of
    # its vocabulary alone does not see.
    templates = [asdict(probe_template(tokenizer, pair=pair)) for pair in (True, False)]
    return content_hash([SCHEMA, data.fingerprint, tokenizer_fingerprint, templates, config.settings])


def windows_for(
    data: SpanData | TextData,
    tokenizer: "PreTrainedTokenizerBase",
    config: WindowConfig,
    *,
    tokenizer_fingerprint: str,
    cache_dir: Path | None,
) -> Windows:
    """The windows of `data`: read from `cache_dir` where they are kept, else made and kept there.

    Args:
        tokenizer_fingerprint: Any hash of the tokenizer's files.
        cache_dir: Usually `default_cache_dir()`; None keeps nothing.
    """
    if cache_dir is None:
        return make_windows(data, tokenizer, config)
    key = windows_fingerprint(data, tokenizer, config, tokenizer_fingerprint=tokenizer_fingerprint)
    path = cache_dir / "windows" / f"{key}.safetensors"
    blob = b""
    with suppress(OSError):  # not there yet, or not to be read
        blob = path.read_bytes()
    windows = unpack_windows(blob)
    if windows is not None:
        return windows
    if blob or path.exists():
        logger.warning("%s is damaged; its windows are made again", path)
    windows = make_windows(data, tokenizer, config)
    try:
        with atomic_file(path) as temporary:
            temporary.write_bytes(pack_windows(windows))
    except (OutputError, OSError) as error:
        logger.warning("windows of %s are not kept: %s", data.name, error)
    return windows
