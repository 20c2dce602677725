"""The data of a study in windows: train without the articles that are held out, those, and dev; for each task.

Articles, not questions, are held out: questions of one article share words and answers.
"""

import dataclasses
import hashlib
from functools import cache

import numpy as np

from bertvision.data.answerable import answerable
from bertvision.data.examples import SpanData
from bertvision.data.load import load_span_data
from bertvision.encoder.encoder import Encoder
from bertvision.errors import ConfigError
from bertvision.study.config import StudyConfig, StudyTask
from bertvision.train.splits import Split, TextConfig, window_split

__all__ = ["Material", "by_article", "held_out"]

_BALANCED = TextConfig(balance=True)
"""Answer / no answer counts both classes alike, as the train set may have few of one."""


def by_article(data: SpanData, share: float, *, seed: int = 0) -> tuple[SpanData, SpanData]:
    """`data` without some of its articles, and those: as many as hold `share` of the questions.

    Paragraphs stand for articles where the data does not name any.
    """
    article = [example.title or str(example.paragraph) for example in data.examples]
    names = sorted(set(article))
    if len(names) < 2:
        raise ConfigError(f"{data.name} has one article alone, and a study holds some out: name more data")
    order = np.random.default_rng(seed).permutation(len(names))
    aside: set[str] = set()
    taken = 0
    counts = {name: 0 for name in names}
    for name in article:
        counts[name] += 1
    for i in order[:-1].tolist():
        if aside and taken >= share * len(data):
            break
        aside.add(names[i])
        taken += counts[names[i]]
    rows = np.array([name in aside for name in article])
    return data.take(np.flatnonzero(~rows).tolist()), data.take(np.flatnonzero(rows).tolist())


def held_out(config: StudyConfig) -> SpanData:
    """The questions of train that thresholds are tuned on."""
    return by_article(load_span_data(config.train), config.holdout)[1]


class Material:
    """Splits by task, made when first asked for."""

    def __init__(self, config: StudyConfig, encoder: Encoder) -> None:
        self.config, self.encoder = config, encoder
        self.rest, self.aside = by_article(load_span_data(config.train), config.holdout)
        self.dev = load_span_data(config.dev)
        self.train = cache(self._train)
        self.part = cache(self._part)

    def _train(self, task: StudyTask, fraction: float = 1.0, seed: int = 0) -> Split:
        """What is trained on; a fraction has whole windows drawn at random, the smaller inside the larger."""
        if fraction < 1:
            whole = self.train(task)
            count = max(1, round(fraction * len(whole.windows)))
            rows = np.sort(np.random.default_rng(seed).permutation(len(whole.windows))[:count])
            words = f"{whole.fingerprint} {fraction:g} {seed}"
            return dataclasses.replace(
                whole,
                windows=whole.windows.take(rows),
                fingerprint=hashlib.blake2b(words.encode(), digest_size=16).hexdigest(),
            )
        if task == "span":
            return window_split(self.rest, self.encoder, self.config.windows)
        return window_split(answerable(self.rest), self.encoder, self.config.windows, text=_BALANCED)

    def _part(self, name: str, task: StudyTask) -> Split:
        """dev or holdout, read as train is."""
        spans = self.dev if name == "dev" else self.aside
        if task == "span":
            return window_split(spans, self.encoder, self.config.windows)
        own = self.train(task)
        return window_split(
            answerable(spans), self.encoder, self.config.windows, task=own.task, text=own.text
        )
