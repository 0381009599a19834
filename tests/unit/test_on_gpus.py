"""The list of GPU jobs: those that run side by side, are left out, or run out of time.

Also, how a suite that is run on several GPUs divides the CPU's cores.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from bench_samples import a_benchmark, a_row, a_spec
from torchwise.plan import Plan

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def run_suite(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("run_suite")


def run(folder: Path, jobs: str, *options: str, seconds: float = 20.0) -> str:
    (folder / "jobs.toml").write_text(jobs)
    command = [sys.executable, str(BENCHMARKS / "on_gpus.py"), str(folder / "jobs.toml"), str(folder / "out")]
    command += ["--gpus", "0,1", "--seconds", str(seconds), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def job(name: str, command: str, **more: object) -> str:
    fields = {"name": name, "run": command, "needs": 1, **more}
    return "[[job]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())


def read_exit_codes(folder: Path) -> dict[str, int]:
    return {name: job["exit_code"] for name, job in json.loads((folder / "out" / "jobs.json").read_text()).items()}


def test_jobs_get_a_gpu_and_a_crash_costs_one_of_them(tmp_path: Path) -> None:
    show = "echo $CUDA_VISIBLE_DEVICES of {gpus} of {all} in {out}"
    told = run(tmp_path, job("both", show, gpus="all") + job("one", f"{show}; exit 3") + job("other", show, alone=True))
    assert read_exit_codes(tmp_path) == {"both": 0, "one": 3, "other": 0}
    out = tmp_path / "out"
    assert (out / "both.log").read_text() == f"0,1 of 2 of 2 in {out}\n"
    assert {(out / f"{name}.log").read_text() for name in ("one", "other")} == {
        f"{n} of 1 of 2 in {out}\n" for n in "01"
    }
    assert told.index("both: exit code 0") < told.index("one: starts")


def test_what_wants_to_be_alone_is(tmp_path: Path) -> None:
    jobs = job("first", "sleep 0.6") + job("alone", "sleep 0.3", alone=True) + job("last", "true")
    told = run(tmp_path, jobs, "--gpus", "0")
    assert told.index("first: exit") < told.index("alone: starts")
    assert told.index("alone: exit") < told.index("last: starts")


def test_what_ended_is_not_run_again_and_what_there_is_no_time_for_not_at_all(tmp_path: Path) -> None:
    jobs = job("done", "true") + job("long", "true", needs=1000) + job("skipped", "true")
    assert "done: exit code 0" in run(tmp_path, jobs, "--skip", "skipped")
    assert "starts" not in run(tmp_path, jobs, "--only", "done", "long")
    assert read_exit_codes(tmp_path) == {"done": 0}


def test_what_has_more_to_do_is_run_again(tmp_path: Path) -> None:
    jobs = job("part", "exit 75")
    for _ in range(2):
        told = run(tmp_path, jobs)
        assert "part: starts" in told
        assert "part: not finished" in told
    assert not (tmp_path / "out" / "jobs.json").exists()


def test_what_runs_when_the_time_is_up_is_interrupted_with_all_it_started(tmp_path: Path) -> None:
    begun = time.monotonic()
    told = run(tmp_path, job("endless", "sleep 300 & echo $!; wait"), seconds=2)
    assert time.monotonic() - begun < 20
    assert "endless: the time limit was reached" in told
    child = int((tmp_path / "out" / "endless.log").read_text().split()[0])
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_nothing_outlives_what_started_it(tmp_path: Path) -> None:
    (tmp_path / "jobs.toml").write_text(job("endless", "echo $$; sleep 300"))
    command = [sys.executable, str(BENCHMARKS / "on_gpus.py"), str(tmp_path / "jobs.toml"), str(tmp_path / "out")]
    log = tmp_path / "out" / "endless.log"
    with subprocess.Popen([*command, "--gpus", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as runner:
        while not (log.exists() and log.read_text()):
            time.sleep(0.1)
        runner.terminate()
        runner.communicate(timeout=30)
    child = int(log.read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("file", sorted((BENCHMARKS / "jobs").glob("*.toml")), ids=lambda file: file.name)
def test_lists_that_are_here_can_be_read_and_name_files_that_are_there(file: Path) -> None:
    jobs = tomllib.loads(file.read_text())["job"]
    assert len({job["name"] for job in jobs}) == len(jobs)
    for job in jobs:
        assert set(job) <= {"name", "run", "needs", "gpus", "alone"}
        for word in job["run"].replace("'", " ").split():
            if word.startswith(("benchmarks/", "tests/")):
                assert (BENCHMARKS.parent / word.partition(":")[0]).exists(), word


def test_each_lane_has_cores_of_its_own_where_there_are_two_for_each(run_suite: ModuleType) -> None:
    lanes = run_suite.lanes_on(["0", "1"], list(range(13)), beside=3)
    assert [lane.gpu for lane in lanes] == ["0", "1"] * 3
    assert all(lane.own and len(lane.cores) == 2 for lane in lanes)
    assert len(set.union(*(lane.cores for lane in lanes))) == 12
    again = run_suite.lanes_on(["0", "1"], list(range(13)), beside=3, begun_with=2)
    assert again == lanes


@pytest.mark.parametrize(
    ("gpus", "cores", "beside", "begun_with"),
    [
        (["0", "1"], 11, 3, None),  # too few
        (["0", "1"], 12, 3, 6),  # jobs begun with all cores of a GPU go on with them
        (["0", "1"], 12, 1, None),
        ([""], 12, 3, None),  # on the CPU the cores are measured
    ],
)
def test_else_those_on_one_gpu_share_its_cores(
    run_suite: ModuleType, gpus: list[str], cores: int, beside: int, begun_with: int | None
) -> None:
    lanes = run_suite.lanes_on(gpus, list(range(cores)), beside, begun_with)
    shares = run_suite.shares_of(list(range(cores)), len(gpus))
    assert [(lane.gpu, lane.cores, lane.own) for lane in lanes] == [
        (gpu, share, False) for gpu, share in list(zip(gpus, shares, strict=True)) * beside
    ]


@pytest.mark.parametrize(("gpu", "own"), [("1", True), ("1", False), ("", False)])
def test_a_lane_is_told_its_gpu_and_whether_its_cores_are_its_own(
    run_suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: str, own: bool
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # nproc tells that number, where it is set
    monkeypatch.setenv("TORCHWISE_OWN_CORES", "1")  # words about this process do not hold for its lanes
    core = max(os.sched_getaffinity(0))
    told, python = tmp_path / "told", tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho $CUDA_VISIBLE_DEVICES $TORCHWISE_OWN_CORES $(nproc) >{told}\n")
    python.chmod(0o755)
    monkeypatch.setattr(run_suite.sys, "executable", str(python))
    options = argparse.Namespace(results=tmp_path / "results.json", suite="suite.toml", bench=[])
    assert run_suite.start(options, "zoo:a", None, 0, run_suite.Lane(gpu, {core}, own), 1.0).wait(20) == 0
    assert told.read_text() == f"{gpu or 7} {int(own)} 1\n"


def test_targets_that_are_whole_in_other_results_are_left_out(
    run_suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = [f"zoo:tutorial.{name}@small" for name in ("fusion_demo", "branch", "break_print")]
    (tmp_path / "suite.toml").write_text(f'targets = {targets}\ndevice = "cpu"\ncontenders = ["eager", "default"]\n')
    whole, begun, *_ = targets
    rows = [a_row(name, workload=a_spec(whole)) for name in ("eager", "default")]
    other = a_benchmark((*rows, a_row("eager", workload=a_spec(begun))))
    (tmp_path / "other.json").write_text(other.to_json())
    started: list[str] = []
    run = argparse.Namespace(poll=lambda: 0)
    monkeypatch.setattr(run_suite, "start", lambda _options, given, *_rest: started.append(given) or run)
    asked = [tmp_path / "suite.toml", tmp_path / "results.json", "--without", tmp_path / "other.json"]
    monkeypatch.setattr(run_suite.sys, "argv", ["run_suite.py", *map(str, asked)])
    run_suite.main()
    assert started == targets[1:]
    assert "2 targets are left to run" in capsys.readouterr().out


@pytest.fixture
def lanes(run_suite: ModuleType) -> list[Any]:
    return [run_suite.Lane("", {0}, own=False)] * 2


def test_whoever_is_free_takes_the_next_target(
    run_suite: ModuleType, monkeypatch: pytest.MonkeyPatch, lanes: list[Any]
) -> None:
    ends = iter([0.0, 0.9, 0.0, 0.0])  # the second target takes as long as all others
    taken: list[tuple[str, int]] = []

    def start(_options: Any, target: str, _done: Any, number: int, _lane: Any, left: float) -> Any:
        taken.append((target, number))
        assert 0 < left <= 60
        end = time.monotonic() + next(ends)
        return argparse.Namespace(poll=lambda: 0 if time.monotonic() >= end else None)

    monkeypatch.setattr(run_suite, "start", start)
    run_suite.work(argparse.Namespace(budget=60.0), ["a", "b", "c", "d"], None, lanes)
    assert taken == [("a", 0), ("b", 1), ("c", 0), ("d", 0)]


def test_nothing_starts_once_the_budget_is_spent(
    run_suite: ModuleType, monkeypatch: pytest.MonkeyPatch, lanes: list[Any]
) -> None:
    taken: list[str] = []
    end = time.monotonic() + 0.5
    run = argparse.Namespace(poll=lambda: 0 if time.monotonic() >= end else None)
    monkeypatch.setattr(run_suite, "start", lambda _options, target, *_rest: taken.append(target) or run)
    run_suite.work(argparse.Namespace(budget=0.3), ["a", "b", "c"], None, lanes)
    assert taken == ["a", "b"]


def test_a_lane_goes_on_with_its_rows_and_those_that_there_are_of_a_target(
    run_suite: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_suite.sys, "executable", "true")
    options = argparse.Namespace(results=tmp_path / "results.json", suite="suite.toml", bench=[])
    done = a_benchmark(tuple(a_row("eager", workload=a_spec(target)) for target in ("a:a", "b:b", "c:c")))
    lane = run_suite.Lane("", os.sched_getaffinity(0), own=False)
    for target in ("a:a", "c:c"):
        run_suite.start(options, target, done, 0, lane, 5.0).wait(20)
    part = run_suite.read(tmp_path / "results.part-0.json")
    assert [row.workload.target for row in part.rows] == ["a:a", "c:c"]
    assert part.peaks == done.peaks


def test_a_target_that_was_refused_is_left_to_run_and_costs_the_others_nothing(
    run_suite: ModuleType, tmp_path: Path
) -> None:
    refused = a_benchmark((a_row("eager", None, workload=a_spec("a:a"), refused=True),), peaks=None)
    timed = a_benchmark((a_row("eager", workload=a_spec("b:b")),))
    for number, part in enumerate((refused, timed)):
        (tmp_path / f"results.part-{number}.json").write_text(part.to_json())
    run_suite.merge(tmp_path / "results.json")
    found = run_suite.read(tmp_path / "results.json")
    assert (found.rows, found.peaks) == ((*refused.rows, *timed.rows), timed.peaks)
    assert run_suite.list_unfinished(["a:a", "b:b"], ("eager",), found) == ["a:a"]


def test_kernels_of_plans_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = importlib.import_module("plan_kernels")
    given = ["zoo:tutorial.fusion_demo@small", "--device", "cpu", "--most", "2", "--plan", Plan().to_json()]
    monkeypatch.setattr(sys, "argv", ["plan_kernels.py", *given])
    script.main()
    told = capsys.readouterr().out
    assert "### eager, first calls" in told
    assert re.search(r"\d ms of kernels per call, [1-9]\d* of them\n", told)
    assert len(re.findall(r"^  [\d.]+ ms +\d+ × +[\d.]+ µs  aten::", told, re.MULTILINE)) == 2
