"""What a user gets for one example: an answer with its rivals, a label, or a score; plain values that go into JSON."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from bertvision.errors import ConfigError


@dataclass(frozen=True)
class Candidate:
    """One of the best answers that were found, whether or not any is given."""

    text: str
    start: int
    """First character in the context; -1 where the paper's decoding points into the question."""
    end: int
    """One past its last character."""
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The answer to a question."""

    kind: ClassVar[str] = "span"
    text: str
    """The answer; empty for no answer."""
    start: int
    """First character of the answer in the context, -1 for no answer."""
    end: int
    """One past its last character, -1 for no answer."""
    probability: float
    """Of the best answer found, whether or not it was given."""
    no_answer_probability: float
    """Calibrated on the split the threshold was tuned on, where the head's folder holds a calibration."""
    nbest: tuple[Candidate, ...] = ()
    """The best candidates, best first, no answer not among them; as many as were asked for (n_best)."""

    def line(self) -> str:
        said = f"{self.text}  [{self.start}:{self.end}]" if self.text else "(no answer) "
        return f"{said} p={self.probability:.3f}  no answer p={self.no_answer_probability:.3f}"


@dataclass(frozen=True)
class LabelPrediction:
    """The class of a text."""

    kind: ClassVar[str] = "label"
    label: str
    """The class with the greatest probability."""
    probability: float
    """Its probability."""
    probabilities: dict[str, float]
    """Of every class."""

    def line(self) -> str:
        return f"{self.label}  p={self.probability:.3f}"


@dataclass(frozen=True)
class ScorePrediction:
    """The score of a text."""

    kind: ClassVar[str] = "score"
    score: float

    def line(self) -> str:
        return f"{self.score:.3f}"


AnyPrediction = Prediction | LabelPrediction | ScorePrediction


def to_json(prediction: Any) -> dict[str, Any]:
    """A prediction as JSON; candidates stand there only where some were asked for."""
    values = asdict(prediction)
    if not values.get("nbest", True):
        del values["nbest"]
    return values


def check_n_best(count: int) -> int:
    """How many candidates to list; 0 = none."""
    if count < 0:
        raise ConfigError(f"--n-best must not be negative, not {count}: 0 lists the answer alone")
    return count
