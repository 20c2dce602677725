"""Answers to questions over paragraphs: `bv.load(folder).predict(question, context)`."""

from collections.abc import Sequence
from typing import Any, overload

from bertvision.data.building import Flaw, SpanBuilder
from bertvision.data.examples import SpanData
from bertvision.encoder.encoder import Encoder
from bertvision.errors import DataError
from bertvision.serve.bundle import Bundle, Walk
from bertvision.serve.predictions import Candidate, Prediction, check_n_best, span_predictions
from bertvision.serve.walk import walk
from bertvision.tasks.span.answers import SpanAnswers
from bertvision.tasks.span.decode import DecodeConfig
from bertvision.train.trained import Trained

__all__ = ["Candidate", "Prediction", "Predictor"]


class Predictor:
    """A trained system with its encoder, ready to answer: a bundle of one that speaks of questions."""

    def __init__(
        self,
        trained: Trained,
        encoder: Encoder,
        *,
        decoding: DecodeConfig | None = None,
        layers: Sequence[Trained] = (),
        walk: Walk = walk,
    ) -> None:
        """
        Args:
            decoding: How logits become answers; by default as the threshold was tuned, at that threshold.
            layers: Readers of single hidden states, for `explain`.
            walk: What computes the logits; by default torch.
        """
        self.trained, self.encoder = trained, encoder
        self.bundle = Bundle(
            [trained], encoder, layers={trained.name: layers}, names=[trained.name], walk=walk
        )
        if decoding is not None:
            self.decoding = decoding

    @property
    def decoding(self) -> DecodeConfig:
        """How logits become answers."""
        return self.bundle.decodings[self.trained.name]

    @decoding.setter
    def decoding(self, decoding: DecodeConfig) -> None:
        self.bundle.decodings[self.trained.name] = decoding

    @overload
    def predict(self, question: str, context: str, *, n_best: int = 0) -> Prediction: ...
    @overload
    def predict(
        self, question: list[str] | tuple[str, ...], context: Sequence[str], *, n_best: int = 0
    ) -> list[Prediction]: ...
    def predict(
        self, question: str | list[str] | tuple[str, ...], context: str | Sequence[str], *, n_best: int = 0
    ) -> Prediction | list[Prediction]:
        """Answer one question, or several (each over its own context, or all over the same).

        With `n_best` so many of the best candidates are told too.
        """
        check_n_best(n_best)
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
        answers = self.answer(builder.build())
        found = span_predictions(answers, self.bundle.no_answers[self.trained.name], n_best=n_best)
        return found[0] if isinstance(question, str) else found

    def answer(self, data: SpanData) -> SpanAnswers:
        """Answers to a whole data set, with all their candidates."""
        (answers,) = self.bundle.answer(data).values()
        assert isinstance(answers, SpanAnswers)
        return answers

    def explain(self, question: str, context: str, *, n_best: int = 5) -> dict[str, Any]:
        """What the answer was made of (serve/explain.py)."""
        return self.bundle.explain(question, context, n_best=n_best)
