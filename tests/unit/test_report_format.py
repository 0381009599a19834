"""Figures as people read them."""

from __future__ import annotations

import math

import pytest

from torchwise.records import Interval
from torchwise.records import format as show


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
        (0.0, "0 s"),
        (4.2e-10, "0.420 ns"),
        (8.12e-7, "812 ns"),
        (1.234e-6, "1.23 µs"),
        (9.996e-4, "1.00 ms"),
        (0.0456, "45.6 ms"),
        (1.0, "1.00 s"),
        (99.94, "99.9 s"),
        (99.96, "1 min 40 s"),
        (119.6, "2 min"),
        (125.2, "2 min 5 s"),
        (3599.6, "1 h"),
        (11_400.0, "3 h 10 min"),
        (864_000.0, "10.0 days"),
        (-0.5, "-500 ms"),
    ],
)
def test_seconds(value: float | None, text: str) -> None:
    assert show.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.01, "10 ms"), (2.5, "2.5 s"), (60.0, "1 min"), (600.0, "10 min"), (36_000.0, "10 h")]
)
def test_ticks_have_no_zeros_that_stand_for_precision(value: float, text: str) -> None:
    assert show.tick(value) == text


@pytest.mark.parametrize(("value", "text"), [(7.9, "0:07"), (761, "12:41"), (3723, "1:02:03")])
def test_clock(value: float, text: str) -> None:
    assert show.clock(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (512, "512 B"),
        (1024, "1.00 KiB"),
        (1 << 20, "1.00 MiB"),
        (1048500, "1.00 MiB"),
        (5 << 42, "20.0 TiB"),
    ],
)
def test_size(value: int | None, text: str) -> None:
    assert show.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), (100_000, "100,000"), (123_456, "123,456"), (123_456.7, "123,000"), (9_240.2, "9,241"), (math.inf, "–")],
)
def test_counts_are_exact_where_given_and_rounded_where_estimated(value: float, text: str) -> None:
    assert show.count(value) == text


def test_a_speedup_shows_its_interval() -> None:
    assert show.speedup(Interval(1.494, 1.523, 1.56)) == "1.52× [1.49, 1.56]"
    assert show.speedup(Interval(1.0, math.nan, 2.0)) == "–"
    assert show.speedup(None) == "–"


def test_a_speedup_whose_middle_is_no_figure_shows_its_ends_alone() -> None:
    wide, told = Interval(1.914, 3.0, 5.726), Interval(1.494, 1.523, 1.56)
    assert show.speedup(wide) == show.brief_speedup(wide) == "1.91× to 5.73×"
    assert show.brief_speedup(told) == "1.52×"
    assert (show.brief_speedup(Interval(1.0, math.nan, 2.0)), show.brief_speedup(None)) == ("–", "–")


def test_a_share_keeps_a_digit_where_it_is_small() -> None:
    assert [show.percent(share) for share in (0.0, 0.004, 0.0994, 0.25, None)] == ["0 %", "0.4 %", "9.9 %", "25 %", "–"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("a\x00b\x08c", "a\ufffdb\ufffdc"),
        ("abc\u202edef", "abc\ufffddef"),
        ("\udcff", "\ufffd"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("naïve 模型", "naïve 模型"),
    ],
)
def test_plain_text_cannot_fool_a_terminal_or_a_reader(text: str, shown: str) -> None:
    assert show.plain(text) == shown


def test_a_clipped_line_says_that_it_was_clipped() -> None:
    assert show.truncate("one\n two", 20) == "one two"
    assert show.truncate("a" * 30, 10) == "a" * 9 + "…"
