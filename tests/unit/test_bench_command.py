"""`torchwise bench`: options reach the loop, rows are kept as they come, and files hold the promised content."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import torchwise.bench
import torchwise.report
import torchwise.trial
from bench_samples import Workers, a_benchmark, a_row, a_spec, some_rows
from torchwise import cli, environment
from torchwise.bench import BenchRequest
from torchwise.bench.contenders import DEFAULT
from torchwise.bench.request import LIMIT_S
from torchwise.errors import StorageError, TargetError
from torchwise.plan import Numerics, Plan
from torchwise.records import Measurement
from torchwise.records.benchmark import Benchmark, RowState
from torchwise.report import export, read_benchmark
from torchwise.store import ReportKind, open_storage

TARGET = "zoo:tutorial.fusion_demo@small"


@dataclass
class Loop:
    """Stands in for `run_benchmark`: says each row of `rows`, and remembers the requests.

    Attributes:
        then: called after each row with their number. It may raise.
    """

    rows: tuple[Any, ...] = field(default_factory=some_rows)
    then: Callable[[int], None] = lambda _: None
    request: BenchRequest | None = None
    earlier: Benchmark | None = None

    def __call__(self, request: BenchRequest, launcher: Any, listener: Any, earlier: Any = None) -> Benchmark:
        self.request, self.earlier = request, earlier
        done = earlier.rows if earlier else ()
        listener.start_target(self.rows[0].workload, 1, len(request.targets))
        for row in self.rows[len(done) :]:
            listener.start_contender(row.contender)
            done = (*done, row)
            listener.finish_row(a_benchmark(done), row)
            self.then(len(done))
        return a_benchmark(done)


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    found = Loop()
    monkeypatch.setattr(torchwise.bench, "run_benchmark", found)
    monkeypatch.setenv("COLUMNS", "200")
    return found


def run(*arguments: object) -> int | str | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["torchwise", "bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            cli.main()
    return left.value.code


def test_every_option_reaches_the_loop(loop: Loop) -> None:
    options = (
        *(
            "tutorial.fusion_demo",
            "--size",
            "small",
            "--size",
            "large",
            "--device",
            "cpu",
            "--contenders",
            "eager, thunder",
        ),
        *(
            "--mode",
            "training",
            "--objective",
            "throughput",
            "--effort",
            "quick",
            "--calls",
            7,
            "--allow",
            "lower-precision",
        ),
        *("--seed", 3, "--limit", 20, "--budget", 540, "--no-warm", "--search-budget", 60, "--tolerance", 0.1),
    )
    assert run(*options) == 0
    assert loop.request == BenchRequest(
        (TARGET, "zoo:tutorial.fusion_demo@large"),
        ("eager", "thunder"),
        *("cpu", "training", "throughput", "quick", 7, Numerics.LOWER_PRECISION, 3, 20.0, 540.0, False),
        search_s=60.0,
        tolerance=0.1,
    )


def test_the_last_benchmark_of_the_same_targets_is_kept_unless_nothing_was_timed(loop: Loop, tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    assert run(TARGET, "--no-keep", "--store", store) == 0
    loop.rows, rows = (a_row("eager", None, state=RowState.FAILED),), loop.rows
    run(TARGET, "--store", store)
    assert not Path(store).exists()
    loop.rows = rows
    for _ in range(2):
        assert run(TARGET, "--store", store) == 0
    with open_storage(store) as storage:
        (kept,) = storage.reports(ReportKind.BENCHMARK)
        assert storage.get_report(ReportKind.BENCHMARK, kept.id) == a_benchmark()
    Path(store).write_text("no database")
    assert run(TARGET, "--store", store) == 0, "a store that cannot be used costs a warning alone"


def test_a_benchmark_that_tells_nothing_ends_with_4_and_is_shown(loop: Loop, tmp_path: Path, capsys) -> None:
    wide = Measurement((0.1, 1.0, 10.0) * 4, (1.0,) * 12)
    loop.rows = (a_row("eager", measurement=wide), a_row("default", measurement=wide), a_row("thunder", 1.2))
    assert run("tutorial.fusion_demo", "--json", tmp_path / "b.json") == 4
    assert capsys.readouterr().out.startswith("The measurements are too uncertain; 2 of 3 ratios are only ranges.")
    assert json.loads((tmp_path / "b.json").read_text())["trust"]["reliability"] == "unusable"


def test_plans_reach_the_loop_and_bad_ones_are_refused(loop: Loop, capsys) -> None:
    plans = (Plan(backend="inductor"), Plan(backend="inductor", capture="call"))
    given = [word for plan in plans for word in ("--plan", plan.to_json())]
    assert run("tutorial.fusion_demo", *given) == 0
    assert loop.request
    assert loop.request.plans == plans
    assert run("tutorial.fusion_demo", "--plan", plans[0].to_json().replace('"backend"', '"colour"')) == 2
    assert "colour" in capsys.readouterr().err


def test_what_is_not_said_is_as_documented(loop: Loop) -> None:
    assert run("tutorial.fusion_demo") == 0
    target = "zoo:tutorial.fusion_demo@medium"
    assert loop.request == BenchRequest((target,), DEFAULT, environment.default_device())
    assert sys.modules["torchwise.cli.bench"].LIMIT_S == LIMIT_S  # the name in the package is the command


def test_options_override_the_suite(loop: Loop, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(
        'targets = ["tutorial"]\nsizes = ["large"]\ndevice = "cuda"\nmode = "training"\ncontenders = ["eager"]\n'
    )
    assert run("--suite", suite) == 0
    assert loop.request
    asked = loop.request
    assert asked.targets[0].endswith("@large")
    assert len(asked.targets) > 5
    assert (asked.device, asked.mode, asked.contenders) == ("cuda", "training", ("eager",))
    override = ("--size", "small", "--device", "cpu", "--mode", "inference", "--contenders", "default")
    assert run("tutorial.fusion_demo", "--suite", suite, *override) == 0
    asked = loop.request
    assert (asked.targets, asked.device, asked.mode, asked.contenders) == ((TARGET,), "cpu", "inference", ("default",))


def test_rows_are_said_as_they_come_and_the_table_and_the_summary_follow(loop: Loop, capsys) -> None:
    assert run(TARGET) == 0
    shown = capsys.readouterr()
    assert "max-autotune, so far: 1.50× [1.50, 1.50], first call" in shown.err
    assert "torchwise ★" in shown.out
    assert "torchwise over the best alternative: 1.13×" in shown.out
    assert "torchwise compare BEFORE.json AFTER.json" in shown.out


def test_files_and_plots_are_written(loop: Loop, tmp_path: Path, capsys) -> None:
    files = [tmp_path / name for name in ("a.json", "a.csv", "a.md")]
    assert run(TARGET, *(word for file in files for word in ("--export", file)), "--plots", tmp_path / "plots") == 0
    assert read_benchmark(files[0]) == a_benchmark()
    assert files[1].read_text().startswith("target,")
    assert files[2].read_text().startswith("# Benchmark")
    assert len(list((tmp_path / "plots").iterdir())) == 4
    assert f"torchwise compare {files[0]} AFTER.json" in capsys.readouterr().out.replace("\n", "")


def test_resume_starts_a_file_keeps_every_row_and_goes_on(loop: Loop, tmp_path: Path, capsys) -> None:
    file, kept = tmp_path / "bench.json", []

    def raise_after_three(number: int) -> None:
        kept.append(len(read_benchmark(file).rows))
        if number == 3:
            raise SystemError("killed")

    loop.then = raise_after_three
    with pytest.raises(SystemError, match="killed"):
        run(TARGET, "--resume", file)
    assert kept == [1, 2, 3]
    loop.then = lambda _: None
    assert run(TARGET, "--resume", file) == 0
    assert loop.earlier
    assert loop.earlier.rows == loop.rows[:3]
    assert read_benchmark(file).rows == loop.rows
    assert [found.name for found in tmp_path.iterdir()] == ["bench.json"]


def test_ctrl_c_keeps_and_shows_what_is_finished(loop: Loop, tmp_path: Path, capsys) -> None:
    def interrupt(number: int) -> None:
        if number == 2:
            raise KeyboardInterrupt

    loop.then = interrupt
    assert run(TARGET, "--export", tmp_path / "a.json", "--export", tmp_path / "a.md") == 130
    shown = capsys.readouterr()
    assert len(read_benchmark(tmp_path / "a.json").rows) == 2
    assert (tmp_path / "a.md").exists()
    assert "default" in shown.out
    assert f"interrupted; finished rows are saved, and --resume {tmp_path / 'a.json'} continues" in shown.err


def test_ctrl_c_does_not_replace_a_complete_benchmark_in_the_store(loop: Loop, tmp_path: Path) -> None:
    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    store = str(tmp_path / "store.db")
    assert run(TARGET, "--store", store) == 0
    loop.then = interrupt
    assert run(TARGET, "--store", store) == 130
    with open_storage(store) as storage:
        (kept,) = storage.reports(ReportKind.BENCHMARK)
        assert storage.get_report(ReportKind.BENCHMARK, kept.id) == a_benchmark()


def test_ctrl_c_before_the_first_row_shows_nothing(loop: Loop, monkeypatch, capsys) -> None:
    def raise_interrupt(*arguments: Any) -> Benchmark:
        raise KeyboardInterrupt

    monkeypatch.setattr(torchwise.bench, "run_benchmark", raise_interrupt)
    assert run(TARGET) == 130
    assert capsys.readouterr() == ("", "torchwise: interrupted; no row was finished\n")


def test_ctrl_c_does_not_say_that_rows_are_kept_where_no_file_holds_them(loop: Loop, capsys) -> None:
    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    loop.then = interrupt
    assert run(TARGET) == 130
    assert "finished rows are shown, but not saved" in capsys.readouterr().err


def test_what_is_left_is_said_with_the_way_on(loop: Loop, capsys) -> None:
    loop.rows = (a_row("eager", 1.0, workload=a_spec(TARGET)),)
    assert run(TARGET, "--device", "cuda", "--contenders", "eager,default,torchwise") == 0
    assert "2 of 3 rows are not done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no target is given, .*zoo (energy_flow, ivhl, spinlock, arr_coc, tutorial, training)"),
        (("tutorail",), "did you mean tutorial"),
        ((TARGET, "--size", "tiny"), "size is 'tiny'"),
        ((TARGET, "--device", "tpu"), "device is 'tpu', but must be one of cpu, cuda"),
        ((TARGET, "--mode", "dreaming"), "mode is 'dreaming', but must be one of inference, training"),
        ((TARGET, "--objective", "memory"), "objective is 'memory', but must be latency"),
        ((TARGET, "--effort", "great"), "effort is 'great'"),
        ((TARGET, "--allow", "all"), "allow is 'all', but must be one of"),
        ((TARGET, "--calls", "0"), "calls is 0, but must be a whole number of at least 1"),
        ((TARGET, "--seed", "9" * 23), "seed is 99999999999999999999999, but must be a whole number from"),
        ((TARGET, "--contenders", ""), "contenders are '', but must be at least one name"),
        ((TARGET, "--contenders", " , "), "contenders are ' , ', but must be at least one name"),
        ((TARGET, "--export", "/proc/a.json"), "/proc/a.json cannot be written: "),
        ((TARGET, "--resume", "/proc/a.json"), "/proc/a.json cannot be written: "),
        ((TARGET, "--html", "/proc/a.html"), "/proc/a.html cannot be written: "),
        ((TARGET, "--plots", "/proc/none/plots"), "cannot be written: "),
        ((TARGET, "--budget", "0"), "budget is 0.0 s, but must be above 0"),
        ((TARGET, "--search-budget", "0"), "search budget is 0.0 s, but must be above 0"),
        ((TARGET, "--search-budget", "9", "--plan", "default"), "a search budget and plans are given"),
        ((TARGET, "--tolerance", "0"), "tolerance is 0.0, but must be above 0"),
        ((TARGET, "--export", "a.txt"), "a.txt has the suffix '.txt', but must have one of"),
        ((TARGET, "--export", "nowhere/a.md"), "there is no folder"),
        ((TARGET, "--resume", "a.csv"), "a.csv cannot be resumed from: only a .json file holds"),
        ((TARGET, "--plots", "file"), "file is a file, but plots go to a folder"),
        (("--suite", "none.toml"), "none.toml cannot be read"),
    ],
)
def test_bad_input_is_refused_before_anything_is_run(
    loop: Loop, tmp_path: Path, monkeypatch, capsys, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    assert run(*arguments) == 2
    shown = capsys.readouterr()
    for part in message.split(".*"):
        assert part in shown.err
    assert shown.out == ""
    assert loop.request is None


def test_a_file_that_is_no_benchmark_is_not_gone_on_with(loop: Loop, tmp_path: Path, capsys) -> None:
    file = tmp_path / "bench.json"
    file.write_text("{}")
    assert run(TARGET, "--resume", file) == 2
    assert "this is no Benchmark" in capsys.readouterr().err
    assert file.read_text() == "{}"
    assert loop.request is None


def test_the_loop_itself_runs_from_the_command(monkeypatch, tmp_path: Path, capsys) -> None:
    """The path from the command to the file, with only the worker processes replaced."""
    workers = Workers()
    monkeypatch.setattr(torchwise.trial, "ProcessLauncher", lambda **_: workers)
    file = tmp_path / "bench.json"
    options = ("--device", "cpu", "--contenders", "eager,default", "--effort", "quick", "--resume", file)
    assert run(TARGET, *options) == 0
    jobs = len(workers.jobs)
    assert [row.contender for row in read_benchmark(file).rows] == ["eager", "default"]
    assert run(TARGET, *options) == 0
    assert len(workers.jobs) == jobs
    monkeypatch.setattr(torchwise.environment, "torch_version", lambda: "0.1")
    assert run(TARGET, *options) == 2
    assert "from another environment (torch: " in capsys.readouterr().err


def test_a_target_that_cannot_be_used_is_bad_input_and_its_rows_say_why(monkeypatch, tmp_path: Path, capsys) -> None:
    other = "zoo:tutorial.branch@small"
    workers = Workers(plain={TARGET: TargetError("m.py has no 'f'")})
    monkeypatch.setattr(torchwise.trial, "ProcessLauncher", lambda **_: workers)
    monkeypatch.setenv("COLUMNS", "200")
    options = ("--device", "cpu", "--contenders", "eager", "--effort", "quick", "--resume", tmp_path / "bench.json")
    assert run(TARGET, *options) == 2
    shown = capsys.readouterr().out
    assert "eager: m.py has no 'f'" in shown
    assert "Next" not in shown, "nothing was timed that could be compared"
    assert run(TARGET, other, *options) == 2
    assert "torchwise compare" in capsys.readouterr().out
    assert run(other, *options) == 0, "what is not asked for is nobody's bad input"
    workers.plain = {}
    assert run(TARGET, *options, "--contenders", "default") == 0, "what another contender was refused counts there"
    assert run(TARGET, other, *options) == 0


def test_asking_about_the_commands_loads_no_torch(monkeypatch) -> None:
    for arguments in (["--help"], ["bench", "--help"], ["bench"], ["compare", "--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "torchwise.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        )
        assert done.returncode == (2 if arguments == ["bench"] else 0)
        loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import ")}
        assert "torchwise.cli.bench" in loaded
        assert "torch" not in loaded


def test_comparing_loads_no_torch(tmp_path: Path) -> None:
    file = str(export(a_benchmark(), tmp_path / "a.json"))
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['torchwise', 'compare', *sys.argv[1:]]; "
        "from torchwise import cli; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, file, file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "B has no regression" in done.stdout


def test_the_table_is_shown_though_a_file_cannot_be_written_by_then(
    loop: Loop, monkeypatch, tmp_path: Path, capsys
) -> None:
    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(torchwise.report, "export", full)
    assert run(TARGET, "--export", tmp_path / "a.json") == 2
    shown = capsys.readouterr()
    assert "torchwise ★" in shown.out
    assert "the disk is full" in shown.err
    assert run(TARGET, "--resume", tmp_path / "a.json") == 2, "which is written after every row"
    shown = capsys.readouterr()
    assert loop.rows[0].contender in shown.out
    assert "the disk is full" in shown.err


def test_the_way_to_go_on_names_the_file_that_was_exported(loop: Loop, tmp_path: Path, capsys) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    loop.then = interrupt
    file = tmp_path / "bi2.json"
    assert run(TARGET, "--export", file) == 130
    shown = capsys.readouterr()
    assert f"--resume {file} " in shown.err
    assert f"--resume{file}:" in "".join(shown.out.split())
    assert run(TARGET) == 130
    assert "--resume FILE.json" in capsys.readouterr().err
