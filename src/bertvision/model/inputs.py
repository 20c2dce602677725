"""What a model predicts on: texts from strings, or examples of a file; checked, and without labels."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bertvision.data.checks import Flaw, check_text
from bertvision.data.examples import SpanData, TextData, TextExample
from bertvision.data.load import load_data, load_span_data
from bertvision.data.texts import Columns
from bertvision.errors import ConfigError, DataError
from bertvision.tasks.base import Task
from bertvision.tasks.texts import holds_questions


def checked_texts(
    firsts: Sequence[str], seconds: Sequence[str | None], *, questions: bool = False
) -> TextData:
    """Texts without labels, checked; messages call them questions and contexts where they are."""
    first, second = ("question", "context") if questions else ("text", "second text")
    examples = [TextExample(str(i), a, b) for i, (a, b) in enumerate(zip(firsts, seconds, strict=True))]
    for example in examples:
        try:
            check_text(example.first, first)
            if example.second is not None:
                check_text(example.second, second)
        except Flaw as flaw:
            raise DataError(f"{first} {int(example.id) + 1}: {flaw}") from None
    return TextData(examples, "label", name="the texts")


def load_inputs(
    source: str, tasks: Mapping[str, Task], *, columns: Columns, max_examples: int | None = None
) -> SpanData | TextData:
    """The examples of a file as these tasks read them: as questions, or as texts whose labels do not matter."""
    asking = [name for name, task in tasks.items() if task.reads_questions]
    if 0 < len(asking) < len(tasks):
        raise ConfigError(
            f"of these tasks {', '.join(asking)} read questions and the others texts: name those that --data suits "
            "with --tasks"
        )
    if asking:
        source = source.removeprefix("answerable:")
        return load_span_data(source, max_examples=max_examples, answers_required=False)
    named = source.startswith(("glue:", "cs224n:"))
    # "label" and not "auto": a table with questions and contexts may be one of pairs.
    data = load_data(
        source,
        columns=columns,
        task="auto" if named else "label",
        max_examples=max_examples,
        answers_required=False,
    )
    if not isinstance(data, TextData) or holds_questions(data):
        raise ConfigError(f"--data {source} holds questions, and this folder gives labels or scores of texts")
    return replace(data, examples=[replace(example, label=None) for example in data.examples])
