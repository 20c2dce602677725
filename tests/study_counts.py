"""Systems of a study with as many right answers as one likes: scores that can be counted on fingers."""

from typing import Any

import numpy as np
from study_cases import made_data

from bertvision.data.examples import SpanData
from bertvision.study.about import About
from bertvision.study.records import SpanRecord, answerable_of, half_unanswerable_threshold
from bertvision.study.view import Study, System

DEV = made_data(200, 1, unanswerable=0.5, name="dev")
HELD = made_data(100, 2, unanswerable=0.5, name="held")


def answers(data: SpanData, right: int) -> SpanRecord:
    """The first `right` questions right and all others wrong, at every threshold around 0."""
    known, good = answerable_of(data), np.arange(len(data)) < right
    # Right: an answer that is all of it, or none where there is none. Wrong: an answer that is not one.
    diff = np.where(good & ~known, 1.0, -1.0).astype(np.float32)
    found = (good & known).astype(np.float32)
    return SpanRecord(diff, found, found, np.full((len(data), 2), -1, np.int32))


def system(about: About, dev: int, held: int | None = None) -> System:
    """One with so many right answers on dev and on what is held out (half as many unless told).

    Below 50 of the held-out 100, those without an answer, it is best to answer nothing, and the threshold says so.
    """
    record = answers(HELD, dev // 2 if held is None else held)
    threshold = half_unanswerable_threshold(record, answerable_of(HELD))
    return System(about, answers(DEV, dev), record, f"{about.key}.{about.seed}", threshold)


def snapshot(name: str, seconds: float | None = None, seed: int = 0, **more: Any) -> About:
    return About("tunings", "snapshot", name, seed, snapshot=name, tune_seconds=seconds, **more)


def head(
    on: str, label: str, tune: float | None = None, fit: float | None = None, seed: int = 0, **more: Any
) -> About:
    kind = "control" if label.startswith("last-state") else "head"
    return About("heads", kind, label, seed, snapshot=on, tune_seconds=tune, fit_seconds=fit, **more)


def study_of(*systems: System) -> Study:
    return Study.of(DEV, HELD, systems)
