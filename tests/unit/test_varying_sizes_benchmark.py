"""The benchmark of varying sizes goes on where it ended, and says whether all goals are met."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Run = Callable[..., int]


@pytest.fixture
def measured() -> list[str]:
    return []


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: list[str]) -> Run:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    benchmark = importlib.import_module("varying_sizes")
    programs = [SimpleNamespace(name=name, first=3) for name in ("good", "bad")]

    monkeypatch.setattr(benchmark.torch.cuda, "get_device_name", lambda: "a card")

    def compare(program: SimpleNamespace, _device: str, _budget: float) -> tuple[list[str], str, bool]:
        measured.append(program.name)
        return ["| row |"], f"all about {program.name}", program.name == "good"

    monkeypatch.setattr(benchmark, "list_programs", lambda _device: programs)
    monkeypatch.setattr(benchmark, "compare", compare)

    def main(*options: str) -> int:
        command = ["varying_sizes.py", "--device", "cpu", "--out", str(tmp_path / "out.md"), *options]
        monkeypatch.setattr("sys.argv", command)
        code: int = benchmark.main()
        return code

    return main


def test_it_goes_on_where_its_time_ended(run: Run, measured: list[str], tmp_path: Path) -> None:
    assert run("--seconds", "-1") == 2
    assert measured == []
    assert run("--only", "good") == 0
    assert run() == 1
    assert measured == ["good", "bad"], "each program is measured once"
    page = (tmp_path / "out.md").read_text()
    assert "all about good" in page
    assert "all about bad" in page


def test_what_another_device_or_budget_gave_is_measured_anew(run: Run, measured: list[str]) -> None:
    run("--only", "good")
    run("--only", "good", "--device", "cuda")
    run("--only", "good", "--device", "cuda", "--budget", "7")
    run("--only", "good", "--device", "cuda", "--budget", "7")
    assert len(measured) == 3
