"""The gate on Torchwise's cost on the host: it holds for this checkout, and would see more work on a call."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch

from torchwise.compile.guards.dict_contents import count_dict_writes
from torchwise.plan import Plan
from torchwise.runtime.call_guard import CallGuard
from torchwise.runtime.module import OptimizedModule
from torchwise.workload import Example

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "host_cost.py"
VERSIONS = "python 3.11, torch 2.13"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


@pytest.mark.slow
def test_no_way_through_torchwise_takes_more_than_it_did() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    if unchecked := [line for line in done.stdout.splitlines() if "was not checked" in line]:
        pytest.skip("; ".join(unchecked))


def test_there_are_baselines_for_the_versions_that_are_developed_with() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    python = project["requires-python"].removeprefix(">=")
    pinned = dict(re.findall(r"^([\w-]+)==(\d+\.\d+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    baselines = json.loads((SCRIPT.parent / "host_cost.json").read_text())
    assert f"python {python}, torch {pinned['torch']}" in baselines, "run benchmarks/host_cost.py --renew"
    assert f"python {python}, rich {pinned['rich']}, typer {pinned['typer']}" in baselines, "likewise"


@pytest.mark.parametrize(("count", "fails"), [(1020, False), (1021, True), (1050, True), (900, False)])
def test_a_count_fails_above_its_limit(benchmark: Callable[[str], ModuleType], count: int, fails: bool) -> None:
    host_cost = benchmark("host_cost")
    (cost,) = host_cost.compare({VERSIONS: {"part": count}}, {VERSIONS: {"part": 1000}})
    assert cost.fails is fails
    assert (cost.note is not None) == (count == 900), "a gain is worth keeping"


def test_what_fails_is_named_with_count_baseline_limit_and_way_out(benchmark: Callable[[str], ModuleType]) -> None:
    host_cost = benchmark("host_cost")
    (cost,) = host_cost.compare({VERSIONS: {"part": 1100}}, {VERSIONS: {"part": 1000}})
    told = host_cost.explain(cost)
    for word in ("part takes 1,100 bytecodes", "baseline is 1,000", "limit 1,020", VERSIONS, "--renew"):
        assert word in told


@pytest.mark.parametrize("baselines", [{}, {"python 3.10": {"part": 1}}, {VERSIONS: {"other": 1}}])
def test_what_has_no_baseline_passes_with_a_note(
    benchmark: Callable[[str], ModuleType], baselines: dict[str, dict[str, int]]
) -> None:
    (cost,) = benchmark("host_cost").compare({VERSIONS: {"part": 1000}}, baselines)
    assert not cost.fails
    assert cost.note.startswith("part was not checked")
    assert VERSIONS in cost.note


@pytest.mark.parametrize(("argument", "code"), [("--check", 1), ("--renew", 0)])
def test_check_fails_and_renew_accepts(
    benchmark: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    argument: str,
    code: int,
) -> None:
    host_cost, file = benchmark("host_cost"), tmp_path / "host_cost.json"
    before, now = {VERSIONS: {"part": 100}, "python 3.12": {"part": 90}}, {VERSIONS: {"part": 110}}
    file.write_text(json.dumps(before))
    monkeypatch.setattr(host_cost, "BASELINES", file)
    monkeypatch.setattr(host_cost, "count_all", lambda: now)
    monkeypatch.setattr(sys, "argv", ["host_cost.py", argument])
    assert host_cost.main() == code
    assert json.loads(file.read_text()) == (before if code else before | now)
    assert ("host cost: part takes 110" in capsys.readouterr().err) == bool(code)


def count(benchmark: Callable[[str], ModuleType], plan: Plan) -> int:
    """Count a call by a plan that compiles nothing."""
    paths, x = benchmark("host_paths"), torch.ones(4, 2)
    fast = paths.apply_plan(paths.Product().eval(), plan, Example((x,)), "cpu")
    counted: int = paths.count_paths({"here": partial(fast, x)})["here"]
    return counted


def test_work_that_is_planted_in_the_dispatch_of_a_call_fails(
    benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    for plan, owner, name in ((Plan(), OptimizedModule, "__call__"), (Plan(threads=1), CallGuard, "find_change")):
        before = count(benchmark, plan)
        assert count(benchmark, plan) == before, "a count is the same each time"
        real = getattr(owner, name)

        def slower(self: object, *args: object, real: Callable[..., object] = real) -> object:
            vars(self).get("_found")
            return real(self, *args)

        monkeypatch.setattr(owner, name, slower)
        compared = benchmark("host_cost").compare({VERSIONS: {"x": count(benchmark, plan)}}, {VERSIONS: {"x": before}})
        assert [cost.fails for cost in compared] == [True]


def test_one_more_thing_that_c_code_goes_through_is_counted(
    benchmark: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, make = count(benchmark, Plan(threads=1)), CallGuard.__init__

    def look_at_one_more(self: CallGuard, *args: object, **kwargs: object) -> None:
        make(self, *args, **kwargs)  # type: ignore[arg-type]
        self._dicts.append({})
        self._seen = count_dict_writes(self._dicts)

    monkeypatch.setattr(CallGuard, "__init__", look_at_one_more)
    after = count(benchmark, Plan(threads=1))
    assert before < after < before + 20


def test_a_single_look_up_is_counted(benchmark: Callable[[str], ModuleType]) -> None:
    count_bytecodes, held = benchmark("bytecodes").count_bytecodes, {"x": 1}
    alone = count_bytecodes(lambda: held)
    assert count_bytecodes(lambda: held["x"]) > alone
    assert count_bytecodes(lambda: held.keys) > alone


def test_the_code_of_the_model_and_what_it_calls_is_left_out(benchmark: Callable[[str], ModuleType]) -> None:
    count_bytecodes = benchmark("bytecodes").count_bytecodes

    def inner() -> int:
        return len(json.dumps({"x": 1}))

    def outer(calls: int) -> list[int]:
        return [inner() for _ in range(calls)] + [0]

    once, twice = (count_bytecodes(partial(outer, calls), leave_out=inner.__code__) for calls in (1, 2))
    assert 0 < twice - once < 20, "the loop around it counts, and goes on to be counted after it"
    assert count_bytecodes(partial(outer, 1)) > once + 20
