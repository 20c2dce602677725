"""Prompts and templates: a question in front of every example, and a sentence that holds its texts (Q&ABERT).

    prompt "Does the first question paraphrase the second question?"
    context "First sentence: {first} Second sentence: {second}"

The prompt becomes the first text of a pair and the filled context the second; without a prompt the filled context is a
single text. Neither may hold the label: a context knows {first} and {second} alone.
"""

from dataclasses import dataclass, replace
from string import Formatter

from bertvision.data.examples import TextData, TextExample
from bertvision.errors import ConfigError

_PAIR_CONTEXT = "First sentence: {first} Second sentence: {second}"
"""How the Q&ABERT paper writes a pair behind its question."""
_USAGE = "write {first} and {second} where the texts belong"


@dataclass(frozen=True)
class Reframe:
    """How texts are rewritten before a tokenizer sees them."""

    prompt: str = ""
    """A question put in front of every example as its first text; none: no question."""
    context: str = ""
    """The texts as one, with {first} and {second} in their places; none: the texts as they are, and behind a prompt
    "First sentence: {first} Second sentence: {second}" where there are two."""

    def __post_init__(self) -> None:
        if "{" in self.prompt or "}" in self.prompt:
            raise ConfigError(
                "--text.prompt is the same for every example and takes no {...}: "
                "put the texts into --text.context"
            )
        if self.context:
            _parse(self.context)


def reframe(data: TextData, how: Reframe) -> TextData:
    """Rewrite the texts as `how` says; labels, ids and order stay."""
    if not how.prompt and not how.context:
        return data
    if data.spans is not None:
        raise ConfigError(
            f"{data.name} is made of questions already: leave out --text.prompt and --text.context"
        )
    template = how.context or (_PAIR_CONTEXT if data.pairs else "{first}")
    parts = _parse(template)
    if not data.pairs and any(field == "second" for _, field in parts):
        raise ConfigError(
            f"{data.name} has one text an example: leave {{second}} out of --text.context {template!r}"
        )

    def rewritten(example: TextExample) -> TextExample:
        texts = {"first": example.first, "second": example.second or "", "": ""}
        # Not str.format: a text with braces of its own is no template.
        context = "".join(plain + texts[field] for plain, field in parts)
        first, second = (how.prompt, context) if how.prompt else (context, None)
        return replace(example, first=first, second=second)

    return replace(data, examples=[rewritten(example) for example in data.examples])


def _parse(template: str) -> list[tuple[str, str]]:
    """The template as pieces of plain text, each with the field behind it ("" at the end)."""
    try:
        found = list(Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"--text.context {template!r} has a stray brace ({error}): {_USAGE}") from None
    for _, field, form, conversion in found:
        if field is not None and (field not in ("first", "second") or form or conversion):
            written = field + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            raise ConfigError(
                f"--text.context may not hold {{{written}}}: {_USAGE}; the label can never be in it"
            )
    if not any(field for _, field, _, _ in found):
        raise ConfigError(f"--text.context {template!r} holds none of the texts: {_USAGE}")
    return [(plain, field or "") for plain, field, _, _ in found]
