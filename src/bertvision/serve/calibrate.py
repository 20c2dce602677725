"""What a head's metrics.json says about its probabilities: a temperature of labels, a calibration of no answer.

    {"temperature": {"value": 1.4, "tuned_on": "dev"}}                            labels
    {"no_answer": {"shift": -0.3, "temperature": 1.7, "tuned_on": "dev"}}         spans

A folder without them, such as one that older versions wrote, is read as before: temperature 1, and the softmax over
the n-best list.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertvision.artifacts import read_json
from bertvision.errors import ArtifactError
from bertvision.tasks.span.calibration import NoAnswer

__all__ = ["read_no_answer", "read_temperature"]


def read_temperature(folder: Path) -> float:
    """What divides the logits of a head's classes."""
    part = _part(folder, "temperature")
    return _number(folder, part, "value", positive=True) if part is not None else 1.0


def read_no_answer(folder: Path) -> NoAnswer | None:
    """The calibration of a head that finds spans, where it has one."""
    part = _part(folder, "no_answer")
    if part is None:
        return None
    return NoAnswer(
        shift=_number(folder, part, "shift"),
        temperature=_number(folder, part, "temperature", positive=True),
    )


def _part(folder: Path, name: str) -> Mapping[str, Any] | None:
    path = folder / "metrics.json"
    stored = read_json(path).get(name) if path.exists() else None
    return stored if isinstance(stored, Mapping) else None


def _number(folder: Path, part: Mapping[str, Any], name: str, *, positive: bool = False) -> float:
    value: Any = part.get(name)
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or (positive and value <= 0):
        raise ArtifactError(
            f"{folder / 'metrics.json'} has the {name} {value!r}, which is no {'positive ' if positive else ''}number: "
            "evaluate the head again"
        )
    return float(value)
