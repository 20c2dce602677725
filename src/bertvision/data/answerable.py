"""Answer / no answer: the questions of a `SpanData` as a label task.

The classes are "answer" and "no answer"; the positive one, whose F1 is told, is "no answer". The questions are kept, as
the label of a window is whether the answer is inside it (`text_windows`).
"""

from bertvision.data.examples import SpanData
from bertvision.data.texts import TextData, TextExample

__all__ = ["ANSWERABLE", "answerable"]

ANSWERABLE = ("answer", "no answer")


def answerable(spans: SpanData, *, answers_required: bool = True) -> TextData:
    """Which questions their paragraphs answer.

    Without `answers_required` a set in which no question has an answer is one whose answers are not known.
    """
    known = answers_required or any(e.answerable for e in spans.examples)
    examples = [
        TextExample(e.id, e.question, spans.context(e), int(not e.answerable) if known else None)
        for e in spans.examples
    ]
    return TextData(examples, "label", ANSWERABLE, f"answerable:{spans.name}", "accuracy", 1, spans)
