"""Answers to questions over paragraphs: `bv.load(folder).predict(question, context)`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from bertvision.data.building import Flaw, SpanBuilder
from bertvision.data.examples import SpanData
from bertvision.encoder.encoder import Encoder
from bertvision.errors import DataError
from bertvision.feed import LiveFeed
from bertvision.tasks.span.answers import SpanAnswers
from bertvision.tasks.span.decode import DecodeConfig, decode
from bertvision.train.evaluate import logits_by_reading
from bertvision.train.splits import window_split
from bertvision.train.trained import Trained, join

__all__ = ["Prediction", "Predictor"]


@dataclass(frozen=True)
class Prediction:
    text: str
    """The answer; empty for no answer."""
    start: int
    """First character of the answer in the context, -1 for no answer."""
    end: int
    """One past its last character, -1 for no answer."""
    probability: float
    """Of the best answer found, whether or not it was given."""
    no_answer_probability: float


class Predictor:
    """A trained system with its encoder, ready to answer."""

    def __init__(self, trained: Trained, encoder: Encoder, *, decoding: DecodeConfig | None = None) -> None:
        self.trained, self.encoder = trained, encoder
        self.decoding = decoding or trained.decoding()
        for head in trained.heads:
            head.to(encoder.device).eval()

    @overload
    def predict(self, question: str, context: str) -> Prediction: ...
    @overload
    def predict(self, question: list[str] | tuple[str, ...], context: Sequence[str]) -> list[Prediction]: ...
    def predict(
        self, question: str | list[str] | tuple[str, ...], context: str | Sequence[str]
    ) -> Prediction | list[Prediction]:
        """Answer one question, or several (each over its own context, or all over the same)."""
        questions = [question] if isinstance(question, str) else list(question)
        contexts = [context] * len(questions) if isinstance(context, str) else list(context)
        if len(questions) != len(contexts):
            raise DataError(f"predict got {len(questions)} questions but {len(contexts)} contexts")
        if not questions:
            return []
        builder = SpanBuilder("the questions")
        for i, (asked, read) in enumerate(zip(questions, contexts, strict=True)):
            try:
                builder.add(str(i), asked, builder.shared(read), ())
            except Flaw as flaw:
                raise DataError(f"question {i + 1}: {flaw}") from None
        found = self.predictions(self.answer(builder.build()))
        return found[0] if isinstance(question, str) else found

    def answer(self, data: SpanData) -> SpanAnswers:
        """Answers to a whole data set, with all their candidates."""
        split = window_split(data, self.encoder, self.trained.windows, keep=False)
        heads = {str(i): reader for i, reader in enumerate(self.trained.readers)}
        feed_of = lambda reading: LiveFeed(self.encoder, split.windows, reading=reading)  # noqa: E731
        logits = list(logits_by_reading(heads, feed_of, label="predict").values())
        return decode(split.windows, join(self.trained, logits, split.windows), data, self.decoding)

    @staticmethod
    def predictions(answers: SpanAnswers) -> list[Prediction]:
        """One `Prediction` a question, at the decoding's threshold."""
        null, texts = answers.is_null(), answers.text
        return [
            Prediction(
                text="" if null[i] else texts[i],
                start=-1 if null[i] else int(answers.span[i, 0]),
                end=-1 if null[i] else int(answers.span[i, 1]),
                probability=float(answers.probability[i]),
                no_answer_probability=float(answers.no_answer_probability[i]),
            )
            for i in range(len(answers))
        ]
