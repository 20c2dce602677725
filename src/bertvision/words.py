"""Numbers as text: how reports, cards and the command line write metrics, counts and times.

Metrics with `percent` are written as 71.3, all others as 0.713. What is not known (None, NaN) is a dash, never a zero.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

UNKNOWN = "–"
_HIDDEN = {"profiles", "checkpoint_seconds", "activation_gb", "log_every", "accumulate", "classes", "keep"}
"""Settings that no score depends on, or that are shown elsewhere."""
_MINUS = "−"  # U+2212: as wide as the plus sign, so that columns of differences align


def finite(value: Any) -> float | None:
    """`value` as a float, or None when it is missing, NaN, infinite or no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def number(value: Any, *, percent: bool) -> str:
    """A metric: 71.26 -> "71.3" in percent, else 0.8719 -> "0.872" and 1234.56 -> "1234.6"."""
    known = finite(value)
    if known is None:
        return UNKNOWN
    return f"{known:.{1 if percent or abs(known) >= 100 else 3}f}".replace("-", _MINUS)


def change(value: Any, *, percent: bool) -> str:
    """A difference with its sign: 2.13 -> "+2.1"; 0.03 -> "+0.03", because one decimal would hide the sign."""
    known = finite(value)
    return UNKNOWN if known is None else _signed(known, _digits(percent, known))


def interval(low: Any, high: Any, *, percent: bool) -> str:
    """Both ends of an interval of differences: "+0.4 … +3.8"."""
    a, b = finite(low), finite(high)
    if a is None or b is None:
        return UNKNOWN
    digits = _digits(percent, a, b)
    return f"{_signed(a, digits)} … {_signed(b, digits)}"


def verdict(difference: dict[str, float], *, higher: bool = True) -> str:
    """ "gain", "loss", or "level" where the interval contains zero."""
    low, high = difference["low"], difference["high"]
    if low <= 0 <= high:
        return "level"
    return "gain" if (low > 0) == higher else "loss"


def _digits(percent: bool, *values: float) -> int:
    """Decimals that show the sign of all values, as far as two more than usual do."""
    usual = 1 if percent else 3
    shown = [abs(value) for value in values if abs(value) >= 0.5 * 10.0 ** -(usual + 2)]
    least = min(shown, default=1.0)
    return next(d for d in (usual, usual + 1, usual + 2) if least >= 0.5 * 10.0**-d or d == usual + 2)


def _signed(value: float, digits: int) -> str:
    if round(value, digits) == 0:  # what is written as zero has no sign
        return f"{0:.{digits}f}"
    return ("+" if value > 0 else _MINUS) + f"{abs(value):.{digits}f}"


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
    """A share of the encoder: three decimals below one percent, as the papers print it."""
    known = finite(value)
    if known is None:
        return UNKNOWN
    return f"{known:.{3 if abs(known) < 1 else 2 if abs(known) < 10 else 1}f} %"


def duration(value: Any) -> str:
    """Seconds: 8.34 -> "8.3 s", 95 -> "95 s", 200 -> "3 min 20 s", 7500 -> "2 h 5 min"."""
    known = finite(value)
    if known is None:
        return UNKNOWN
    whole = round(known)
    if known < 9.95:
        return f"{known:.1f} s"
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def p_value(value: Any) -> str:
    known = finite(value)
    return UNKNOWN if known is None else "< 0.001" if known < 0.001 else f"{known:.3f}"


def plain(value: Any) -> str:
    """A setting: 8.0 -> "8", 0.00015 -> "1.5e-4", 20000 -> "20,000", a list with commas; a text is left as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(plain(one) for one in value) or "none"
    known = finite(value)
    if known is None:
        return UNKNOWN if value is None else str(value)
    if 0 < abs(known) < 1e-3:
        digits, power = f"{known:.3e}".split("e")
        return f"{float(digits):g}e{int(power)}"  # 1.5e-4, not 0.00015 or 1.500e-04
    if abs(known) >= 1000 and known.is_integer():
        return count(known)
    return f"{known:g}"


def lines(facts: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, str]]:
    """Names and values of settings and costs as text; what is not known is left out."""
    for key, value in facts.items():
        name = f"{before}{key}".replace("_", " ")
        if value in (None, "", (), []) or key in _HIDDEN:
            continue
        if isinstance(value, Mapping):
            yield from lines(value, f"{name} ")
        elif key == "fingerprint":
            yield name, str(value)[:16]  # enough to recognise it; results.json holds the whole
        elif key.endswith("seconds"):
            yield name, duration(value)
        else:
            yield name, plain(value)


def template(path: Path, *, escape: bool) -> Any:
    """A template of Jinja: `escape` for HTML; `inline` keeps a text on its line and out of Markdown's tables."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(path.parent),
        autoescape=escape,  # explicit: jinja's own guess goes by the file ending and would miss ".j2"
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["svg"] = Markup
    environment.filters["inline"] = lambda text: re.sub(r"[<>|`\r\n]+", " ", str(text)).strip()
    return environment.get_template(path.name)
