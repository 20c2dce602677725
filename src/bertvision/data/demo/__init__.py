"""The embedded demo set: a small SQuAD-2.0-like set of our own, three SQuAD files made by tools/demo_set.py.

    train.json      1,800 questions, 30 % without an answer
    dev.json          800 questions, 40 %
    test.json         800 questions, 40 %

Each passage compares two invented things of one topic (bridges, comets, laws, ...). The parts share no passage, name,
sentence form or question template: a head that scores well on test reads sentences it never saw about things it
never saw.
"""

import math
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from bertvision.data.examples import SpanData, read_squad
from bertvision.errors import ConfigError

FOLDER = Path(__file__).parent
_PARTS = ("train", "dev", "test")


def demo_data(split: str) -> SpanData:
    if split not in _PARTS:
        parts = ", ".join(f"demo:{name}" for name in _PARTS)
        raise ConfigError(f"the demo set has no part {split!r}; choose one of {parts}")
    return replace(read_squad(FOLDER / f"{split}.json"), name=f"demo-{split}")


# ---- answering without reading

_COMMON = r"(?:a|an|the|of|in|on|at|by|to|for|with|from|is|are|was|were|did|does|do|has|have|had)"
_NAME = r"[A-Z][a-z]+(?: [A-Z][a-z]+)*"
_NUMBER = r"\d+(?: (?:metres|days|years|minutes|[a-z]+s\b))?"
_HOW = "how (many|much|long|large|big|high|far|often)"
_ASKS = (
    ("year", r"\b(when|year)\b"),
    ("number", rf"\b({_HOW}|number|sum|price|amount|length|duration)\b"),
    ("name", r"\b(who|whom|whose|where|town|place|which (person|river|body))\b"),
)
_FITS = {
    "year": re.compile(r"\b1[6-9]\d\d\b"),
    "number": re.compile(rf"\b(?!1[6-9]\d\d\b){_NUMBER}"),
    "name": re.compile(rf"\b{_NAME}"),
    "any": re.compile(rf"\b{_NUMBER}|\b{_NAME}|\b[a-z]{{4,}}"),
}


def overlap_answers(data: SpanData) -> list[tuple[str, float]]:
    """For every example the guess and its score, 0 to 1."""
    seen = Counter(stem for text in data.paragraphs for stem in set(stems(text)))
    rarity = {stem: math.log(1 + len(data.paragraphs) / n) for stem, n in seen.items()}
    unseen = math.log(1 + len(data.paragraphs))
    answers: list[tuple[str, float]] = []
    for example in data.examples:
        asked = {stem: rarity.get(stem, unseen) for stem in stems(example.question)}
        best, found = ("", 0.0), -1.0
        for sentence in re.split(r"(?<=\.) ", data.context(example)):
            shared = asked.keys() & set(stems(sentence))
            score = sum(weight for stem, weight in asked.items() if stem in shared)
            guess = _guess(sentence, example.question, shared) if score > found else ""
            if guess:
                best, found = (guess, score / sum(asked.values())), score
        answers.append(best)
    return answers


def stems(text: str) -> list[str]:
    """Words of a text except the commonest, each cut to five letters: "designed" matches "designer"."""
    return [word[:5] for word in re.findall(rf"\b(?!{_COMMON}\b)\w+", text.lower())]


def _guess(sentence: str, question: str, shared: set[str]) -> str:
    """The phrase of the kind asked for that stands nearest to the shared words; "" when there is none."""
    kind = next((kind for kind, pattern in _ASKS if re.search(pattern, question.lower())), "any")
    asked = set(stems(question))
    places = [m.start() for m in re.finditer(r"\w+", sentence) if m.group().lower()[:5] in shared]
    fits = [m for m in _FITS[kind].finditer(sentence) if not asked & set(stems(m.group()))]
    fits = [m for m in fits if m.group() not in ("The", "This", "It", "In", "At", "On", "From", "After", "A")]
    if not fits:
        return ""
    nearest = min(fits, key=lambda m: min((abs(m.start() - place) for place in places), default=0))
    return nearest.group()
