"""Bodies of requests and answers. FastAPI checks requests with them and writes the OpenAPI document from them."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

_FORMS = (("question", "context"), ("text",), ("text", "pair"))
"""The texts of an input: a question about a paragraph, one text, or a pair of texts."""
_TEXTS = ("question", "context", "text", "pair")


def _written(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty, write it")
    return text


Text = Annotated[str, AfterValidator(_written)]


class _Strict(BaseModel):
    # "5" is no number, and an unknown field is a typing error.
    model_config = ConfigDict(strict=True, extra="forbid")


class Input(_Strict):
    """{"question", "context"}, {"text", "pair"} or {"text"}."""

    question: Text | None = None
    context: Text | None = None
    text: Text | None = None
    pair: Text | None = None
    tasks: Annotated[list[str], Field(min_length=1, max_length=256)] | None = Field(
        default=None, description="Names of the tasks that answer; all that read such an input by default."
    )
    n_best: Annotated[int, Field(ge=0, le=20)] = Field(default=0, description="How many candidates to list.")

    @model_validator(mode="after")
    def _check_form(self) -> "Input":
        if tuple(self.texts) not in _FORMS:
            raise ValueError("give text, text and pair, or question and context")
        return self

    @property
    def texts(self) -> dict[str, str]:
        """The texts by the names of their fields, in order."""
        return {name: text for name in _TEXTS if (text := getattr(self, name)) is not None}


class Batch(_Strict):
    inputs: Annotated[list[Input], Field(min_length=1)]


class PredictAnswer(BaseModel):
    predictions: dict[str, dict[str, Any]] = Field(description="By task; each names its kind.")


class BatchAnswer(BaseModel):
    results: list[PredictAnswer] = Field(description="One for each input, in order.")


class Explanation(BaseModel):
    text: str = Field(description="The context, or the text.")
    tokens: list[dict[str, int]] = Field(description="First character of each token, and one past its last.")
    tasks: dict[str, dict[str, Any]] = Field(description="By task: the prediction and what it was made of.")
    layers: dict[str, list[dict[str, Any]]] = Field(
        description="By task: the prediction of each hidden state's probe."
    )


class ServedTask(BaseModel):
    task: str
    kind: str
    texts: Literal[1, 2] = Field(description="How many texts an input has.")
    asks: bool = Field(description="Whether the two texts are a question and its context.")
    classes: list[str]
    heads: list[str]
    parameters: int = Field(description="Of its heads.")


class Limits(BaseModel):
    text: int = Field(description="Characters of the longest text.")
    batch: int = Field(description="The most inputs of a request.")
    body: int = Field(description="Bytes of the longest body.")


class Models(BaseModel):
    models: list[ServedTask]
    encoder_parameters: int
    limits: Limits
    version: str = Field(description="Of bertvision.")


class Status(BaseModel):
    status: Literal["alive", "ready"]


class Error(BaseModel):
    error: str = Field(description="One sentence: what is wrong.")
