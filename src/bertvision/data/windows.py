"""Windows: what the encoder reads.

A paragraph longer than the encoder's input is read through several overlapping windows, each with the
whole question in front. All arrays are flat and ragged: token `t` of window `w` stands at
`offsets[w] + t`; there are no pads. N tokens, W windows.

`make_windows` tokenises each question and each paragraph once, then assembles every window by array
arithmetic: a window is five pieces (prefix, question, middle, context, suffix) of one pool of tokens, and
one gather fills them all.

The stride has two meanings. `step`: windows begin that many tokens apart (Google's BERT, the older Hugging
Face processor). `overlap`: neighbours share that many tokens (fast tokenizers' `stride`, run_qa.py).
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from bertvision.data.cutting import Cut, cut_evenly, max_context, ragged_offsets, spread
from bertvision.data.examples import SpanData
from bertvision.data.tokenise import (
    PairTemplate,
    Ragged,
    probe_template,
    tokenise_paragraphs,
    tokenise_questions,
)
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
        """The settings by name, for fingerprints.

        Those that came later stand there only where they are not as usual: what was made before they came is
        still found.
        """
        later = {"segments": True, "apart": False}
        return {name: value for name, value in asdict(self).items() if later.get(name) != value}


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


def make_windows(data: SpanData, tokenizer: "PreTrainedTokenizerBase", config: WindowConfig) -> Windows:
    """Cut every example of `data` into labelled windows.

    Args:
        data: Examples; the label of an example is its first answer.
        tokenizer: A fast Hugging Face tokenizer.
        config: Lengths and stride. Whether the encoder has that many positions is the encoder's question.
    """
    if config.apart:
        raise ConfigError(
            "--apart is for pairs with a label or a score: a question is read together with its paragraph"
        )
    template = probe_template(tokenizer)
    if not config.segments:
        template = template.without_types()
    questions = tokenise_questions([e.question for e in data.examples], tokenizer)
    of_example = np.fromiter((e.paragraph for e in data.examples), np.int64, len(data))
    # A subset of the examples keeps all paragraphs: only those asked about are tokenised.
    used, of_example = np.unique(of_example, return_inverse=True)
    paragraphs = tokenise_paragraphs([data.paragraphs[i] for i in used], tokenizer)
    cut = _cut(data, questions.lengths, paragraphs.lengths[of_example], template=template, config=config)
    answers = _answer_tokens(data, paragraphs, of_example)
    return _assemble(cut, questions, paragraphs, of_example=of_example, answers=answers, template=template)


def _cut(
    data: SpanData,
    question: NDArray[np.int64],
    document: NDArray[np.int64],
    *,
    template: PairTemplate,
    config: WindowConfig,
) -> Cut:
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
        taken, share = (
            question[worst] + template.num_special,
            f" beyond the overlap of {shared}" if shared else "",
        )
        smaller = "lower --doc-stride or --max-query-length" if shared else "lower --max-query-length"
        raise DataError(
            f"{data.name}: question {data.examples[worst].id} takes {taken} tokens with its special tokens "
            f"and leaves no room for the context{share} in a window of {config.max_seq_length}; "
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


def _assemble(
    cut: Cut,
    questions: Ragged,
    paragraphs: Ragged,
    *,
    of_example: NDArray[np.int64],
    answers: NDArray[np.int64],
    template: PairTemplate,
) -> Windows:
    fixed = np.array(template.prefix + template.middle + template.suffix, np.int32)
    num_prefix, num_middle, num_suffix = len(template.prefix), len(template.middle), len(template.suffix)
    # The pool: special tokens, then all questions, then all paragraphs.
    pool_ids = np.concatenate([fixed, questions.ids, paragraphs.ids])
    first_paragraph = len(fixed) + len(questions.ids)
    pool_chars = np.full((len(pool_ids), 2), -1, np.int32)
    pool_chars[first_paragraph:] = paragraphs.chars
    kinds = template.types
    pool_types = np.concatenate([
        np.array(kinds[0] + kinds[2] + kinds[4], np.uint8),
        np.full(len(questions.ids), kinds[1], np.uint8),
        np.full(len(paragraphs.ids), kinds[3], np.uint8),
    ])  # fmt: skip

    example = cut.example
    pieces = np.empty((len(example), 5, 2), np.int64)  # (W, piece, first token in the pool and length)
    pieces[:, 0] = 0, num_prefix
    pieces[:, 1, 0] = len(fixed) + questions.offsets[:-1][example]
    pieces[:, 1, 1] = cut.question[example]
    pieces[:, 2] = num_prefix, num_middle
    pieces[:, 3, 0] = first_paragraph + paragraphs.offsets[of_example[example]] + cut.begin
    pieces[:, 3, 1] = cut.length
    pieces[:, 4] = num_prefix + num_middle, num_suffix
    source = spread(pieces[:, :, 0].ravel(), pieces[:, :, 1].ravel())

    offsets = ragged_offsets(pieces[:, :, 1].sum(axis=1))
    lengths = np.diff(offsets)
    context_begin = num_prefix + cut.question[example] + num_middle
    null = np.full(len(example), template.null) if template.null >= 0 else lengths + template.null
    inside = (answers[example, 0] >= cut.begin) & (answers[example, 1] < cut.begin + cut.length)
    in_window = answers[example] - cut.begin[:, None] + context_begin[:, None]
    return Windows(
        ids=pool_ids[source],
        types=pool_types[source],
        chars=pool_chars[source],
        offsets=offsets,
        example=example.astype(np.int32),
        context=np.stack([context_begin, context_begin + cut.length], axis=1).astype(np.int32),
        labels=np.where(inside[:, None], in_window, null[:, None]).astype(np.int32),
        null=null.astype(np.int32),
        best=max_context(cut, offsets[:-1] + context_begin, in_context=source >= first_paragraph),
    )
