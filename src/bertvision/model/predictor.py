"""One trained system with its encoder: `bv.load(folder).predict(first, second)`."""

from collections.abc import Sequence
from typing import Any

from bertvision.encoder.encoder import Encoder
from bertvision.model.model import Bundle, Texts, Walk
from bertvision.model.trained import Trained
from bertvision.tasks.walk import walk_windows

__all__ = ["Predictor"]


class Predictor:
    """A bundle of one system, whose predictions need no name."""

    def __init__(
        self,
        trained: Trained,
        encoder: Encoder,
        *,
        layers: Sequence[Trained] = (),
        walk: Walk = walk_windows,
    ) -> None:
        """
        Args:
            layers: Readers of single hidden states, for `explain`.
            walk: What computes the logits; by default torch.
        """
        self.trained, self.encoder = trained, encoder
        self.bundle = Bundle(
            [trained], encoder, layers={trained.name: layers}, names=[trained.name], walk=walk
        )

    @property
    def tuning(self) -> Any:
        """What was fitted on dev; another may be put here."""
        return next(iter(self.bundle.tunings.values()))

    @tuning.setter
    def tuning(self, tuning: Any) -> None:
        self.bundle.tunings = dict.fromkeys(self.bundle.tunings, tuning)

    def predict(self, first: Texts, second: str | Sequence[str] | None = None, *, n_best: int = 0) -> Any:
        """The prediction for one text, pair or question, or a list of them for several.

        Args:
            first: A text, the first of a pair, or a question.
            second: The other text, or the paragraph; one for all, or as many as there are first ones.
            n_best: How many of the best candidates are listed beside an answer found in a paragraph.
        """
        found: Any = self.bundle.predict(first, second, n_best=n_best)  # pyright: ignore[reportArgumentType, reportCallIssue]
        rows = [next(iter(row.values())) for row in ([found] if isinstance(first, str) else found)]
        return rows[0] if isinstance(first, str) else rows

    def answer(self, data: Any) -> Any:
        """Answers to a whole dataset, whose labels are not looked at."""
        (answers,) = self.bundle.answer(data).values()
        return answers

    def explain(self, first: str, second: str | None = None, *, n_best: int = 5) -> dict[str, Any]:
        """What the answer was made of (model/explain.py)."""
        return self.bundle.explain(first, second, n_best=n_best)
