"""Numbers into words: how the report and the model card write figures, and the sentences drawn from them.

Scores are percent with one decimal; a gap that is not known (null, NaN) is a dash, never a zero.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

__all__ = [
    "UNKNOWN",
    "change",
    "compact",
    "count",
    "difference",
    "duration",
    "finite",
    "fraction",
    "headline",
    "interval",
    "p_value",
    "percent",
    "plain",
    "schedule",
    "score",
    "signed",
    "verdict",
]

UNKNOWN = "–"
_MINUS = "−"  # U+2212: as wide as the plus sign, so that columns of differences align


def finite(value: Any) -> float | None:
    """`value` as a float, or None when it is missing, NaN, infinite or no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def score(value: Any) -> str:
    """A score in percent: 71.26 -> "71.3"."""
    known = finite(value)
    return UNKNOWN if known is None else f"{known:.1f}".replace("-", _MINUS)


def count(value: Any) -> str:
    """A whole number, thousands apart: 414952 -> "414,952"."""
    known = finite(value)
    return UNKNOWN if known is None else f"{known:,.0f}".replace("-", _MINUS)


def compact(value: Any) -> str:
    """A large number, short: 829904 -> "830 k", 21_600_000 -> "21.6 M"."""
    known = finite(value)
    if known is None:
        return UNKNOWN
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # 999,600 must become "1.00 M", not "1000 k".
        if abs(known) >= size * 0.9995:
            scaled = known / size
            digits = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
            return f"{scaled:.{digits}f} {letter}"
    return f"{known:.0f}"


def percent(value: Any) -> str:
    """A share of the encoder: three significant decimals below one percent, as the papers print it."""
    known = finite(value)
    if known is None:
        return UNKNOWN
    return f"{known:.{3 if abs(known) < 1 else 2 if abs(known) < 10 else 1}f} %"


def duration(value: Any) -> str:
    """Seconds: 8.34 -> "8.3 s", 95 -> "95 s", 200 -> "3 min 20 s", 7500 -> "2 h 5 min"."""
    known = finite(value)
    if known is None:
        return UNKNOWN
    if known < 9.95:
        return f"{known:.1f} s"
    whole = round(known)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def signed(value: Any, *, digits: int = 1) -> str:
    """A difference with its sign: 2.13 -> "+2.1"; what is printed as zero has none."""
    known = finite(value)
    if known is None:
        return UNKNOWN
    if round(known, digits) == 0:
        return f"{0:.{digits}f}"
    return ("+" if known > 0 else _MINUS) + f"{abs(known):.{digits}f}"


def _digits(*values: float) -> int:
    # An end of an interval at +0.03 must not be printed as "+0.0": whether zero is inside is the whole point.
    least = min((abs(v) for v in values if abs(v) >= 0.0005), default=1.0)
    return 1 if least >= 0.05 else 2 if least >= 0.005 else 3


def interval(low: Any, high: Any) -> str:
    """The two ends: "+0.4 … +3.8"."""
    a, b = finite(low), finite(high)
    if a is None or b is None:
        return UNKNOWN
    digits = _digits(a, b)
    return f"{signed(a, digits=digits)} … {signed(b, digits=digits)}"


def change(value: float) -> str:
    """A difference in points, with more decimals where one would hide its sign: 0.03 -> "+0.03"."""
    return signed(value, digits=_digits(value))


def p_value(value: Any) -> str:
    known = finite(value)
    if known is None:
        return UNKNOWN
    return "< 0.001" if known < 0.001 else f"{known:.3f}"


def difference(versus: Any, threshold: str, metric: str = "f1") -> dict[str, float] | None:
    """The paired difference of a system at one threshold, or None unless all three numbers are known."""
    part = (versus or {}).get(threshold) or {}
    numbers = part.get(metric) or {}
    known = {key: finite(numbers.get(key)) for key in ("difference", "low", "high")}
    return None if None in known.values() else known  # type: ignore[return-value]


def verdict(found: Mapping[str, float]) -> str:
    """ "gain", "loss" or "level" (the interval contains zero)."""
    return "gain" if found["low"] > 0 else "loss" if found["high"] < 0 else "level"


def headline(head: Mapping[str, Any], snapshot: Mapping[str, Any] | None, split: str) -> str:
    """The finding in one sentence: a gain, a loss, or no measurable difference, at the tuned threshold."""
    label, versus = head["label"], head["versus"] or {}
    found = difference(versus, "tuned") if versus.get("split", split) == split else None
    if found is None:
        own = score(head["scores"][split]["tuned"]["f1"]) if split in head["scores"] else UNKNOWN
        if snapshot is None or split not in snapshot["scores"]:
            return f"{label} scores {own} F1 on {split}; there is no snapshot to compare it with."
        other = score(snapshot["scores"][split]["tuned"]["f1"])
        return f"{label} scores {own} F1 on {split}, its snapshot {other}; no paired interval was computed."
    size, ends = found["difference"], interval(found["low"], found["high"])
    match verdict(found):
        case "gain":
            return f"{label} gains {change(size)} F1 over its snapshot on {split} (95 % interval {ends})."
        case "loss":
            lost = change(abs(size))[1:]
            return f"{label} loses {lost} F1 against its snapshot on {split} (95 % interval {ends})."
        case _:
            return (
                f"{label} is level with its snapshot on {split}: {change(size)} F1, "
                f"and the 95 % interval {ends} contains zero."
            )


def fraction(snapshot: Any) -> float | None:
    """The epochs in a snapshot's name: "0.3" and "snapshot-0.3" -> 0.3."""
    found = re.search(r"(\d+(?:\.\d+)?)$", str(snapshot))
    return float(found[1]) if found else None


def schedule(finetune: Mapping[str, Any] | None, snapshot: Any = None) -> str:
    """How a snapshot was made, in the words that belong beside its score."""
    if not finetune:
        return "the encoder as it came, not fine-tuned"
    whole, at = finite(finetune.get("epochs")), fraction(snapshot)
    length = plain(finetune.get("epochs"))
    length += " epoch" if whole == 1 else " epochs"
    part = (
        f"taken {plain(at)} into {length}" if at is not None and at != whole else f"fine-tuned for {length}"
    )
    said = [
        part + (f" at peak learning rate {plain(finetune['lr'])}" if finetune.get("lr") is not None else "")
    ]
    if finetune.get("schedule"):
        said.append(f"{finetune['schedule']} schedule")
    if finetune.get("warmup") is not None:
        said.append(f"warm-up {plain(finetune['warmup'])}")
    if finetune.get("batch_size") is not None:
        said.append(f"batch {plain(finetune['batch_size'])}")
    policy = finetune.get("policy")
    if policy and policy != "full":
        said.append(f"policy {policy}")
    # A line may break after a plain hyphen, which would part 1.5e- from its 4.
    return re.sub(r"(\de)-(?=\d)", "\\1\u2011", ", ".join(said))


def plain(value: Any) -> str:
    """A setting as people write it: 8.0 -> "8", 0.00015 -> "1.5e-4"; a text is left as it is."""
    known = finite(value)
    if known is None:
        return UNKNOWN if value is None else str(value)
    if 0 < abs(known) < 1e-3:
        digits, power = f"{known:.3e}".split("e")
        return f"{float(digits):g}e{int(power)}"  # 1.5e-4, not 0.00015 or 1.500e-04
    return f"{known:g}"
