"""Numbers in three digits with a fitting unit, and text without characters that could harm a viewer.

Every sentence and report uses these functions, so that a decision and its page agree.
"""

from __future__ import annotations

import math
import re
import unicodedata

from torchwise.records.statistics import Interval

NONE = "–"
"""Shown for a missing value."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_BIDI = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


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


def tick(value: float) -> str:
    """Return a round duration without trailing zeros: "10 s", not "10.0 s"."""
    if 60 <= value < 3600 and value % 60 == 0:
        return f"{value / 60:.0f} min"
    return re.sub(r"\.0+(?= )|(?<=\.\d)0+(?= )", "", seconds(value))


def clock(value: float) -> str:
    """Return elapsed time as "0:07", "12:41" or "1:02:03"."""
    minutes, whole = divmod(int(value), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{whole:02}" if minutes >= 60 else f"{minutes}:{whole:02}"


def size(value: float | None) -> str:
    """Return bytes as "512 B" or "1.25 GiB"."""
    if value is None or not math.isfinite(value):
        return NONE
    if abs(value) < 1024:
        return f"{value:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        value /= 1024
        if abs(value) < 999.5:
            return f"{three(value)} {unit}"
    return f"{three(value / 1024)} TiB"


def ratio(value: float | None) -> str:
    """Return a factor as "1.52×"."""
    return NONE if value is None or not math.isfinite(value) else f"{three(value)}×"


def speedup(interval: Interval | None) -> str:
    """Return a factor with its 95 % interval, "1.52× [1.49, 1.56]", or only its ends if it is too uncertain."""
    factor = brief_speedup(interval)
    if interval is None or factor == NONE or not _has_figure(interval):
        return factor
    return f"{factor} [{three(interval.low)}, {three(interval.high)}]"


def brief_speedup(interval: Interval | None) -> str:
    """Return a factor without its interval, as "1.52×", or "1.91× to 5.73×" if it is too uncertain."""
    if interval is None or not math.isfinite(interval.mid):
        return NONE
    return ratio(interval.mid) if _has_figure(interval) else f"{ratio(interval.low)} to {ratio(interval.high)}"


def time(interval: Interval | None) -> str:
    """Return a duration as "45.6 ms", or its ends, "1.2 ms to 45.6 ms", if it is too uncertain."""
    if interval is None:
        return NONE
    if _has_figure(interval):
        return seconds(interval.mid)
    return f"{seconds(interval.low)} to {seconds(interval.high)}"


def span(interval: Interval) -> str:
    """Return a count as "17,800", or its ends, "9,000 to 17,800", if it is too uncertain."""
    return count(interval.mid) if _has_figure(interval) else f"{count(interval.low)} to {count(interval.high)}"


def _has_figure(interval: Interval) -> bool:
    return interval.is_usable or interval.low == interval.high


MIN_PROBABILITY = 0.001
"""The tails of an interval from a few processes tell no finer difference."""


def percent(share: float | None) -> str:
    """Return a share as "12 %", with a digit more below 10 %."""
    if share is None or not math.isfinite(share):
        return NONE
    return f"{share * 100:.1f} %" if 0 < abs(share) < 0.0995 else f"{share * 100:.0f} %"


def probability(value: float) -> str:
    """Return a probability as a percentage, or as less or more than what can be told."""
    if value < MIN_PROBABILITY:
        return f"under {percent(MIN_PROBABILITY)}"
    return f"over {percent(1 - MIN_PROBABILITY)}" if value > 1 - MIN_PROBABILITY else percent(value)


def pluralize(value: float, noun: str) -> str:
    """Return such as "1 call", "1,000 calls" or "2 studies"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count(value)} {noun if value == 1 else plural}"


def relative_error(value: float | None) -> str:
    """Return an error as "1.2e-07", or as "inf" or "nan"."""
    return NONE if value is None else "0" if value == 0 else f"{value:.1e}"


def plain(text: str) -> str:
    """Return text without escapes, control characters and reordering marks.

    Messages come from models and compilers. They may hold anything, and could mislead a terminal, XML or a reader.
    """
    return "".join(map(_replace_hidden, _ANSI.sub("", text).replace("\r\n", "\n")))


def one_line(text: str) -> str:
    """Return plain text on one line."""
    return " ".join(plain(text).split())


def truncate(text: str, width: int) -> str:
    """Return one line of at most `width` characters, with "…" if text was cut."""
    line = one_line(text)
    return line if len(line) <= width else line[: max(width - 1, 0)].rstrip() + "…"


def _two(value: int, large: str, small: str) -> str:
    rest = f" {value % 60} {small}" if value % 60 else ""
    return f"{value // 60} {large}{rest}"


def _replace_hidden(character: str) -> str:
    if character in "\n\t":
        return character
    hidden = character in _BIDI or unicodedata.category(character) in ("Cc", "Cs", "Cn")
    return "\ufffd" if hidden else character
