"""The answers of one system of a study, as little of them as every later question needs.

Shapes: Q questions (E examples) in the order of the data.

On disk: one safetensors file a part of the data, bound to it by its fingerprint (metadata `data`), with

    spans    diff, exact, f1 (Q,) float32 and spans (Q, 2) int32
    labels   probability (E,) float32

No answer is predicted where `diff` exceeds a threshold, and is then right where the question has none. With the
scores of the best candidate beside it, every threshold is one comparison away and nothing is decoded again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertvision.artifacts import atomic_file
from bertvision.data.examples import SpanData
from bertvision.errors import ArtifactError
from bertvision.tasks.span.answers import SpanAnswers
from bertvision.tasks.span.score import per_question
from bertvision.tasks.span.threshold import cut_values
from bertvision.tasks.text.answers import TextAnswers

__all__ = [
    "LabelRecord",
    "SpanRecord",
    "answerable_of",
    "half_unanswerable_threshold",
    "oracle_threshold",
    "weighted_f1",
]

# Stands for an infinite difference: no candidate (plus), or no window that votes for no answer (minus).
_HUGE = float(np.finfo(np.float32).max)


def answerable_of(data: SpanData) -> NDArray[np.bool_]:
    """(Q,) which questions have an answer."""
    return np.array([example.answerable for example in data.examples], np.bool_)


def _save(path: Path, arrays: Mapping[str, NDArray[Any]], fingerprint: str) -> None:
    from safetensors.numpy import save

    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    blob = save(plain, metadata={"data": fingerprint})
    with atomic_file(path) as temporary:
        temporary.write_bytes(blob)


def _load(path: Path, names: list[str], fingerprint: str) -> dict[str, NDArray[Any]]:
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise ArtifactError(f"{path} is missing: is {path.parent} a folder that bertvision wrote?")
    try:
        with safe_open(path, framework="np") as handle:
            metadata = handle.metadata() or {}
            arrays = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise ArtifactError(
            f"{path} is damaged ({error}): delete its folder and run the study again"
        ) from error
    if sorted(arrays) != sorted(names) or "data" not in metadata:
        raise ArtifactError(
            f"{path} does not hold {', '.join(names)}: it is no record of this kind of answers"
        )
    if metadata["data"] != fingerprint:
        raise ArtifactError(
            f"{path} answers other questions ({metadata['data'][:12]}, not {fingerprint[:12]}): "
            "give the data the study was run with, or run it again"
        )
    return arrays


@dataclass(frozen=True)
class SpanRecord:
    """Answers of one system to the questions of one part of the data."""

    diff: NDArray[np.float32]
    """(Q,) score of no answer minus that of the best candidate, infinities as the largest float32."""
    exact: NDArray[np.float32]
    """(Q,) exact match of the best candidate if it is given: 0 or 1."""
    f1: NDArray[np.float32]
    """(Q,) its F1 if it is given, between 0 and 1."""
    spans: NDArray[np.int32]
    """(Q, 2) its first character in the paragraph and one past its last; (-1, -1): not in the paragraph, or none."""

    def __len__(self) -> int:
        return len(self.diff)

    @classmethod
    def of(cls, answers: SpanAnswers) -> "SpanRecord":
        """What is kept of decoded answers."""
        exact, f1 = per_question(answers.data, dict(zip(answers.ids, answers.text, strict=True)))
        none = ~np.isfinite(answers.score)
        return cls(
            np.clip(answers.score_diff, -_HUGE, _HUGE).astype(np.float32),
            exact.astype(np.float32),
            f1.astype(np.float32),
            np.where(none[:, None], -1, answers.span).astype(np.int32),
        )

    def save(self, path: Path, fingerprint: str) -> None:
        """Write to `path` in one step, bound to the data of this fingerprint."""
        _save(path, vars(self), fingerprint)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "SpanRecord":
        """Read `path`; answers to other data than that of `fingerprint` are an `ArtifactError`."""
        return cls(**_load(path, ["diff", "exact", "f1", "spans"], fingerprint))

    def is_null(self, threshold: float) -> NDArray[np.bool_]:
        """(Q,) where no answer is predicted."""
        # In float64: a threshold half-way between two float32 values would else be rounded to one of them.
        return self.diff.astype(np.float64) > threshold

    def at(
        self, threshold: float, answerable: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(Q,) exact match and F1 between 0 and 1 with this threshold."""
        null, right = self.is_null(threshold), (~answerable).astype(np.float64)
        return np.where(null, right, self.exact), np.where(null, right, self.f1)

    def texts(self, data: SpanData, threshold: float) -> list[str]:
        """The answer to each question, "" for no answer; one that lies in the question is the question itself."""
        null = self.is_null(threshold) | (self.diff >= _HUGE)
        return [
            "" if nothing else data.context(example)[begin:end] if begin >= 0 else example.question
            for example, nothing, (begin, end) in zip(
                data.examples, null.tolist(), self.spans.tolist(), strict=True
            )
        ]


@dataclass(frozen=True)
class LabelRecord:
    """Answers of one system to "is there an answer?" on one part of the data."""

    probability: NDArray[np.float32]
    """(E,) of "no answer"."""

    def __len__(self) -> int:
        return len(self.probability)

    @classmethod
    def of(cls, answers: TextAnswers) -> "LabelRecord":
        """What is kept of the answers to a label task whose second class is "no answer"."""
        assert answers.probabilities is not None, "answer / no answer is a label task"
        return cls(answers.probabilities[:, 1].astype(np.float32))

    def save(self, path: Path, fingerprint: str) -> None:
        _save(path, vars(self), fingerprint)

    @classmethod
    def load(cls, path: Path, fingerprint: str) -> "LabelRecord":
        return cls(**_load(path, ["probability"], fingerprint))

    def says(self, threshold: float = 0.5) -> NDArray[np.bool_]:
        """(E,) where no answer is predicted."""
        return self.probability.astype(np.float64) > threshold

    def at(self, threshold: float, unanswerable: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(E,) where the prediction is right."""
        return self.says(threshold) == unanswerable


def _weights(answerable: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(Q,) weights of sum 1 under which the unanswerable questions are half of the whole."""
    known = int(answerable.sum())
    if not 0 < known < len(answerable):
        return np.full(len(answerable), 1 / max(len(answerable), 1))
    return np.where(answerable, 0.5 / known, 0.5 / (len(answerable) - known))


def _best(record: SpanRecord, answerable: NDArray[np.bool_], weights: NDArray[np.float64]) -> float:
    """The threshold with the highest weighted F1; of equally good ones the closest to 0."""
    diff = record.diff.astype(np.float64)
    diff = np.where(np.abs(diff) >= _HUGE, np.copysign(np.inf, diff), diff)
    order = np.argsort(diff, kind="stable")
    gain = (weights * (record.f1 - (~answerable).astype(np.float64)))[order]
    reached = np.concatenate([[0.0], np.cumsum(gain)])  # (Q + 1,) with the first k questions answered
    values = cut_values(diff[order])
    reached[np.isnan(values)] = -np.inf
    # Sums in another order, and F1 kept as float32, differ in the last digits; such cuts are equally good.
    good = np.flatnonzero(reached >= reached.max() - 1e-9)
    return float(values[good[np.argmin(np.abs(values[good]))]]) if len(good) else 0.0


def half_unanswerable_threshold(record: SpanRecord, answerable: NDArray[np.bool_]) -> float:
    """The threshold with the best F1 were half of the questions unanswerable, as they are in dev of SQuAD 2.0.

    In its training data they are a third, and a threshold tuned on those as they come would answer too often.
    """
    return _best(record, answerable, _weights(answerable))


def oracle_threshold(record: SpanRecord, answerable: NDArray[np.bool_]) -> float:
    """The threshold with the best F1 on this very part: what no one can know beforehand."""
    return _best(record, answerable, np.full(len(answerable), 1 / max(len(answerable), 1)))


def weighted_f1(record: SpanRecord, answerable: NDArray[np.bool_], threshold: float) -> float:
    """F1 in percent at a threshold, were half of the questions unanswerable."""
    return 100.0 * float((_weights(answerable) * record.at(threshold, answerable)[1]).sum())
