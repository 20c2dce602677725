"""What may be asked, checked against the tasks there are and the server's limits, and what is wrong in one sentence.

    {"question", "context"} or {"text", "pair"}    for tasks that read two texts
    {"text"}                                       for tasks that read one

each with "tasks" (names; none = all that read as many texts) and "n_best" (how many of the best answers). A form that
no task of this server reads does not exist here, so the schemas in the OpenAPI document accept what the server does.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    TypeAdapter,
    ValidationError,
    create_model,
)

from bertvision.data.building import shorten
from bertvision.serve.http.catalogue import Catalogue
from bertvision.serve.http.limits import ServeConfig

__all__ = ["MOST_CANDIDATES", "NOT_BLANK", "Asked", "BadRequest", "Requests"]

MOST_CANDIDATES = 20
"""The longest list of best answers."""
NOT_BLANK = r"[^\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"
"""A character that is no space. Spelled out, because \\s is another set in each dialect of patterns."""


_FIELDS = {"text": ("text",), "pair": ("text", "pair"), "question": ("question", "context")}
"""The forms of an input and the texts each of them has."""


class BadRequest(ValueError):
    """What is wrong with a body, in one sentence."""


@dataclass(frozen=True)
class Asked:
    """One input."""

    first: str
    second: str | None
    tasks: tuple[str, ...]
    """The tasks that are to answer, in the server's order; never empty."""
    n_best: int
    """How many of the best answers are told; 0 = only the best."""

    @property
    def characters(self) -> int:
        return len(self.first) + len(self.second or "")


class _Form(BaseModel):
    # Strict: "5" is no number, and a field nobody knows is a slip of the pen.
    model_config = ConfigDict(strict=True, extra="forbid")


class Requests:
    """The bodies that a server with these tasks understands."""

    def __init__(self, catalogue: Catalogue, config: ServeConfig) -> None:
        self.catalogue, self.config = catalogue, config
        one, two = catalogue.reading(1), catalogue.reading(2)
        self.wanted = " or ".join([*(["text"] if one else []), *(["question and context"] if two else [])])
        form = self._form(one, two)
        inputs: Any = Annotated[list[form], Field(min_length=1, max_length=config.max_batch)]
        self._one: TypeAdapter[Any] = TypeAdapter(form)
        self._several: TypeAdapter[Any] = TypeAdapter(
            create_model("Batch", __base__=_Form, inputs=(inputs, ...))
        )

    def _form(self, one: tuple[str, ...], two: tuple[str, ...]) -> Any:
        """The type of an input: one of the forms that some task reads."""
        text: Any = Annotated[
            str, StringConstraints(min_length=1, max_length=self.config.max_text, pattern=NOT_BLANK)
        ]
        count: Any = Annotated[int, Field(ge=0, le=MOST_CANDIDATES), BeforeValidator(_whole)]
        forms: list[Any] = []
        for name, fields in _FIELDS.items():
            tasks = one if len(fields) == 1 else two
            if not tasks:
                continue
            # No more than there are: a megabyte of wrong names would be as many errors, and seconds of work.
            most = Field(min_length=1, max_length=len(tasks))
            names: Any = Annotated[list[Literal[tasks]], most]  # pyright: ignore[reportInvalidTypeForm]
            shape: dict[str, Any] = {field: (text, ...) for field in fields}
            shape |= {"tasks": (names | None, None), "n_best": (count, 0)}
            made: Any = create_model(f"{name.title()}Input", __base__=_Form, **shape)
            forms.append(Annotated[made, Tag(name)])
        if len(forms) == 1:
            return forms[0]
        return Annotated[Union[tuple(forms)], Discriminator(_form_of)]  # noqa: UP007 (of a list)

    # ---- reading

    def one(self, body: bytes) -> Asked:
        """The input of a body."""
        return self._asked(self._read(self._one, body))

    def several(self, body: bytes) -> list[Asked]:
        """The inputs of a batch."""
        return [self._asked(form) for form in self._read(self._several, body).inputs]

    def _read(self, adapter: TypeAdapter[Any], body: bytes) -> Any:
        try:
            return adapter.validate_json(body)
        except ValidationError as error:
            raise BadRequest(self._sentence(error.errors(include_url=False)[0])) from None

    def _asked(self, form: Any) -> Asked:
        values = form.model_dump()
        first = values.get("question", values.get("text"))
        second = values.get("context", values.get("pair"))
        fitting = self.catalogue.reading(1 if second is None else 2)
        wanted = values["tasks"] or fitting
        return Asked(first, second, tuple(name for name in fitting if name in wanted), values["n_best"])

    def _sentence(self, error: Any) -> str:
        """What is wrong first, where, and the way out."""
        place, kind, limits = _place(error["loc"]), error["type"], error.get("ctx", {})
        match kind:
            case "json_invalid":
                return "the body is not JSON in UTF-8: send an object"
            case "union_tag_invalid" | "union_tag_not_found" | "model_type" | "model_attributes_type":
                return f"{place or 'the body'} is no input that a task here reads: give {self.wanted}"
            case "missing":
                return f"{place} is missing: give it"
            case "extra_forbidden":
                return f"there is no field {place} here: leave it out"
            case "string_too_long":
                return f"{place} is longer than {limits['max_length']} characters: send it in parts"
            case "string_too_short" | "string_pattern_mismatch":
                return f"{place} is empty: write it"
            case "string_unicode":
                return f"{place} holds half a character: send it in UTF-8"
            case "literal_error":
                return self._no_task(error["input"], limits["expected"])
            case "too_long":
                return f"{place} has more than {limits['max_length']} entries: send fewer at once"
            case "too_short":
                return f"{place} is an empty list: give at least one entry"
            case _:
                told = error["msg"][:1].lower() + error["msg"][1:]
                return f"{place or 'the body'} cannot be read ({told}): correct it"

    def _no_task(self, name: Any, expected: str) -> str:
        """What is wrong with a task that cannot answer this input."""
        for texts, words in ((1, "one text, and two are"), (2, "two texts, and one is")):
            if name in self.catalogue.reading(texts):
                return f"{name} reads {words} given: name one of {expected}"
        return f"there is no task {shorten(name)}: name one of {expected}"

    # ---- the OpenAPI document

    def schemas(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The schemas of the bodies `one` and `several`, and the components they refer to."""
        components: dict[str, Any] = {}
        bodies: dict[str, Any] = {}
        for kind, adapter in (("one", self._one), ("several", self._several)):
            schema = adapter.json_schema(ref_template="#/components/schemas/{model}")
            components |= schema.pop("$defs", {})
            bodies[kind] = schema
        return bodies, components


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 5.0 is 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _form_of(value: Any) -> str | None:
    """Which form a JSON object has the fields of."""
    if not isinstance(value, dict):
        return None
    if "question" in value or "context" in value:
        return "question"
    return "pair" if "pair" in value else "text"


def _place(path: tuple[str | int, ...]) -> str:
    """`inputs[3].context`; the name of the form, which stands before a field, is left out."""
    told = ""
    for i, part in enumerate(path):
        if isinstance(part, int):
            told += f"[{part}]"
        elif part not in _FIELDS or i + 1 == len(path):
            name = shorten(part)[1:-1]  # it may be what somebody sent
            told += f".{name}" if told else name
    return told
