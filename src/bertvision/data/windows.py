"""Windows: what the encoder reads.

All arrays are flat and ragged: token `t` of window `w` stands at `offsets[w] + t`; there are no pads. N tokens, W
windows, E examples.

    question and paragraph   the paragraph is cut into overlapping windows, each with the whole question in front
    a text                   cut into overlapping windows
    a pair of texts          the longer text is cut; the shorter stands whole in each window, up to half the room
    a pair read apart        two windows, rows 2i and 2i + 1, a text each, cut off at `max_seq_length`

All four are pairs of texts of which one is cut and the other kept; a single text is the second of a pair with an empty
first. Each different text is tokenised once. A window is five pieces (prefix, first text, middle, second text, suffix)
of one pool of tokens, and one gather fills all windows.

The stride has two meanings. `step`: windows begin that many tokens apart (Google's BERT, the older Hugging Face
processor). `overlap`: neighbours share that many tokens (fast tokenizers' `stride`, run_qa.py).
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.data.cutting import Cut, cut_evenly, max_context, ragged_offsets, spread
from bertvision.data.examples import SpanData
from bertvision.data.texts import TextData
from bertvision.data.tokenise import PairTemplate, Ragged, probe_template, tokenise
from bertvision.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WindowConfig:
    """How paragraphs are cut into windows."""

    max_seq_length: int = 384
    """Most tokens of a window, question and special tokens included."""
    max_query_length: int = 64
    """Most tokens of a question; longer ones are cut."""
    doc_stride: int = 128
    """Tokens between neighbouring windows, in the meaning of --stride."""
    stride: Literal["step", "overlap"] = "step"
    """step: windows begin doc_stride tokens apart; overlap: neighbours share doc_stride tokens."""
    segments: bool = True
    """Tell the two texts apart by their segment ids, where the encoder has them; without: all are 0."""
    apart: bool = False
    """Read the two texts of a pair in a window each, cut at --max-seq-length, instead of together in one."""

    def __post_init__(self) -> None:
        if self.max_seq_length < 1:
            raise ConfigError(f"--max-seq-length must be at least 1, not {self.max_seq_length}")
        if self.max_query_length < 1:
            raise ConfigError(f"--max-query-length must be at least 1, not {self.max_query_length}")
        if self.stride not in ("step", "overlap"):
            raise ConfigError(f"--stride must be step or overlap, not {self.stride!r}")
        least = 1 if self.stride == "step" else 0
        if self.doc_stride < least:
            raise ConfigError(
                f"--doc-stride must be at least {least} with --stride {self.stride}, not {self.doc_stride}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, for fingerprints."""
        return asdict(self)


@dataclass(frozen=True)
class Windows:
    """Ragged windows over the examples of one `SpanData` or `TextData`."""

    ids: NDArray[np.int32]
    """(N,) token ids, special tokens included."""
    types: NDArray[np.uint8]
    """(N,) segment ids; all 0 where the encoder has none."""
    chars: NDArray[np.int32]
    """(N, 2) first character in the paragraph and one past the last; (-1, -1) outside the context, and everywhere
    in windows of texts with a label or a score, of which no answer is cut out."""
    offsets: NDArray[np.int64]
    """(W + 1,) where each window begins, and where the last ends."""
    example: NDArray[np.int32]
    """(W,) index into the data's `examples`; windows of one example are neighbours, in document order."""
    context: NDArray[np.int32]
    """(W, 2) first context token and one past the last, as positions inside the window; of a pair with a label, the
    tokens of the text that is cut into windows."""
    labels: NDArray[Any]
    """Spans: (W, 2) int32, start and end token, inclusive; (null, null) where the answer is not fully inside.
    Classes: (W, 1) int32 number of the class, -1 where it is not known. Scores: (W, 1) float32, NaN where not known."""
    null: NDArray[np.int32]
    """(W,) the position that means "no answer": the [CLS] token, usually 0."""
    best: NDArray[np.bool_]
    """(N,) of all windows this one shows the token with most context around it; False outside the context."""

    def __len__(self) -> int:
        return len(self.example)

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(W,) tokens of each window."""
        return np.diff(self.offsets)

    @property
    def example_starts(self) -> NDArray[np.int64]:
        """Index of the first window of each example that has one, for `np.ufunc.reduceat`."""
        return np.flatnonzero(np.diff(self.example, prepend=-1))

    def take(self, indices: Sequence[int] | NDArray[np.integer]) -> "Windows":
        """The windows at `indices`, in that order; `example` still counts in the same `SpanData`."""
        chosen = np.asarray(indices, dtype=np.int64)
        lengths = self.lengths[chosen]
        tokens = spread(self.offsets[:-1][chosen], lengths)
        flat = {name: getattr(self, name)[tokens] for name in ("ids", "types", "chars", "best")}
        by_window = {name: getattr(self, name)[chosen] for name in ("example", "context", "labels", "null")}
        return Windows(offsets=ragged_offsets(lengths), **flat, **by_window)

    def equals(self, other: "Windows") -> bool:
        """Same content in every array; `==` of dataclasses cannot compare arrays."""
        return all(np.array_equal(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))


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
