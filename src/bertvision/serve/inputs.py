"""What goes into a bundle: which texts a system reads, and texts and questions from strings, checked."""

from collections.abc import Sequence
from pathlib import Path

from bertvision.data.building import Flaw, SpanBuilder, check_text
from bertvision.data.examples import SpanData
from bertvision.data.texts import TextData, TextExample
from bertvision.errors import DataError
from bertvision.tasks.text.task import TextTask
from bertvision.train.trained import Trained

__all__ = ["as_questions", "asks", "checked_texts", "short_names", "texts_read"]


def asks(system: Trained) -> bool:
    """Whether it reads questions over paragraphs: spans, and answer / no answer."""
    return not isinstance(system.task, TextTask) or system.task.asks


def texts_read(system: Trained) -> int:
    """How many texts an example of its task has."""
    return 2 if asks(system) or (isinstance(system.task, TextTask) and system.task.pairs) else 1


def short_names(folders: Sequence[Path]) -> list[str]:
    """A name for each head's folder: the first part of its path that tells all of them apart, else the whole path below
    the folder they share."""
    paths = [folder.resolve().parts for folder in folders]
    depth = next((i for i, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), None)
    if depth is None:
        return [folder.resolve().name for folder in folders]
    for parts in list(zip(*paths, strict=False))[depth:]:
        if len(set(parts)) == len(parts):
            return list(parts)
    return ["/".join(parts[depth:]) for parts in paths]


def checked_texts(firsts: Sequence[str], seconds: Sequence[str | None]) -> TextData:
    """Texts without labels, checked."""
    examples = [TextExample(str(i), a, b) for i, (a, b) in enumerate(zip(firsts, seconds, strict=True))]
    for example in examples:
        try:
            check_text(example.first, "text", "write it")
            if example.second is not None:
                check_text(example.second, "second text", "write it")
        except Flaw as flaw:
            raise DataError(f"text {int(example.id) + 1}: {flaw}") from None
    return TextData(examples, "label", name="the texts")


def as_questions(data: SpanData | TextData) -> SpanData:
    """The same examples as questions over paragraphs, without answers."""
    if isinstance(data, SpanData):
        return data
    if data.spans is not None:
        return data.spans
    builder = SpanBuilder(data.name)
    for example in data.examples:
        builder.add(example.id, example.first, builder.shared(example.second), ())
    return builder.build()
