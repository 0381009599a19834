"""The page of choices has the table that the choices make, as the search knows them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from torchwise.plan.choice import load_choices

DOCS = Path(__file__).parents[2] / "docs"


def test_every_choice_is_on_the_page_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    table = importlib.import_module("choices_table").make_table()
    assert all(f"| {choice.summary} |" in table for choice in load_choices().values())
    made = f"]]] -->\n{table}\n<!-- [[[end]]] -->\n"
    assert made in (DOCS / "reference" / "choices.md").read_text(), "renew it by cog, as CONTRIBUTING.md says"
