"""Bodies of requests and answers. FastAPI checks requests with them and writes the OpenAPI document from them.

    {"question", "context"}    a question about a paragraph
    {"text", "pair"}           a pair of texts
    {"text"}                   one text

each with "tasks" (names; none: all tasks that read such inputs) and "n_best" (how many candidates to list).
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag

MOST_CANDIDATES = 20
NOT_BLANK = r"[^\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
"""A character that is no space. Spelled out, because \\s is another set in each dialect of patterns."""
_FORMS = ("question", "pair", "text")


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Text = Annotated[str, StringConstraints(min_length=1, pattern=NOT_BLANK)]
Names = Annotated[list[str], Field(min_length=1, max_length=256)]
Count = Annotated[int, Field(ge=0, le=MOST_CANDIDATES), BeforeValidator(_whole)]


class _Form(BaseModel):
    # Strict: "5" is no number, and an unknown field is a typing error.
    model_config = ConfigDict(strict=True, extra="forbid")


class _Input(_Form):
    tasks: Names | None = None
    n_best: Count = 0

    @property
    def named(self) -> dict[str, str]:
        """The texts by the names of their fields, in order."""
        return {name: text for name, text in self if name not in _Input.model_fields}


class QuestionInput(_Input):
    question: Text
    context: Text


class PairInput(_Input):
    text: Text
    pair: Text


class TextInput(_Input):
    text: Text


def _form_of(value: Any) -> str | None:
    """Which form the fields of a JSON object belong to."""
    if not isinstance(value, dict):
        return None
    if "question" in value or "context" in value:
        return "question"
    return "pair" if "pair" in value else "text"


Input = Annotated[
    Annotated[QuestionInput, Tag("question")]
    | Annotated[PairInput, Tag("pair")]
    | Annotated[TextInput, Tag("text")],
    Discriminator(_form_of),
]


class Batch(_Form):
    inputs: Annotated[list[Input], Field(min_length=1)]


# ---- answers


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
    error: str = Field(description="One sentence: what is wrong, and the way out.")


# ---- what is wrong with a body


_FORM = "is not an input: give text, text and pair, or question and context"
_WRONG = {
    **dict.fromkeys(
        ("union_tag_invalid", "union_tag_not_found", "model_type", "model_attributes_type"),
        "{place} " + _FORM,
    ),
    "missing": "{place} is missing: give it",
    "extra_forbidden": "there is no field {place} here: leave it out",
    **dict.fromkeys(("string_too_short", "string_pattern_mismatch"), "{place} is empty: write it"),
    "string_unicode": "{place} holds half a character: send it in UTF-8",
    "too_long": "{place} has more than {max_length} entries: send fewer at once",
    "too_short": "{place} is an empty list: give at least one entry",
}


def sentence(errors: Sequence[Any]) -> str:
    """The first validation error as one sentence that names the field and the way out."""
    error = errors[0]
    place, kind = _place(error["loc"]), error["type"]
    if kind == "json_invalid" or (kind == "missing" and not place):
        return "the body is not JSON in UTF-8: send an object"
    words = _WRONG.get(kind, "{place} cannot be read ({why}): correct it")
    why = error["msg"][:1].lower() + error["msg"][1:]
    return words.format(place=place or "the body", why=why, **error.get("ctx", {}))


def _place(path: Sequence[str | int]) -> str:
    """`inputs[3].context`. The leading "body" and the name of a form, which stands before a field, are left out."""
    place, parts = "", list(path[1:])
    for i, part in enumerate(parts):
        if isinstance(part, int):
            # A number alone is the position of an error in text that is no JSON.
            place += f"[{part}]" if place else ""
        elif part not in _FORMS or i + 1 == len(parts):
            name = part if len(part) <= 40 else part[:36] + "..."
            place += f".{name}" if place else name
    return repr(place)[1:-1]
