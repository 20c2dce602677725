"""How long every part of the study took on the device."""

from collections.abc import Mapping, Sequence
from typing import Any

from bertvision.report import words
from bertvision.study.blocks import column, row, section, table, text, value_cell
from bertvision.study.costs import PartTime, headline_seconds, part_times
from bertvision.study.view import Study

__all__ = ["time_table"]


def time_table(study: Study, stages: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any] | None:
    """None where nothing was timed."""
    times = part_times(study, stages)
    if all(time.high is None for time in times):
        return None
    by_part: dict[tuple[str, str], list[PartTime]] = {}
    for time in times:
        by_part.setdefault((time.part, time.kind), []).append(time)
    mixed = len({time.whole for time in times if time.high is not None}) > 1
    rows = [
        row(
            [
                f"{part} *" if mixed and any(time.whole for time in found) else part,
                kind,
                value_cell(max(time.systems for time in found), digits=0),
                ", ".join(str(time.seed) for time in found),
                _each(found),
                _all(found),
                "yes" if any(time.headline for time in found) else "",
            ]
        )
        for (part, kind), found in by_part.items()
    ]
    blocks = [
        table(
            _caption(times),
            [
                column("part", "text"),
                column("what", "text"),
                column("systems"),
                column("seeds", "text"),
                column("a seed"),
                column("all seeds"),
                column("headline", "text"),
            ],
            rows,
        )
    ]
    if (found := headline_seconds(study, stages)) is not None:
        seed, low, high = found
        blocks.append(
            text(f"The headline part took {_between(low, high)} with seed {seed}, which ran most of it.")
        )
    return section(
        "time",
        "Time table",
        "What it takes to run the study again. Every part can be run by itself and goes on where it was stopped.",
        blocks,
    )


def _caption(times: list[PartTime]) -> str:
    """What the seconds are: of training alone, of whole parts, or some of each."""
    trained = (
        "Device time of training, part by part; scoring, files and loading are not in it. Of heads that were fitted in "
        "one pass the least and the most it can have taken."
    )
    shared = ""
    if any(time.high is None for time in times):
        shared = " Parts without a time ran beside others on the device, which tells nothing of what they take alone."
    whole = {time.whole for time in times if time.high is not None}
    if whole == {True}:
        return f"Time of every part from its beginning to its end, loading, scores on dev and files included.{shared}"
    if whole == {False}:
        return f"{trained}{shared}"
    return f"{trained} Parts with an asterisk: from beginning to end, all of that included.{shared}"


def _between(low: float, high: float) -> str:
    first, last = words.duration(low), words.duration(high)
    return first if first == last else f"{first} to {last}"


def _each(found: list[PartTime]) -> str:
    lows = [time.low for time in found if time.low is not None]
    highs = [time.high for time in found if time.high is not None]
    return _between(sum(lows) / len(lows), sum(highs) / len(highs)) if lows else words.UNKNOWN


def _all(found: list[PartTime]) -> str:
    lows = [time.low for time in found if time.low is not None]
    highs = [time.high for time in found if time.high is not None]
    if len(lows) < len(found):  # a sum of some would pass for the whole
        return words.UNKNOWN
    return _between(sum(lows), sum(highs))
