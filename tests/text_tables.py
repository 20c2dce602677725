"""Small tables of texts for the command line: labels of pairs, scores of single texts."""

import csv
import random
from pathlib import Path

LABELS = ("no", "perhaps", "yes")
_WORDS = (
    *("the", "a", "cat", "dog", "river", "city", "stone", "house", "green", "old"),
    *("runs", "stands", "falls", "near", "under", "over"),
)


def _text(chance: random.Random, length: int) -> str:
    return " ".join(chance.choice(_WORDS) for _ in range(length))


def write_labels(path: Path, seed: int, *, examples: int = 30, labelled: bool = True) -> Path:
    """Pairs with one of three labels; two are longer than a window of 32 tokens."""
    chance = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "sentence1", "sentence2", *["label"] * labelled])
        for i in range(examples):
            label = chance.choice(LABELS)
            first = _text(chance, 60 if i in (2, 7) else chance.randint(2, 8))
            table.writerow([f"{seed}-{i}", first, f"{label} {_text(chance, 4)}", *[label] * labelled])
    return path


def write_scores(path: Path, seed: int, *, examples: int = 30) -> Path:
    """Texts with a score: how often a word stands in them."""
    chance = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["id", "text", "score"])
        for i in range(examples):
            text = _text(chance, chance.randint(3, 12))
            table.writerow([f"{seed}-{i}", text, 1.5 * text.split().count("the") + 0.5 * len(text.split())])
    return path
