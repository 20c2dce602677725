"""The embedded demo set: a small SQuAD-2.0-like set of our own, made from a seed in a second.

    train = demo_data("train")      # 1,800 questions, 30 % without an answer
    dev = demo_data("dev")          #   800 questions, 40 %
    test = demo_data("test")        #   800 questions, 40 %

Each passage compares two invented things of one topic (bridges, comets, laws, ...). The parts share no
passage, name, sentence form or question template, so a head that scores well on test has learnt to read
sentences it never saw about things it never saw. `demo_parts` lists what a part is made of.
"""

from dataclasses import dataclass

from bertvision.data.demo.generate import SIZES, passages
from bertvision.data.examples import Example, SpanData
from bertvision.errors import DataError

__all__ = ["DemoParts", "demo_data", "demo_parts"]


@dataclass(frozen=True)
class DemoParts:
    """What one part of the demo set is made of, so that a test can compare parts."""

    titles: frozenset[str]
    names: frozenset[str]
    """Full names of people, places, organisations and things."""
    forms: frozenset[str]
    """Sentence forms, {S} and {A} standing for the thing and the value."""
    templates: frozenset[str]
    """Question templates."""
    reasons: dict[str, int]
    """How many questions have no answer, by reason."""


def _checked(split: str) -> str:
    if split not in SIZES:
        raise DataError(f"The demo set has no part {split!r}; choose one of {', '.join(SIZES)}.")
    return split


def demo_data(split: str, *, seed: int = 0) -> SpanData:
    """One part of the demo set; the same for the same seed on every machine."""
    made = passages(_checked(split), seed=seed)
    examples = [
        Example(f"demo-{split}-{i:03d}-{j}", q.text, i, q.answers, passage.title)
        for i, passage in enumerate(made)
        for j, q in enumerate(passage.questions)
    ]
    return SpanData([passage.text for passage in made], examples, f"demo-{split}")


def demo_parts(split: str, *, seed: int = 0) -> DemoParts:
    """What `demo_data(split, seed=seed)` is made of."""
    made = passages(_checked(split), seed=seed)
    questions = [q for passage in made for q in passage.questions]
    reasons = [q.reason for q in questions if q.reason]
    return DemoParts(
        titles=frozenset(passage.title for passage in made),
        names=frozenset(name for passage in made for name in passage.names),
        forms=frozenset(form for passage in made for form in passage.forms),
        templates=frozenset(q.template for q in questions),
        reasons={reason: reasons.count(reason) for reason in sorted(set(reasons))},
    )
