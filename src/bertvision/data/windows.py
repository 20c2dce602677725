"""Windows: what the encoder reads.

All arrays are flat and ragged: token `t` of window `w` stands at `offsets[w] + t`; there are no pads. N tokens, W
windows, E examples.

    question and paragraph   the paragraph is cut into overlapping windows, each with the whole question in front
    a text                   cut into overlapping windows
    a pair of texts          the longer text is cut; the shorter stands whole in each window, up to half the room
    a pair read apart        two windows, rows 2i and 2i + 1, a text each, cut off at `max_seq_length`

Each different text is tokenised once. A window is five pieces (prefix, first text, middle, second text, suffix) of one
pool of tokens, and one gather fills all windows; a single text is the second of a pair without a first.

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

__all__ = ["WindowConfig", "Windows", "make_windows", "spread"]

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
    if isinstance(data, SpanData):
        return _question_windows(data, tokenizer, config)
    if data.spans is not None:
        windows = _question_windows(data.spans, tokenizer, config)
        return replace(windows, labels=_answerable_labels(data, windows))
    return _text_windows(data, tokenizer, config)


# ---- labels


def _answer_labels(windows: Windows, cut: Cut, answers: NDArray[np.int64]) -> NDArray[np.int32]:
    """(W, 2) where the answer of each window's example stands in it; its null token twice where it does not.

    `answers` (examples, 2) counts tokens of the paragraph.
    """
    answer = answers[cut.example]
    inside = (answer[:, 0] >= cut.begin) & (answer[:, 1] < cut.begin + cut.length)
    in_window = answer - cut.begin[:, None] + windows.context[:, :1]
    return np.where(inside[:, None], in_window, windows.null[:, None]).astype(np.int32)


def _answerable_labels(data: TextData, windows: Windows) -> NDArray[np.int32]:
    """(W, 1) 1 where the answer is not inside a window of a question, 0 where it is, -1 where it is not known."""
    missing = windows.labels[:, :1] == windows.null[:, None]
    known = np.array([e.label is not None for e in data.examples])[windows.example]
    return np.where(known[:, None], missing, -1).astype(np.int32)


def _text_labels(data: TextData) -> NDArray[Any]:
    """(E, 1) label of each example; -1 or NaN where it is not known."""
    if data.kind == "score":
        scores = [np.nan if e.label is None else e.label for e in data.examples]
        return np.array(scores, np.float32).reshape(-1, 1)
    classes = [-1 if e.label is None else e.label for e in data.examples]
    return np.array(classes, np.int32).reshape(-1, 1)


# ---- questions over paragraphs


def _question_windows(data: SpanData, tokenizer: "PreTrainedTokenizerBase", config: WindowConfig) -> Windows:
    if config.apart:
        raise ConfigError(
            "--apart is for pairs with a label or a score: a question is read together with its paragraph"
        )
    template = probe_template(tokenizer, segments=config.segments)
    questions = tokenise([e.question for e in data.examples], tokenizer)
    of_example = np.fromiter((e.paragraph for e in data.examples), np.int64, len(data))
    # A subset of the examples keeps all paragraphs: only those asked about are tokenised.
    used, of_example = np.unique(of_example, return_inverse=True)
    paragraphs = tokenise([data.paragraphs[i] for i in used], tokenizer, chars=True)
    sides = _Sides(questions, np.arange(len(data)), paragraphs, of_example)
    cut = _cut_paragraphs(data, sides.lengths, template=template, config=config)
    windows = _assemble(sides, cut, np.ones(len(data), np.bool_), template)
    return replace(windows, labels=_answer_labels(windows, cut, _answer_tokens(data, paragraphs, of_example)))


def _cut_paragraphs(
    data: SpanData, lengths: NDArray[np.int64], *, template: PairTemplate, config: WindowConfig
) -> Cut:
    """Where the windows of each question begin; `lengths` (E, 2) of question and paragraph."""
    question, document = lengths[:, 0], lengths[:, 1]
    too_long = int((question > config.max_query_length).sum())
    if too_long:
        logger.warning(
            "%d of %d questions are longer than %d tokens and are cut (--max-query-length)",
            too_long, len(question), config.max_query_length,
        )  # fmt: skip
    question = np.minimum(question, config.max_query_length)
    room = config.max_seq_length - question - template.num_special
    shared = config.doc_stride if config.stride == "overlap" else 0
    if len(room) and room.min() <= shared:
        worst = int(room.argmin())
        taken = question[worst] + template.num_special
        beyond = f" beyond the overlap of {shared}" if shared else ""
        smaller = "lower --doc-stride or --max-query-length" if shared else "lower --max-query-length"
        raise DataError(
            f"{data.name}: question {data.examples[worst].id} takes {taken} tokens with its special tokens "
            f"and leaves no room for the context{beyond} in a window of {config.max_seq_length}; "
            f"raise --max-seq-length or {smaller}"
        )
    step = room - shared if config.stride == "overlap" else np.minimum(room, config.doc_stride)
    return cut_evenly(question, document, room=room, step=step)


def _answer_tokens(data: SpanData, paragraphs: Ragged, of_example: NDArray[np.int64]) -> NDArray[np.int64]:
    """(examples, 2) first and last token of the first answer, counted in the paragraph; (-1, -1) without one.

    The first token is the first that ends after the answer begins, the last the last that begins before it
    ends. Both are looked up for all examples at once: paragraph number and character offset make one
    ascending key.
    """
    spans = np.full((len(data), 2), -1, np.int64)
    for i, e in enumerate(data.examples):
        if e.answers:
            answer = e.answers[0]
            spans[i] = answer.start, answer.start + len(answer.text)
    has_answer = spans[:, 0] >= 0
    assert paragraphs.chars is not None
    stretch = int(max(paragraphs.chars.max(initial=0), spans.max(initial=0))) + 1
    bases = np.repeat(np.arange(len(paragraphs.lengths)) * stretch, paragraphs.lengths)
    # A normaliser may reorder characters; the running maximum keeps the keys ascending all the same.
    begins = np.maximum.accumulate(bases + paragraphs.chars[:, 0])
    ends = np.maximum.accumulate(bases + paragraphs.chars[:, 1])
    wanted = of_example[:, None] * stretch + spans
    first = np.searchsorted(ends, wanted[:, 0], side="right") - paragraphs.offsets[of_example]
    last = np.searchsorted(begins, wanted[:, 1], side="left") - 1 - paragraphs.offsets[of_example]
    # An answer of characters the tokenizer drops has no token.
    found = has_answer & (first <= last) & (first >= 0) & (last < paragraphs.lengths[of_example])
    lost = int(has_answer.sum() - found.sum())
    if lost:
        logger.warning("%d answers have no token of their own and count as unanswerable", lost)
    return np.where(found[:, None], np.stack([first, last], axis=1), -1)


# ---- texts and pairs


def _text_windows(data: TextData, tokenizer: "PreTrainedTokenizerBase", config: WindowConfig) -> Windows:
    apart = config.apart and data.pairs
    template = probe_template(tokenizer, pair=data.pairs and not apart, segments=config.segments)
    room = config.max_seq_length - template.num_special
    if room < 2:
        raise ConfigError(
            f"--max-seq-length {config.max_seq_length} leaves no room for text beside "
            f"{template.num_special} special tokens; raise it"
        )
    # A prompt in front of every example, or a sentence of many pairs, is tokenised once.
    pairs = [(e.first, e.second) if e.second is not None else ("", e.first) for e in data.examples]
    numbers: dict[str, int] = {}
    indices = [numbers.setdefault(text, len(numbers)) for pair in pairs for text in pair]
    of = np.array(indices, np.int64).reshape(-1, 2)
    texts = tokenise(list(numbers), tokenizer)
    if apart:
        of = np.repeat(of.reshape(-1, 1), 2, axis=1)  # (2E, 2) twice as many single texts
    sides = _Sides(texts, of[:, 0], texts, of[:, 1])
    if apart:
        cut, second_is_cut = _cut_off(data, sides.lengths[:, 1], room), np.ones(len(of), np.bool_)
    else:
        cut, second_is_cut = _cut_longer(data, sides.lengths, room, config=config)
    windows = _assemble(sides, cut, second_is_cut, template)
    example = windows.example // 2 if apart else windows.example
    return replace(windows, example=example, labels=_text_labels(data)[example])


def _cut_longer(
    data: TextData, lengths: NDArray[np.int64], room: int, *, config: WindowConfig
) -> tuple[Cut, NDArray[np.bool_]]:
    """Where the windows of each pair begin, and (E,) whether its second text is cut; `lengths` (E, 2)."""
    second_is_cut = lengths[:, 1] >= lengths[:, 0]
    kept, document = lengths.min(axis=1), lengths.max(axis=1)
    fits = kept + document <= room
    shorter = np.where(fits, kept, np.minimum(kept, room // 2))
    lost = int((shorter < kept).sum())
    if lost:
        logger.warning(
            "%s: in %d of %d pairs both texts are long, and the shorter one is cut off at %d tokens "
            "(--max-seq-length)", data.name, lost, len(kept), room // 2,
        )  # fmt: skip
    left = room - shorter
    if config.stride == "step":
        step = np.minimum(left, config.doc_stride)
    else:
        step = np.where(fits, left, left - config.doc_stride)
        if (step < 1).any():
            worst = int(step.argmin())
            raise DataError(
                f"{data.name}: example {data.examples[worst].id} leaves {left[worst]} tokens of a window to its "
                f"longer text, no more than the overlap of {config.doc_stride}; raise --max-seq-length or lower "
                "--doc-stride"
            )
    return cut_evenly(shorter, document, room=left, step=np.maximum(step, 1)), second_is_cut


def _cut_off(data: TextData, lengths: NDArray[np.int64], room: int) -> Cut:
    """One window for each text, none longer than `room`."""
    too_long = int((lengths > room).sum())
    if too_long:
        logger.warning(
            "%s: %d of %d texts are longer than %d tokens and are cut off (--max-seq-length)",
            data.name, too_long, len(lengths), room,
        )  # fmt: skip
    full = np.full(len(lengths), room)
    return cut_evenly(np.zeros(len(lengths), np.int64), np.minimum(lengths, room), room=full, step=full)


# ---- from pieces to windows


@dataclass(frozen=True)
class _Sides:
    """The two texts of every example; a single text is the second."""

    firsts: Ragged
    first: NDArray[np.int64]  # (E,) which of `firsts` an example has
    seconds: Ragged
    second: NDArray[np.int64]  # (E,)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(E, 2) tokens of first and second."""
        return np.stack([self.firsts.lengths[self.first], self.seconds.lengths[self.second]], axis=1)


def _assemble(sides: _Sides, cut: Cut, second_is_cut: NDArray[np.bool_], template: PairTemplate) -> Windows:
    """All windows, without labels; `second_is_cut` (E,) says which text is the context."""
    # The pool: special tokens, all first texts, all second texts.
    fixed = np.array(template.prefix + template.middle + template.suffix, np.int32)
    pool = np.concatenate([fixed, sides.firsts.ids, sides.seconds.ids])
    first_at = len(fixed) + sides.firsts.offsets[sides.first]
    seconds_at = len(fixed) + len(sides.firsts.ids)
    second_at = seconds_at + sides.seconds.offsets[sides.second]

    num_prefix, num_middle, num_suffix = len(template.prefix), len(template.middle), len(template.suffix)
    example, second = cut.example, second_is_cut[cut.example]  # (W,)
    kept = cut.question[example]
    pieces = np.empty((len(example), 5, 2), np.int64)  # (W, piece, first token in the pool and length)
    pieces[:, 0] = 0, num_prefix
    pieces[:, 1, 0] = first_at[example] + np.where(second, 0, cut.begin)
    pieces[:, 1, 1] = np.where(second, kept, cut.length)
    pieces[:, 2] = num_prefix, num_middle
    pieces[:, 3, 0] = second_at[example] + np.where(second, cut.begin, 0)
    pieces[:, 3, 1] = np.where(second, cut.length, kept)
    pieces[:, 4] = num_prefix + num_middle, num_suffix
    lengths = pieces[:, :, 1].ravel()
    source = spread(pieces[:, :, 0].ravel(), lengths)

    is_context = np.zeros((len(example), 5), np.bool_)
    is_context[:, 1], is_context[:, 3] = ~second, second
    in_context = np.repeat(is_context.ravel(), lengths)
    types = np.repeat(np.tile(template.piece_types, len(example)), lengths)
    special = np.flatnonzero(source < len(fixed))
    types[special] = template.special_types[source[special]]

    offsets = ragged_offsets(pieces[:, :, 1].sum(axis=1))
    begin = num_prefix + np.where(second, kept + num_middle, 0)
    null = np.full(len(example), template.null) if template.null >= 0 else np.diff(offsets) + template.null
    chars = np.full((len(source), 2), -1, np.int32)
    if sides.seconds.chars is not None:
        chars[in_context] = sides.seconds.chars[source[in_context] - seconds_at]
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
