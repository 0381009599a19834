"""Durations in words, in one form for every sentence and report, so that a decision and its page agree."""

from __future__ import annotations

import math

NONE = "–"
"""Shown for a missing value."""


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
        if round_to_digits(value * factor, 3) >= 1:
            return f"{three(value * factor)} {unit}"
    return f"{three(value * 1e9)} ns"


def count(value: float | None) -> str:
    """Return a whole number with commas. An estimate from ten thousand on keeps only three digits."""
    if value is None or not math.isfinite(value):
        return NONE
    if isinstance(value, float):
        value = round_to_digits(value, 3) if value >= 10_000 else math.ceil(value)
    return f"{int(value):,}"


def three(value: float) -> str:
    """Return a number in three digits, without an exponent below a million."""
    if not math.isfinite(value):
        return "∞" if value > 0 else NONE
    shown = round_to_digits(value, 3)
    if shown == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(shown))))
    return f"{shown:,.{min(places, 6)}f}"


def round_to_digits(value: float, digits: int) -> float:
    """Return a number rounded to this many significant digits."""
    return float(f"{value:.{digits}g}")


def _two(value: int, large: str, small: str) -> str:
    rest = f" {value % 60} {small}" if value % 60 else ""
    return f"{value // 60} {large}{rest}"
