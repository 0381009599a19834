"""The benchmark that compares searches in two checkouts: which is asked when, and the figures that it prints."""

from __future__ import annotations

import importlib
from argparse import Namespace
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_checkouts_take_turns_and_ratios_are_those_of_pairs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    growth = importlib.import_module("search_growth")
    asked: list[str] = []

    def search(checkout: Path, name: str, effort: str) -> object:
        asked.append(checkout.name)
        assert (name, effort) == ("zoo:a", "quick")
        turn = (len(asked) + 1) // 2
        if checkout.name == "before":
            return growth.Search(2, 10.0 * turn, "eager")
        return growth.Search(3, 5.0 * turn * turn, "inductor")

    monkeypatch.setattr(growth, "search", search)
    options = Namespace(before=Path("before"), after=Path("after"), effort="quick", times=3)
    assert growth.compare("zoo:a", options) == [0.5, 1.0, 1.5]
    assert asked == ["before", "after", "after", "before", "before", "after"]
    cells = [cell.strip() for cell in capsys.readouterr().out.strip().strip("|").split("|")]
    assert cells == ["zoo:a", "2", "3", "20.0", "20.0", "1.00 (0.50 to 1.50)", "eager", "inductor"]
