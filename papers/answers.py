"""What systems answered, question by question: the official measure, written down once more, and what is made of it.

Shapes: Q questions of dev, in the order of the file; R rows of weights (draws of a bootstrap).
"""

import json
import re
import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.data import questions, write_json

Array = NDArray[np.float64]
_FILE = "answers.json"


def condense(scores: Path) -> None:
    """Keep of every system's n-best lists the best answer and the odds of none: a twentieth of the size."""
    for path in sorted(scores.glob("**/nbest_predictions.json")):
        nbest = json.loads(path.read_text(encoding="utf-8"))
        odds = json.loads(path.with_name("null_odds.json").read_text(encoding="utf-8"))
        best = {
            name: [next((one["text"] for one in found if one["text"]), ""), odds[name]]
            for name, found in nbest.items()
        }
        write_json(scores / path.relative_to(scores).parts[0] / _FILE, best)
        path.unlink()
        path.with_name("null_odds.json").unlink()


def normalised(text: str) -> list[str]:
    """The words that count: lower case, without punctuation and articles."""
    text = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


class Gold:
    """The questions of dev and their right answers."""

    def __init__(self, path: Path) -> None:
        found = list(questions(json.loads(path.read_text(encoding="utf-8"))))
        self.ids: list[str] = [question["id"] for _, question in found]
        self.answerable: Array = np.array([bool(question["answers"]) for _, question in found], np.float64)
        self.lengths: Array = np.array([len(context.split()) for context, _ in found], np.float64)
        """Words of the paragraph."""
        self._right: list[list[list[str]]] = [
            [words for one in question["answers"] if (words := normalised(one["text"]))] or [[]]
            for _, question in found
        ]

    def score(self, answers: list[str]) -> tuple[Array, Array]:
        """(Q,) exact match and F1 of the official measure."""
        exact, f1 = np.zeros(len(answers)), np.zeros(len(answers))
        for i, (answer, right) in enumerate(zip(answers, self._right, strict=True)):
            words = normalised(answer)
            exact[i] = max(words == gold for gold in right)
            f1[i] = max(_f1(words, gold) for gold in right)
        return exact, f1


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    same = sum((Counter(answer) & Counter(gold)).values())
    return 2 * same / (len(answer) + len(gold))


@dataclass(frozen=True)
class Answers:
    """One system's answers to all of dev: a metric is the sum of its first array over that of its second."""

    ratios: Mapping[str, tuple[Array, Array]]

    @classmethod
    def read(cls, folder: Path, gold: Gold, threshold: float | None) -> "Answers | None":
        """Answers to questions, or whether they have one; None where the folder holds neither."""
        if (path := folder / _FILE).exists():
            return cls(_spans(json.loads(path.read_text(encoding="utf-8")), gold, threshold))
        if (path := folder / "eval" / "predictions.json").exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            if found.keys() == set(gold.ids):
                return cls(_labels(found, gold))
        return None

    def scores(self, weights: Array) -> dict[str, Array]:
        """(R,) every metric in percent under weights (R, Q) of the questions."""
        return {
            name: 100 * (weights @ top) / np.maximum(weights @ bottom, 1e-9)
            for name, (top, bottom) in self.ratios.items()
        }

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """(Q,) exactly right at threshold 0."""
        return self.ratios["exact"][0] > 0.5


def _spans(
    found: dict[str, list[Any]], gold: Gold, threshold: float | None
) -> dict[str, tuple[Array, Array]]:
    texts = [found[name][0] for name in gold.ids]
    odds = np.array([found[name][1] for name in gold.ids])
    some, every = gold.answerable, np.ones(len(texts))
    exact, f1 = gold.score(["" if null else text for text, null in zip(texts, odds > 0, strict=True)])
    ratios = {"exact": (exact, every), "f1": (f1, every)}
    ratios |= {"HasAns_exact": (exact * some, some), "NoAns_exact": (exact * (1 - some), 1 - some)}
    if threshold is not None:
        tuned = gold.score(["" if null else text for text, null in zip(texts, odds > threshold, strict=True)])
        ratios |= {"tuned_exact": (tuned[0], every), "tuned_f1": (tuned[1], every)}
    return ratios


def _labels(found: dict[str, str], gold: Gold) -> dict[str, tuple[Array, Array]]:
    """Accuracy, and F1 of no answer."""
    said = np.array([found[name] == "no answer" for name in gold.ids], np.float64)
    true = 1 - gold.answerable
    right = (said == true).astype(np.float64)
    return {"accuracy": (right, np.ones(len(said))), "f1": (2 * said * true, said + true)}
