"""How long the units of a study took, sitting by sitting: OUT/units.jsonl, a line for each that was worked on.

    {"name": "heads-1", "seed": 0, "seconds": 47.1, "alone": true}

A unit that was stopped and went on has several lines, whose seconds add up; one that begins anew says so first, and
what stood before does not count any more:

    {"name": "heads-1", "seed": 0, "anew": true}

Several processes may append at once: a
line is one write. Lines that are cut off, or that another version wrote in another way, are skipped.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from bertvision.artifacts import disk_trouble
from bertvision.study.costs import part_times
from bertvision.study.view import Study

__all__ = ["add_unit", "forget_unit", "read_stages"]

_FILE = "units.jsonl"


def add_unit(out: Path, name: str, seed: int, seconds: float, *, alone: bool) -> None:
    """Append a unit that was worked on for so long."""
    _append(out / _FILE, {"name": name, "seed": seed, "seconds": round(seconds, 3), "alone": alone})


def forget_unit(out: Path, name: str, seed: int) -> None:
    """A unit begins from scratch: lines that were written for it, if any, are of work that is replaced."""
    if any((line["name"], line["seed"]) == (name, seed) for line in _lines(out / _FILE)):
        _append(out / _FILE, {"name": name, "seed": seed, "anew": True})


def _append(path: Path, record: dict[str, Any]) -> None:
    line = json.dumps(record)
    with disk_trouble(path):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, f"{line}\n".encode())
        finally:
            os.close(file)


def read_stages(out: Path, study: Study) -> list[dict[str, Any]]:
    """Seconds of every unit of which each sitting had the device alone, as costs.py takes them."""
    seconds: dict[tuple[str, int], float] = {}
    shared: set[tuple[str, int]] = set()
    for record in _lines(out / _FILE):
        unit = (record["name"], record["seed"])
        if record.get("anew"):
            seconds.pop(unit, None)
            shared.discard(unit)
            continue
        seconds[unit] = seconds.get(unit, 0.0) + record["seconds"]
        if not record["alone"]:
            shared.add(unit)
    headline = {(time.part, time.seed): time.headline for time in part_times(study)}
    return [
        {"name": name, "seed": seed, "seconds": took, "headline": headline.get((name, seed), False)}
        for (name, seed), took in seconds.items()
        if (name, seed) not in shared
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # cut off, or not even text
            continue
        if isinstance(record, dict) and _is_unit(record):
            found.append(record)
    return found


def _is_unit(record: dict[str, Any]) -> bool:
    named = isinstance(record.get("name"), str) and type(record.get("seed")) is int
    if record.get("anew") is True:
        return named
    took = record.get("seconds")
    if not isinstance(took, (int, float)) or isinstance(took, bool) or not 0 <= took < math.inf:
        return False
    return named and isinstance(record.get("alone"), bool)
