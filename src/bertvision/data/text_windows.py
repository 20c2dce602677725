"""Windows of texts with a label or a score.

A single text stands in the tokenizer's own template for one text, a pair in its template for two, in the order
first, second. What fits into `max_seq_length` is one window and loses nothing. Of a pair that does not fit, the
longer text is cut into overlapping windows, in the meaning of the stride settings, and the other stands whole in
each of them, up to half the room; the flag --max-query-length is for questions alone. With `apart` each text of a
pair has one window of its own, rows 2i and 2i + 1, and is cut off at `max_seq_length`.

Every window of an example has the example's label, (W, 1). Answer / no answer differs: its windows are those of
the questions, and a window without the answer is labelled "no answer" whatever the others hold.
"""

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bertvision.data.cutting import Cut, cut_evenly, max_context, ragged_offsets, spread
from bertvision.data.examples import SpanData
from bertvision.data.texts import TextData
from bertvision.data.tokenise import PairTemplate, Ragged, probe_single, probe_template, tokenise_questions
from bertvision.data.windows import WindowConfig, Windows, make_windows
from bertvision.errors import ConfigError, DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["make_windows_of"]

logger = logging.getLogger(__name__)


def make_windows_of(
    data: SpanData | TextData, tokenizer: "PreTrainedTokenizerBase", config: WindowConfig
) -> Windows:
    """Cut every example of `data` into labelled windows.

    Args:
        data: Questions, or texts with a label or a score.
        tokenizer: A fast Hugging Face tokenizer.
        config: Lengths, stride, segment ids. Whether the encoder has that many positions is its question.
    """
    if isinstance(data, SpanData):
        return make_windows(data, tokenizer, config)
    if data.spans is not None:
        return _answerable_windows(data, make_windows(data.spans, tokenizer, config))
    apart = config.apart and data.pairs
    template = probe_template(tokenizer) if data.pairs and not apart else probe_single(tokenizer)
    if not config.segments:
        template = template.without_types()
    room = config.max_seq_length - template.num_special
    if room < 2:
        raise ConfigError(
            f"--max-seq-length {config.max_seq_length} leaves no room for text beside "
            f"{template.num_special} special tokens; raise it"
        )
    sides = _tokenise(data, tokenizer)
    if apart:
        return _apart(data, sides, room, template=template)
    cut, second_is_cut = _cut(data, sides, room, config=config)
    return _assemble(cut, sides, second_is_cut, labels=_labels(data), template=template)


@dataclass(frozen=True)
class _Sides:
    """Every different text once, and which of them each example has; a single text is the second of a pair."""

    texts: Ragged
    first: NDArray[np.int64]  # (E,) index into texts
    second: NDArray[np.int64]  # (E,)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """(E, 2) tokens of first and second."""
        return np.stack([self.texts.lengths[self.first], self.texts.lengths[self.second]], axis=1)


def _tokenise(data: TextData, tokenizer: "PreTrainedTokenizerBase") -> _Sides:
    # A prompt in front of every example, or a sentence of many pairs, is tokenised once.
    pairs = [(e.first, e.second) if e.second is not None else ("", e.first) for e in data.examples]
    numbers: dict[str, int] = {}
    indices = [numbers.setdefault(text, len(numbers)) for pair in pairs for text in pair]
    both = np.array(indices, np.int64).reshape(-1, 2)
    return _Sides(tokenise_questions(list(numbers), tokenizer), both[:, 0], both[:, 1])


def _labels(data: TextData) -> NDArray[Any]:
    """(E, 1) label of each example; -1 or NaN where it is not known."""
    if data.kind == "score":
        scores = [np.nan if e.label is None else e.label for e in data.examples]
        return np.array(scores, np.float32).reshape(-1, 1)
    classes = [-1 if e.label is None else e.label for e in data.examples]
    return np.array(classes, np.int32).reshape(-1, 1)


def _answerable_windows(data: TextData, windows: Windows) -> Windows:
    """Windows of questions, labelled 1 where the answer is not inside and 0 where it is."""
    missing = (windows.labels[:, :1] == windows.null[:, None]).astype(np.int32)  # (W, 1)
    known = np.array([e.label is not None for e in data.examples])[windows.example]
    return replace(windows, labels=np.where(known[:, None], missing, np.int32(-1)))


def _cut(data: TextData, sides: _Sides, room: int, *, config: WindowConfig) -> tuple[Cut, NDArray[np.bool_]]:
    """Where the windows begin, and (E,) whether it is the second text that is cut."""
    lengths = sides.lengths
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


def _assemble(
    cut: Cut,
    sides: _Sides,
    second_is_cut: NDArray[np.bool_],
    *,
    labels: NDArray[Any],
    template: PairTemplate,
) -> Windows:
    """Every window from five pieces of one pool of tokens: the special ones, then all texts."""
    fixed = np.array(template.prefix + template.middle + template.suffix, np.int32)
    num_prefix, num_middle = len(template.prefix), len(template.middle)
    example, second = cut.example, second_is_cut[cut.example]  # (W,)
    first_at = len(fixed) + sides.texts.offsets[sides.first[example]]
    second_at = len(fixed) + sides.texts.offsets[sides.second[example]]
    kept = cut.question[example]

    pieces = np.empty((len(example), 5, 2), np.int64)  # (W, piece, first token in the pool and length)
    pieces[:, 0] = 0, num_prefix
    pieces[:, 1, 0] = first_at + np.where(second, 0, cut.begin)
    pieces[:, 1, 1] = np.where(second, kept, cut.length)
    pieces[:, 2] = num_prefix, num_middle
    pieces[:, 3, 0] = second_at + np.where(second, cut.begin, 0)
    pieces[:, 3, 1] = np.where(second, cut.length, kept)
    pieces[:, 4] = num_prefix + num_middle, len(template.suffix)
    source = spread(pieces[:, :, 0].ravel(), pieces[:, :, 1].ravel())
    piece = np.repeat(np.tile(np.arange(5), len(example)), pieces[:, :, 1].ravel())  # (N,)

    kinds = template.types
    fixed_types = np.array(kinds[0] + kinds[2] + kinds[4], np.uint8)
    text_types = np.array([0, kinds[1], 0, kinds[3], 0], np.uint8)[piece]
    in_text = (piece == 1) | (piece == 3)
    offsets = ragged_offsets(pieces[:, :, 1].sum(axis=1))
    lengths = np.diff(offsets)
    begin = num_prefix + np.where(second, pieces[:, 1, 1] + num_middle, 0)
    in_context = piece == np.repeat(np.where(second, 3, 1), lengths)
    null = np.full(len(example), template.null) if template.null >= 0 else lengths + template.null
    return Windows(
        ids=np.concatenate([fixed, sides.texts.ids])[source],
        types=np.where(in_text, text_types, fixed_types[np.where(in_text, 0, source)]),
        chars=np.full((len(source), 2), -1, np.int32),
        offsets=offsets,
        example=example.astype(np.int32),
        context=np.stack([begin, begin + cut.length], axis=1).astype(np.int32),
        labels=labels[example],
        null=null.astype(np.int32),
        best=max_context(cut, offsets[:-1] + begin, in_context=in_context),
    )


def _apart(data: TextData, sides: _Sides, room: int, *, template: PairTemplate) -> Windows:
    """Two windows a pair, a text each: the windows of twice as many single texts, none longer than `room`."""
    both = np.stack([sides.first, sides.second], axis=1).ravel()  # (2E,)
    whole = sides.texts.lengths[both]
    too_long = int((whole > room).sum())
    if too_long:
        logger.warning(
            "%s: %d of %d texts are longer than %d tokens and are cut off (--max-seq-length)",
            data.name, too_long, len(whole), room,
        )  # fmt: skip
    none, full = np.zeros(len(both), np.int64), np.full(len(both), room)
    cut = cut_evenly(none, np.minimum(whole, room), room=full, step=full)
    windows = _assemble(
        cut,
        _Sides(sides.texts, both, both),
        np.ones(len(both), np.bool_),
        labels=np.repeat(_labels(data), 2, axis=0),
        template=template,
    )
    return replace(windows, example=windows.example // 2)
