"""The page of choices names every choice as the search knows it."""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "choices"


@pytest.fixture
def script() -> ModuleType:
    spec = spec_from_loader("choices_script", SourceFileLoader("choices_script", str(SCRIPT)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_choice_is_on_the_page_as_it_is(script: ModuleType) -> None:
    table = [line for line in script.PAGE.read_text().splitlines() if script.is_row(line)]
    assert table == script.list_rows(), "run scripts/choices"


def test_the_script_mends_the_page(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, page = script.PAGE.read_text(), tmp_path / "choices.md"
    first, second = script.list_rows()[:2]
    page.write_text(right.replace(f"{first}\n", "").replace(second, "| `old` | nothing |"))
    monkeypatch.setattr(script, "PAGE", page)
    script.main()
    assert page.read_text() == right
