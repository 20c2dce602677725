"""What a server tells, as models of its answers: they are the OpenAPI document, and what tests hold answers against."""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bertvision.serve.bundle import AnyPrediction, LabelPrediction, ScorePrediction

__all__ = [
    "BatchAnswer",
    "ErrorAnswer",
    "ExplainAnswer",
    "HealthAnswer",
    "ModelsAnswer",
    "PredictAnswer",
    "told",
]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CandidateAnswer(_Answer):
    text: str
    start: int = Field(description="First character in the context.")
    end: int = Field(description="One past the last character.")
    probability: float


class SpanAnswer(_Answer):
    kind: Literal["span"]
    text: str = Field(description="The answer; empty for no answer.")
    start: int = Field(description="First character in the context, -1 for no answer.")
    end: int = Field(description="One past the last character, -1 for no answer.")
    probability: float = Field(description="Of the best answer found, whether or not it was given.")
    no_answer_probability: float
    nbest: list[CandidateAnswer] = Field(
        default=[], description="The best answers, where n_best asked for them."
    )


class LabelAnswer(_Answer):
    kind: Literal["label"]
    label: str
    probability: float
    probabilities: dict[str, float]


class ScoreAnswer(_Answer):
    kind: Literal["score"]
    score: float


class PredictAnswer(_Answer):
    predictions: dict[str, SpanAnswer | LabelAnswer | ScoreAnswer] = Field(description="By task.")


class BatchAnswer(_Answer):
    results: list[PredictAnswer] = Field(description="One an input, in their order.")


class ModelAnswer(_Answer):
    task: str
    kind: Literal["span", "label", "score"]
    texts: Literal[1, 2] = Field(description="How many texts an input has.")
    asks: bool = Field(description="Whether the two are a question and its context.")
    classes: list[str] = Field(description="Of a label.")
    heads: list[str] = Field(description="What the heads are called that answer together.")
    parameters: int = Field(description="Of its heads.")


class LimitsAnswer(_Answer):
    text: int = Field(description="Characters of the longest text.")
    batch: int = Field(description="The most inputs of a request.")
    body: int = Field(description="Bytes of the longest body.")


class ModelsAnswer(_Answer):
    models: list[ModelAnswer]
    encoder_parameters: int
    limits: LimitsAnswer
    version: str = Field(description="Of bertvision.")


class HealthAnswer(_Answer):
    status: Literal["alive", "ready"]


class ErrorAnswer(_Answer):
    error: str = Field(description="One sentence: what is wrong, and the way out.")


# What is explained may come to hold more: these models do not forbid it.


class PlaceAnswer(BaseModel):
    text: str
    start: int
    end: int


class TokenAnswer(BaseModel):
    start: int
    end: int


class _Weighed(BaseModel):
    layer_weights: list[float] | None = Field(
        description="How much each hidden state counts, where a head says."
    )


class ExplainedSpan(_Weighed):
    kind: Literal["span"]
    prediction: dict[str, Any]
    nbest: list[CandidateAnswer]
    start: list[float] = Field(description="A probability for each of `tokens`.")
    end: list[float]
    no_answer: float
    threshold: float = Field(description="No answer is given where score_diff exceeds it.")
    score_diff: float
    temperature: float | None
    shift: float | None


class ExplainedLabel(_Weighed):
    kind: Literal["label"]
    label: str
    probabilities: dict[str, float]


class ExplainedScore(_Weighed):
    kind: Literal["score"]
    score: float


class SpanLayer(BaseModel):
    layer: int
    answer: PlaceAnswer
    probability: float
    no_answer: float
    start: list[float]
    end: list[float]


class LabelLayer(BaseModel):
    layer: int
    probabilities: dict[str, float]


class ScoreLayer(BaseModel):
    layer: int
    score: float


class ExplainAnswer(BaseModel):
    text: str = Field(description="The context, or the text.")
    tokens: list[TokenAnswer] = Field(
        description="Characters of every token of the window that holds the answer, where a task finds spans."
    )
    tasks: dict[str, ExplainedSpan | ExplainedLabel | ExplainedScore] = Field(description="By task.")
    layers: dict[str, list[SpanLayer | LabelLayer | ScoreLayer]] = Field(
        description="By task that has readers of single hidden states: what each of them answers."
    )


def told(prediction: AnyPrediction) -> dict[str, Any]:
    """A prediction as JSON."""
    if isinstance(prediction, LabelPrediction):
        kind = "label"
    else:
        kind = "score" if isinstance(prediction, ScorePrediction) else "span"
    return {"kind": kind, **asdict(prediction)}
