"""The embedded demo set: a small SQuAD-2.0-like set of our own, made from a seed in a second.

    train = demo_data("train")      # 1,800 questions, 30 % without an answer
    dev = demo_data("dev")          #   800 questions, 40 %
    test = demo_data("test")        #   800 questions, 40 %

Each passage compares two invented things of one topic (bridges, comets, laws, ...). The parts share no passage, name,
sentence form or question template: a head that scores well on test reads sentences it never saw about things it
never saw.
"""

from bertvision.data.demo.generate import SIZES, passages
from bertvision.data.examples import Example, SpanData
from bertvision.errors import ConfigError

__all__ = ["demo_data"]


def demo_data(split: str, *, seed: int = 0) -> SpanData:
    """One part of the demo set; the same for the same seed on every machine."""
    if split not in SIZES:
        parts = ", ".join(f"demo:{name}" for name in SIZES)
        raise ConfigError(f"the demo set has no part {split!r}; choose one of {parts}")
    made = passages(split, seed=seed)
    examples = [
        Example(f"demo-{split}-{i:03d}-{j}", q.text, i, q.answers, passage.title)
        for i, passage in enumerate(made)
        for j, q in enumerate(passage.questions)
    ]
    return SpanData([passage.text for passage in made], examples, f"demo-{split}")
