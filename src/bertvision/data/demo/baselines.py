"""Two ways to answer without reading, which a trained head has to beat by far.

`no_answers` always abstains. `overlap_answers` takes the sentence that shares the most (and the rarest) words with
the question and answers with a phrase of it that fits the question word, the one nearest to the shared words. Its
score is the share of the question's weight found in that sentence; `abstain` drops answers with a low score.
"""

import math
import re
from collections import Counter

from bertvision.data.examples import SpanData

_COMMON = r"(?:a|an|the|of|in|on|at|by|to|for|with|from|is|are|was|were|did|does|do|has|have|had)"
_NAME = r"[A-Z][a-z]+(?: [A-Z][a-z]+)*"
_NUMBER = r"\d+(?: (?:metres|days|years|minutes|[a-z]+s\b))?"
_ASKS = (
    ("year", r"\b(when|year)\b"),
    (
        "number",
        r"\b(how (many|much|long|large|big|high|far|often)|number|sum|price|amount|length|duration)\b",
    ),
    ("name", r"\b(who|whom|whose|where|town|place|which (person|river|body))\b"),
)
_FITS = {
    "year": re.compile(r"\b1[6-9]\d\d\b"),
    "number": re.compile(rf"\b(?!1[6-9]\d\d\b){_NUMBER}"),
    "name": re.compile(rf"\b{_NAME}"),
    "any": re.compile(rf"\b{_NUMBER}|\b{_NAME}|\b[a-z]{{4,}}"),
}


def no_answers(data: SpanData) -> list[str]:
    """The empty answer for every example."""
    return [""] * len(data)


def overlap_answers(data: SpanData) -> list[tuple[str, float]]:
    """The guess and its score, 0 to 1, for every example."""
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


def abstain(answers: list[tuple[str, float]], threshold: float) -> list[str]:
    """Keep the answers that score at least `threshold`."""
    return [text if score >= threshold else "" for text, score in answers]


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
