"""The benchmark of varying sizes goes on where it ended, and says whether all goals are met."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

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


EXACT = torch.tensor([1.0, -4.0, 2.0], dtype=torch.float64)
ERRORS = {
    "as eager": (EXACT.float(), 0.0),
    "near": (EXACT.float() + 0.004, 1e-3),
    "not a number": (EXACT.float() * math.nan, math.inf),
    "infinite": (EXACT.float() / 0, math.inf),
    "another shape": (EXACT.float().expand(2, 3), math.inf),
    "fewer numbers": (EXACT[:1].float(), math.inf),
    "another type": (EXACT, math.inf),
    "no tensor": (3.0, math.inf),
}


@pytest.mark.parametrize(("found", "expected"), ERRORS.values(), ids=ERRORS)
def test_an_answer_is_as_far_from_float64_as_its_worst_number(run: Run, found: object, expected: float) -> None:
    find_error = importlib.import_module("varying_sizes").find_error
    assert find_error(found, EXACT, EXACT.float()) == pytest.approx(expected, rel=1e-3)
    assert find_error((EXACT.float(), [found]), (EXACT, [EXACT]), (EXACT.float(), [EXACT.float()])) == pytest.approx(
        expected, rel=1e-3
    )


def test_complex_and_whole_numbers_are_compared(run: Run) -> None:
    find_error = importlib.import_module("varying_sizes").find_error
    exact = torch.tensor([3 + 4j, 1j])
    plain = exact.to(torch.complex64)
    assert find_error(plain, exact, plain) == 0
    assert find_error(plain + 0.5j, exact, plain) == pytest.approx(0.1)
    counts = torch.tensor([1, 2])
    assert find_error(counts, counts, counts) == 0
    assert find_error(counts + 1, counts, counts) == math.inf
    assert find_error(counts > 1, counts > 0, counts > 1) == math.inf
