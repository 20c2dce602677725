"""What goes into a bundle: names of its systems, and texts from strings, checked."""

from collections.abc import Sequence
from pathlib import Path

from bertvision.data.building import Flaw, check_text
from bertvision.data.texts import TextData, TextExample
from bertvision.errors import DataError

__all__ = ["checked_texts", "short_names"]


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


def checked_texts(
    firsts: Sequence[str], seconds: Sequence[str | None], *, questions: bool = False
) -> TextData:
    """Texts without labels, checked; messages call them questions and contexts where they are."""
    first, second = ("question", "context") if questions else ("text", "second text")
    examples = [TextExample(str(i), a, b) for i, (a, b) in enumerate(zip(firsts, seconds, strict=True))]
    for example in examples:
        try:
            check_text(example.first, first, "write it")
            if example.second is not None:
                check_text(example.second, second, "write it")
        except Flaw as flaw:
            raise DataError(f"{first} {int(example.id) + 1}: {flaw}") from None
    return TextData(examples, "label", name="the texts")
