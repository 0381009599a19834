"""The script behind the pages of docs/benchmarks/ joins several results, and counts only complete ones."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from bench_samples import a_benchmark, a_row, a_spec, ours, some_rows
from torchwise.bench import read_suite, resolve_targets
from torchwise.plan import EAGER
from torchwise.records.benchmark import Benchmark

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def summary(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("summary")


def targets(benchmark: Benchmark) -> list[str]:
    return [workload.target for workload in benchmark.workloads]


def test_a_target_counts_when_all_its_contenders_are_there(summary: ModuleType) -> None:
    first = a_benchmark((*some_rows("zoo:b"), *some_rows("zoo:a"), *some_rows("zoo:c")[:-1]))
    assert targets(summary.merge_benchmarks([first])) == ["zoo:a", "zoo:b"]
    second = a_benchmark((*some_rows("zoo:c"), a_row(target="zoo:d")))
    assert targets(summary.merge_benchmarks([first, second])) == ["zoo:a", "zoo:b", "zoo:c"]


def test_of_a_target_in_two_results_the_last_counts(summary: ModuleType) -> None:
    def result(speedup: float) -> Benchmark:
        return a_benchmark((a_row("eager", 1.0), ours(duel=speedup)))

    def duel_speedup(*results: Benchmark) -> float:
        (ours,) = (row for row in summary.merge_benchmarks(results).rows if row.duel)
        return float(ours.duel.speedup.mid)

    assert duel_speedup(result(1.5), result(3.0)) == pytest.approx(3.0, rel=0.1)
    assert duel_speedup(result(3.0), result(1.5)) == pytest.approx(1.5, rel=0.1)


def test_what_is_left_as_it_is_counts_apart(summary: ModuleType) -> None:
    left = ours(1.0, 0.97, plan=EAGER, rival="eager", workload=a_spec("zoo:left"))
    rows = (ours(2.0, 2.0, workload=a_spec("zoo:fast")), ours(0.5, 0.5, workload=a_spec("zoo:slow")), left)
    cells = summary.brief(a_benchmark(rows)).split(" | ")
    assert (cells[0], cells[3:]) == ("3", ["1", "0", "1", "0", "1"])


def test_the_readme_says_what_the_results_say(summary: ModuleType) -> None:
    cells = summary.brief(summary.merge_benchmarks(summary.current("zoo-h200"))).split(" | ")
    eager, best = (f"{float(cell.removesuffix('×')):.1f}" for cell in cells[1:3])
    said = " ".join((BENCHMARKS.parent / "README.md").read_text().split())
    assert f"over {cells[0]} targets of our reference programs: {eager} times eager's speed, and {best} times" in said
    assert ("none is slower" in said) == (cells[5] == "0")
    [words] = re.findall(r"(\w+) are inconclusive", said)
    numbers = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    assert numbers.index(words) == int(cells[6])


def test_the_readme_says_what_the_results_say_of_the_modes(summary: ModuleType) -> None:
    said = " ".join((BENCHMARKS.parent / "README.md").read_text().split())
    zoo = summary.overview(summary.merge_benchmarks(summary.current("zoo-h200")))
    right = re.findall(r"- (?:max-autotune|reduce-overhead) over eager: .*correct on (\d+ of) (\d+)", zoo)
    assert [f"gave right answers on {count} those {total} targets" in said for count, total in right] == [True, True]
    [default] = re.findall(
        r"- default over eager: ([\d.]+)×", summary.overview(summary.merge_benchmarks(summary.current("zoo-cpu")))
    )
    assert f"default mode of `torch.compile` has {float(default):.2g} times eager's speed" in said


def test_the_page_of_five_systems_has_an_answer_for_each_on_a_cpu_and_a_gpu(summary: ModuleType) -> None:
    five_systems = importlib.import_module("five_systems")
    for system, programs in five_systems.PROGRAMS.items():
        lines = five_systems.table(system).splitlines()[2:]
        for machine in ("cores", "H200"):
            assert any(machine in line for line in lines), (system, machine)
        assert all(any(f".{name.replace('_', chr(92) + '_')}@" in line for line in lines) for name in programs), system


def test_the_page_of_five_systems_leaves_no_measured_program_out(summary: ModuleType) -> None:
    five_systems = importlib.import_module("five_systems")
    results = [one for page in five_systems.PAGES for one in summary.current(page)]
    measured = {row.workload.target.removeprefix("zoo:").partition("@")[0] for one in results for row in one.rows}
    shown = {f"{system}.{program}" for system, programs in five_systems.PROGRAMS.items() for program in programs}
    assert shown == measured


def test_of_a_program_in_two_results_of_one_device_the_last_counts(summary: ModuleType) -> None:
    five_systems = importlib.import_module("five_systems")

    def result(cpu: str) -> Benchmark:
        made = a_benchmark((ours(target="zoo:spinlock.operator@small"),))
        return replace(made, environment=replace(made.environment, cpu=cpu, gpu=None, device="cpu"))

    lines = five_systems.table("spinlock", [result("older"), result("newer")]).splitlines()[2:]
    assert len(lines) == 1
    assert "newer" in lines[0]


def test_the_suite_of_five_systems_names_programs_of_all(summary: ModuleType) -> None:
    five_systems = importlib.import_module("five_systems")
    suite = read_suite(BENCHMARKS / "suites" / "five-systems-cpu.toml")
    families = {target.removeprefix("zoo:").partition(".")[0] for target in resolve_targets(suite.targets, suite.sizes)}
    assert families == set(five_systems.PROGRAMS)
