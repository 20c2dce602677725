"""What the papers print: published.csv, by TABLE/ROW/AT."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("published.csv")


@dataclass(frozen=True)
class Printed:
    """A number as a document prints it; scores in percent."""

    value: float
    place: str
    note: str
    """What is wrong with it."""


@cache
def _all() -> dict[str, dict[str, Printed]]:
    found: dict[str, dict[str, Printed]] = {}
    with _FILE.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            own = found.setdefault(f"{row['table']}/{row['row']}/{row['at']}", {})
            own[row["metric"]] = Printed(float(row["value"]), row["place"], row["note"])
    return found


def published(key: str) -> Mapping[str, Printed]:
    """Metrics printed under TABLE/ROW/AT, none where there are none."""
    return _all().get(key, {})
