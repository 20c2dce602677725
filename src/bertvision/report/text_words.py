"""How the report of a label or score task writes its numbers, and the sentences drawn from them.

Metrics are between 0 and 1 with three decimals; a difference gets a fourth where three would hide its sign.
"""

from collections.abc import Mapping
from typing import Any

from bertvision.report.words import UNKNOWN, finite, signed, verdict

__all__ = ["TITLES", "change", "headline", "interval", "number", "paired"]

TITLES = {
    "accuracy": "accuracy",
    "f1": "F1",
    "mcc": "MCC",
    "log_loss": "log loss",
    "calibration_error": "calibration error",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "mse": "MSE",
    "mae": "MAE",
}


def number(value: Any) -> str:
    """A metric: 0.8719 -> "0.872"; numbers of three digits and more (errors of large scores) get fewer decimals."""
    known = finite(value)
    if known is None:
        return UNKNOWN
    return f"{known:.{3 if abs(known) < 100 else 1}f}".replace("-", "−")


def _digits(*values: float) -> int:
    # Whether zero is inside an interval is the whole point: +0.0002 must not be printed as +0.000.
    return 4 if any(0 < abs(v) < 0.0005 for v in values) else 3


def change(value: float) -> str:
    return signed(value, digits=_digits(value))


def interval(low: float, high: float) -> str:
    digits = _digits(low, high)
    return f"{signed(low, digits=digits)} … {signed(high, digits=digits)}"


def paired(versus: Any, split: str) -> dict[str, float] | None:
    """The difference to the snapshot on this part, or None unless all three numbers are known."""
    if not versus or versus.get("split", split) != split:
        return None
    known = {key: finite(versus.get(key)) for key in ("difference", "low", "high")}
    return None if None in known.values() else known  # type: ignore[return-value]


def headline(head: Mapping[str, Any], snapshot: Mapping[str, Any] | None, *, split: str, metric: str) -> str:
    """The finding in one sentence: a gain, a loss, or no measurable difference."""
    label, title = head["label"], TITLES[metric]
    found = paired(head["versus"], split)
    own = number(head["scores"].get(split, {}).get("mean", {}).get(metric))
    if found is None:
        if snapshot is None:
            return f"{label} reaches {title} {own} on {split}; there is no snapshot to compare it with."
        other = number(snapshot["scores"].get(split, {}).get("mean", {}).get(metric))
        return f"{label} reaches {title} {own} on {split}, its snapshot {other}; no paired interval was computed."
    size, ends = found["difference"], interval(found["low"], found["high"])
    match verdict(found):
        case "gain":
            return (
                f"{label} gains {change(size)} {title} over its snapshot on {split} (95 % interval {ends})."
            )
        case "loss":
            lost = change(abs(size))[1:]
            return f"{label} loses {lost} {title} against its snapshot on {split} (95 % interval {ends})."
        case _:
            return (
                f"{label} is level with its snapshot on {split}: {change(size)} {title}, "
                f"and the 95 % interval {ends} contains zero."
            )
