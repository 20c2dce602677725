"""The embedded demo set: a small SQuAD-2.0-like set of our own, three SQuAD files made by tools/demo_set.py.

    train.json      1,800 questions, 30 % without an answer
    dev.json          800 questions, 40 %
    test.json         800 questions, 40 %

Each passage compares two invented things of one topic (bridges, comets, laws, ...). The parts share no passage, name,
sentence form or question template: a head that scores well on test reads sentences it never saw about things it
never saw.
"""

from dataclasses import replace
from pathlib import Path

from bertvision.data.examples import SpanData
from bertvision.data.squad import read_squad
from bertvision.errors import ConfigError

FOLDER = Path(__file__).parent
_PARTS = ("train", "dev", "test")


def demo_data(split: str) -> SpanData:
    """One part of the demo set."""
    if split not in _PARTS:
        parts = ", ".join(f"demo:{name}" for name in _PARTS)
        raise ConfigError(f"the demo set has no part {split!r}; choose one of {parts}")
    return replace(read_squad(FOLDER / f"{split}.json"), name=f"demo-{split}")
