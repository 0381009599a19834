"""Durations in words, as every sentence and every report writes them: a decision says what its page says."""

from __future__ import annotations

import math

NONE = "–"
"""Shown where there is no value."""


def seconds(value: float | None) -> str:
    """Return a duration as "812 ns", "45.6 ms", "2 min 5 s" or "3 h 10 min"."""
    if value is None or not math.isfinite(value):
        return NONE
    if value == 0:
        return "0 s"
    if value < 0:
        return f"-{seconds(-value)}"
    if value >= 172_800:
        return f"{three(value / 86_400)} days"
    if value >= 3599.5:
        return _two(round(value / 60), "h", "min")
    if value >= 99.95:
        return _two(round(value), "min", "s")
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if rounded(value * factor, 3) >= 1:
            return f"{three(value * factor)} {unit}"
    return f"{three(value * 1e9)} ns"


def count(value: float | None) -> str:
    """Return a whole number with commas, and only three digits of it from ten thousand on where it is an estimate."""
    if value is None or not math.isfinite(value):
        return NONE
    if isinstance(value, float):
        value = rounded(value, 3) if value >= 10_000 else math.ceil(value)
    return f"{int(value):,}"


def three(value: float) -> str:
    """Return a number in three digits, without an exponent below a million."""
    if not math.isfinite(value):
        return "∞" if value > 0 else NONE
    shown = rounded(value, 3)
    if shown == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(shown))))
    return f"{shown:,.{min(places, 6)}f}"


def rounded(value: float, digits: int) -> float:
    """Return a number rounded to so many digits, wherever its point is."""
    return float(f"{value:.{digits}g}")


def _two(value: int, large: str, small: str) -> str:
    rest = f" {value % 60} {small}" if value % 60 else ""
    return f"{value // 60} {large}{rest}"
