"""A lock checked on another PyTorch: right or wrong, faster or slower, and no drift of the machine counts."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lock_samples import FAR, HERE, TARGET, Worker, an_entry, make_measurement
from rich.console import Console
from typer.testing import CliRunner

from store_samples import PASSED
from torchwise.cli import app
from torchwise.environment import Environment
from torchwise.errors import BaselineError, InputError, TorchwiseError
from torchwise.plan import EAGER, Plan
from torchwise.plan.effort import EFFORTS
from torchwise.records import Check as VerdictCheck
from torchwise.records import Costs, Failure, FailureKind, Inspection, Measurement, Outcome, Verdict, codec
from torchwise.records.listener import Listener
from torchwise.study.lock import Entry, Lock, environments, write
from torchwise.study.lock.check import CheckRequest
from torchwise.study.lock.check_results import Check, Checked, State, render_check, sentence
from torchwise.study.lock.environments import locate_environments, make_environment
from torchwise.study.lock.other_environment import describe_other
from torchwise.study.lock.upgrade import MIN_PAIRS, MORE_PAIRS, run_upgrade_check
from torchwise.trial import Job, Limits, interpreter_launcher
from torchwise.trial.full_graph import FullGraph, FullGraphJob
from torchwise.trial.interpreter_launcher import EnvironmentJob, InterpreterLauncher
from torchwise.trial.job import Attempt, Restart

NEWER = replace(HERE, torch="9.0.0")
WRONG = Verdict((VerdictCheck("values", Outcome.FAIL, "output[0] is off by 0.3"),))


def drift(start: float = 1.0, step: float = 0.0) -> Iterator[float]:
    """Yield the factor by which the machine slows each process that is timed, one after another."""
    while True:
        yield start
        start *= 1 + step


class Interpreter(Worker):
    """Workers of one environment: its PyTorch runs the plan this much slower, on a machine that may drift."""

    def __init__(
        self,
        environment: Environment,
        machine: Iterator[float],
        factor: float = 1.0,
        spread: tuple[float, ...] = (1.0, 1.004, 0.997, 1.002),
        answer: Verdict | Failure | BaselineError | None = None,
    ) -> None:
        super().__init__()
        self.environment, self.machine, self.factor = environment, machine, factor
        self.spread, self.answer = spread, answer

    def run(self, job: Any, limits: Limits, on_stage: object) -> str | Failure:
        if isinstance(job, EnvironmentJob):
            return codec.to_json(self.environment)
        self.ran.append(job)
        if job.task == "inspect":
            if isinstance(self.answer, BaselineError):
                raise self.answer
            return codec.to_json(self.inspect())
        if isinstance(self.answer, Failure):
            return self.answer
        if isinstance(self.answer, Verdict):
            return codec.to_json(Attempt(Costs(1.0), self.answer))
        timed = self.measure()
        return codec.to_json(Attempt(Costs(1.0), PASSED, timed) if job.task == "try" else Restart(0.5, timed))

    def measure(self) -> Measurement:
        timed, slow = make_measurement(2.0), next(self.machine)
        plan = slow * self.factor * self.spread[len(self.ran) % len(self.spread)]
        return replace(
            timed,
            candidate_s=tuple(plan * each for each in timed.candidate_s),
            baseline_s=tuple(slow * each for each in timed.baseline_s),
        )


def check_upgrade(
    there: Interpreter, *entries: Entry, here: Interpreter | None = None, torch: str | None = None, **asked: Any
) -> Check:
    own = here or Interpreter(HERE, there.machine, spread=(1.0, 0.99, 1.008, 1.0, 0.995))
    lock = Lock().with_entries(entries or (an_entry(),))
    other = describe_other(there, 60.0, Listener(), torch)
    return run_upgrade_check(lock, CheckRequest(**asked), own, there, Listener(), other)


def only(check: Check) -> Checked:
    (row,) = check.rows
    return row


@pytest.mark.parametrize(
    ("factor", "state", "code"),
    [(1.0, State.GOOD, 0), (1.10, State.SLOWER, 1), (0.80, State.FASTER, 0), (1.05, State.INCONCLUSIVE, 4)],
)
def test_speed_is_compared_in_pairs_of_processes(factor: float, state: State, code: int) -> None:
    check = check_upgrade(Interpreter(NEWER, drift(), factor))
    assert (only(check).state, check.exit_code) == (state, code), only(check).detail
    assert only(check).against == "torch 9.0.0"
    assert only(check).time is not None
    assert only(check).time.mid == pytest.approx(factor, rel=0.01)
    assert ("pin torch==" in only(check).way_out) is (state is State.SLOWER)
    assert codec.from_json(codec.to_json(check), Check) == check


@pytest.mark.parametrize("step", [0.02, -0.02, 0.04])
def test_a_machine_that_drifts_is_no_regression_and_hides_none(step: float) -> None:
    assert only(check_upgrade(Interpreter(NEWER, drift(step=step)))).state in (State.GOOD, State.INCONCLUSIVE)
    assert only(check_upgrade(Interpreter(NEWER, drift(step=step), 1.25))).state is State.SLOWER
    assert only(check_upgrade(Interpreter(NEWER, drift(step=step), 0.75))).state is State.FASTER


def test_processes_take_turns_in_both_orders_and_end_when_the_result_is_clear() -> None:
    order: list[str] = []

    class Noting(Interpreter):
        def measure(self) -> Measurement:
            order.append("here" if self.environment == HERE else "there")
            return super().measure()

    machine = drift()
    assert only(check_upgrade(Noting(NEWER, machine), here=Noting(HERE, machine))).state is State.GOOD
    pairs = [order[at : at + 2] for at in range(0, len(order), 2)]
    assert pairs[:3] == [["there", "here"], ["here", "there"], ["there", "here"]]
    assert MIN_PAIRS <= len(pairs) <= 5 + MORE_PAIRS


def test_results_that_vary_too_much_are_inconclusive() -> None:
    machine = drift()
    there = Interpreter(NEWER, machine, spread=(1.0, 1.4, 0.7, 1.2, 0.9))
    check = check_upgrade(there)
    assert (only(check).state, check.exit_code) == (State.INCONCLUSIVE, 4)
    assert len(there.ran) == 1 + 5 + MORE_PAIRS, "an inspection, and a process for each pair"
    assert "leave open whether to move to torch 9.0.0" in sentence(check)


@pytest.mark.parametrize(
    ("answer", "state", "words"),
    [
        (WRONG, State.WRONG, "off by 0.3"),
        (Failure(FailureKind.DIED, "compile", "SIGSEGV"), State.LOST, "died in compile: SIGSEGV"),
        (BaselineError("the model fails: no such operator"), State.LOST, "the original model fails"),
    ],
)
def test_what_no_longer_works_there_is_to_be_pinned(answer: Any, state: State, words: str) -> None:
    check = check_upgrade(Interpreter(NEWER, drift(), answer=answer))
    assert (only(check).state, check.exit_code) == (state, 1)
    assert words in only(check).detail
    # Where the original model fails, no plan can be tuned.
    or_else = "" if isinstance(answer, BaselineError) else ", or with torch 9.0.0: torchwise tune app.py:make"
    assert only(check).way_out.startswith(f"pin torch=={HERE.torch}{or_else}")
    assert bool(or_else) is ("tune" in only(check).way_out)
    assert sentence(check).startswith("Worse with torch 9.0.0: 1 ")


@pytest.mark.parametrize(
    "answer",
    [WRONG, Failure(FailureKind.DIED, "compile", "SIGSEGV"), BaselineError("no such operator")],
)
@pytest.mark.parametrize("measure", [True, False])
def test_what_is_wrong_here_too_is_no_fault_of_the_upgrade(answer: Any, measure: bool) -> None:
    machine = drift()
    here, there = Interpreter(HERE, machine, answer=answer), Interpreter(NEWER, machine, answer=answer)
    check = check_upgrade(there, here=here, measure=measure)
    row = only(check)
    assert row.state is State.STALE
    assert row.detail.startswith("it does not hold here, before any upgrade: ")
    assert row.against == "", "no version to pin would help"
    # Nor can a model be tuned that fails by itself.
    assert row.way_out == "" if isinstance(answer, BaselineError) else row.way_out.startswith("torchwise tune")
    assert "Worse with" not in sentence(check)
    held_up = Interpreter(HERE, machine, answer=Failure(FailureKind.INTERFERED, "measure", "3 times as long"))
    assert only(check_upgrade(there, here=held_up, measure=measure)).state is State.INCONCLUSIVE
    assert only(check_upgrade(held_up, measure=measure)).state is State.INCONCLUSIVE


@pytest.mark.parametrize(("field", "words"), [("structure", "model"), ("identity", "the weights of the example")])
@pytest.mark.parametrize("measure", [True, False])
def test_another_model_than_the_locked_one_is_stale(field: str, words: str, measure: bool) -> None:
    machine = drift()
    here = Interpreter(HERE, machine)
    here.inspection = {field: "0" * 16}
    row = only(check_upgrade(Interpreter(NEWER, machine), here=here, measure=measure))
    assert (row.state, "before any upgrade" in row.detail, words in row.detail) == (State.STALE, True, True), row.detail


class Once(Interpreter):
    """Fails in its second process that is timed."""

    failure: Failure | TorchwiseError

    def run(self, job: Any, limits: Limits, on_stage: object) -> str | Failure:
        if job.task != "warm":
            return super().run(job, limits, on_stage)
        if isinstance(self.failure, TorchwiseError):
            raise self.failure
        return self.failure


@pytest.mark.parametrize("where", ["here", "there", "both"])
@pytest.mark.parametrize(
    ("failure", "here", "there"),
    [
        (Failure(FailureKind.TIMED_OUT, "measure", "…"), State.INCONCLUSIVE, State.INCONCLUSIVE),
        (Failure(FailureKind.INTERFERED, "measure", "…"), State.INCONCLUSIVE, State.INCONCLUSIVE),
        (Failure(FailureKind.DIED, "measure", "…"), State.UNKNOWN, State.LOST),
        (BaselineError("the model fails at times"), State.UNKNOWN, State.LOST),
        (InputError("no such file"), State.UNKNOWN, State.UNKNOWN),
    ],
)
def test_a_process_that_fails_for_once_ends_no_other_check(failure: Any, here: State, there: State, where: str) -> None:
    machine = drift()
    sides = {"here": Interpreter(HERE, machine), "there": Interpreter(NEWER, machine)}
    for side in sides if where == "both" else [where]:
        sides[side] = fails = Once(sides[side].environment, machine)
        fails.failure = failure
    row = only(check_upgrade(sides["there"], here=sides["here"]))
    assert row.state is (there if where == "there" else here), row  # if both fail, the upgrade is not to blame
    assert f"with torch {NEWER.torch if where == 'there' else HERE.torch}" in row.detail


def test_without_timing_it_is_only_verified() -> None:
    there = Interpreter(NEWER, drift())
    check = check_upgrade(there, measure=False)
    assert only(check).detail == "correct with torch 9.0.0; not timed"
    assert there.tasks == ["inspect", "try"]
    assert check.exit_code == 0
    shown = io.StringIO()
    Console(file=shown, width=200).print(render_check(check))
    assert "Correct, but not timed" in shown.getvalue(), "it is not said to be no slower"
    assert "Nothing is wrong, but nothing was timed with torch 9.0.0: 1 good." in shown.getvalue()


def test_a_slowdown_that_only_the_last_pair_shows_is_inconclusive() -> None:
    machine = drift()
    there = Interpreter(NEWER, machine, spread=(1.0, 1.0, 1.08, 1.11, 1.14, 1.03, 1.17, 1.15))
    row = only(check_upgrade(there, here=Interpreter(HERE, machine, spread=(1.0,)), effort="quick"))
    assert len(there.ran) == 1 + EFFORTS["quick"].processes + MORE_PAIRS
    assert row.time is not None
    assert row.time.low > 1.055, "the last pair shows it, and none is left to confirm it"
    assert (row.state, row.way_out) == (State.INCONCLUSIVE, "")


@pytest.mark.parametrize("breaks", ["there", "both"])
def test_a_graph_that_breaks_there_alone_is_the_fault_of_the_upgrade(breaks: str) -> None:
    class Broken(Interpreter):
        def run(self, job: Any, limits: Limits, on_stage: object) -> str | Failure:
            if not isinstance(job, FullGraphJob):
                return super().run(job, limits, on_stage)
            return codec.to_json(FullGraph("line 7" if self.environment == NEWER or breaks == "both" else ""))

    machine = drift()
    check = check_upgrade(Broken(NEWER, machine), here=Broken(HERE, machine), fullgraph=True, measure=False)
    assert "line 7" in only(check).detail
    assert (only(check).state, check.exit_code) == (State.BREAKS if breaks == "there" else State.STALE, 1)


def test_other_inputs_there_are_not_compared() -> None:
    there = Interpreter(NEWER, drift())
    there.inspection = {"inputs": ("[0][0] float32[9] (1,)",)}
    assert (only(check_upgrade(there)).state, check_upgrade(there).exit_code) == (State.UNKNOWN, 2)


def test_plans_that_hold_nowhere_here_are_not_judged() -> None:
    there = Interpreter(NEWER, drift())
    stale = an_entry(here=replace(HERE, torch="1.0.0"))
    assert only(check_upgrade(there, stale)).state is State.STALE
    assert "before any upgrade: torch: 1.0.0 there" in only(check_upgrade(there, stale)).detail
    assert only(check_upgrade(there, an_entry(here=FAR))).state is State.ELSEWHERE
    with pytest.raises(InputError, match=r"no section for 'other.py:make'"):
        check_upgrade(there, targets=("other.py:make",))
    lost = Interpreter(HERE, drift(), answer=Failure(FailureKind.DIED, "compile", "SIGSEGV"))
    row = only(check_upgrade(there, here=lost))
    assert (row.state, "of this environment" in row.detail) == (State.UNKNOWN, True)


@pytest.mark.parametrize(("asked", "is_there"), [("9.0.0", True), ("9.0", True), ("9.0.0+cpu", False), ("9", True)])
@pytest.mark.parametrize("build", ["", "+cu130"])
def test_workers_with_another_pytorch_than_asked_for_prove_nothing(asked: str, is_there: bool, build: str) -> None:
    there = Interpreter(replace(NEWER, torch=f"9.0.0{build}"), drift())
    if is_there:
        assert only(check_upgrade(there, torch=asked, measure=False)).state is State.GOOD
        there.environment = HERE
    with pytest.raises(InputError, match=rf"torch {re.escape(asked)} is asked for, but the workers .* have torch"):
        check_upgrade(there, torch=asked, measure=False)


@pytest.mark.parametrize(
    ("other", "name", "pin"),
    [
        (NEWER, "torch 9.0.0", f"pin torch=={HERE.torch},"),
        (replace(NEWER, python="3.99.0"), "torch 9.0.0 and Python 3.99.0", f"torch=={HERE.torch} and Python"),
        (replace(HERE, python="3.99.0"), f"torch {HERE.torch} and Python 3.99.0", f"pin Python {HERE.python},"),
        (HERE, f"torch {HERE.torch}", "keep this environment,"),
    ],
)
def test_all_that_differs_is_named_and_only_that_is_pinned(other: Environment, name: str, pin: str) -> None:
    row = only(check_upgrade(Interpreter(other, drift(), answer=WRONG), measure=False))
    assert (row.against, pin in row.way_out) == (name, True), row.way_out


def test_eager_is_timed_as_a_plan_too() -> None:
    assert only(check_upgrade(Interpreter(NEWER, drift(), 1.2), an_entry(plan=EAGER))).state is State.SLOWER


def test_a_decision_never_survives_an_upgrade_unproven() -> None:
    decision = an_entry().decision
    assert decision.environment.differences(NEWER) == [f"torch: {HERE.torch} there, 9.0.0 here"]
    assert decision.environment.fingerprint != replace(decision.environment, torch="9.0.0").fingerprint


# ---- environments


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(environments, "locate_environments", lambda: tmp_path / "environments")
    return tmp_path / "environments"


def test_an_environment_is_made_once_and_shares_all_other_packages(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []
    real = environments._run

    def run(command: list[str], what: str) -> None:
        ran.append(command)
        if "install" in command:
            if command[-1].endswith("+cpu"):
                raise InputError("no such build")
            return
        real([sys.executable, "-m", "venv", "--without-pip", command[-1]], what)

    monkeypatch.setattr(environments, "_run", run)
    monkeypatch.setattr(environments, "_find_uv", lambda: None)
    monkeypatch.setattr(environments.environment, "torch_version", lambda: "2.13.0+cpu")
    said: list[str] = []
    found = [make_environment("9.8.7", said.append) for _ in range(2)]
    assert found[0] == found[1]
    assert Path(found[0]).is_relative_to(cache)
    assert [command[-1] for command in ran if "install" in command] == ["torch==9.8.7+cpu", "torch==9.8.7"]
    assert len(said) == 1
    monkeypatch.setattr(environments.environment, "torch_version", lambda: "2.13.0")
    make_environment("9.8.7", said.append)
    assert [command[-1] for command in ran if "install" in command][2:] == ["torch==9.8.7"], "no build for the CPU"
    shared = subprocess.run([found[0], "-c", "import pytest; print(pytest.__file__)"], capture_output=True, text=True)
    assert shared.stdout.strip() == pytest.__file__


@pytest.mark.parametrize("works", [["uv"], ["pip"], []])
def test_where_uv_finds_no_such_version_pip_is_asked(works: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def run(command: list[str], what: str) -> None:
        if "install" not in command:
            return
        asked.append(("uv" if command[0] == "/bin/uv" else "pip", command[-1]))
        if asked[-1] not in [(one, "torch==9.8.7") for one in works]:
            raise InputError(f"{what} could not be installed")

    monkeypatch.setattr(environments, "_run", run)
    monkeypatch.setattr(environments, "_find_uv", lambda: "/bin/uv")
    monkeypatch.setattr(environments, "share_packages", lambda _: None)
    monkeypatch.setattr(environments.environment, "torch_version", lambda: "2.13.0+cpu")
    with contextlib.nullcontext() if works else pytest.raises(InputError, match=r"torch 9.8.7 could not"):
        environments._create(Path("folder"), sys.executable, "9.8.7")
    tries = [(one, f"torch=={version}") for version in ("9.8.7+cpu", "9.8.7") for one in ("uv", "pip")]
    assert asked == (tries[:3] if works == ["uv"] else tries)


def test_each_environment_has_environments_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_create", lambda folder, *_: folder.mkdir(parents=True))
    monkeypatch.setattr(environments.environment, "torch_version", lambda: "2.13.0")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setattr(environments, "_ask", lambda python, _: f"{version} {python}")
    found = {make_environment("9.8.7", lambda _: None), make_environment("9.8.7", lambda _: None, "other/python")}
    for owner, name, value in (
        (sys, "prefix", "/of/project/b"),
        (sys, "path", [*sys.path, "/of/project/b/site-packages"]),
        (environments.environment, "torch_version", lambda: "2.13.0+cpu"),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(owner, name, value)
            found.add(make_environment("9.8.7", lambda _: None))
    assert len(found) == 5
    assert make_environment("9.8.7", lambda _: None) in found


def test_an_environment_that_was_not_finished_is_made_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(command: list[str], what: str) -> None:
        raise InputError(f"{what} could not be installed: no such version")

    monkeypatch.setattr(environments, "_run", fail)
    for _ in range(2):
        with pytest.raises(InputError, match="could not be installed"):
            make_environment("9.8.7", lambda _: None)

    def interrupt(folder: Path, *_: str) -> None:
        folder.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(environments, "_create", interrupt)
    with pytest.raises(KeyboardInterrupt):
        make_environment("9.8.7", lambda _: None)
    assert not [path for path in cache.iterdir() if path.is_dir()], "half of one may take gigabytes"


def test_an_environment_whose_interpreter_is_gone_is_made_anew(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def create(folder: Path, *_: str) -> None:
        made.append(folder)
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(environments, "_create", create)
    found = [Path(make_environment("9.8.7", lambda _: None)) for _ in range(2)]
    assert len(made) == 1
    found[0].unlink()
    found[0].symlink_to("/no/such/python")
    assert Path(make_environment("9.8.7", lambda _: None)) == found[0]
    assert len(made) == 2


def test_a_cache_that_cannot_be_written_is_told(cache: Path) -> None:
    cache.write_text("a file")
    with pytest.raises(InputError, match=r"environments cannot be written: File exists\. .*--against-python"):
        make_environment("9.8.7", lambda _: None)


def test_a_cache_that_exists_and_cannot_be_written_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_named: object) -> int:
        raise PermissionError(13, "Permission denied")

    cache.mkdir()
    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(InputError, match=r"environments cannot be written: Permission denied\. .*--against-python"):
        make_environment("9.8.7", lambda _: None)


@pytest.mark.parametrize("version", ["newest", "2", "2.13; rm", "../2.13", ""])
def test_no_version_is_refused(version: str) -> None:
    with pytest.raises(InputError, match=r"torch is .*, but must be a version, such as"):
        make_environment(version, lambda _: None)


def test_the_interpreter_must_run_and_be_of_this_version(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be an interpreter that can be run"):
        make_environment("2.13.0", lambda _: None, str(tmp_path / "python"))
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 2.7\n")
    other.chmod(0o755)
    with pytest.raises(InputError, match=r"of version 2.7, but must be of .* --against-python"):
        make_environment("2.13.0", lambda _: None, str(other))
    assert locate_environments().name == "environments"


def test_the_command_refuses_what_cannot_be_used_before_it_installs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "torchwise.lock"
    write(Lock().with_entries((an_entry(),)), file)
    missing = str(tmp_path / "no-python")

    def refuse(*_: Any) -> str:
        raise AssertionError("nothing is installed before all else is known to be right")

    monkeypatch.setattr(environments, "make_environment", refuse)
    words = ["check", "--lock", str(file), "--against-torch", "9.0.0"]
    for more, message in (
        (["--against-python", missing], "must be an interpreter that can be run"),
        (["other.py:make"], "no section for 'other.py:make'"),
    ):
        found = CliRunner().invoke(app, [*words, *more])
        assert isinstance(found.exception, InputError), found.output
        assert message in str(found.exception)


def test_the_command_checks_each_environment_once_and_all_of_them_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, torches = drift(), {"a": "9.0.0", "b": "9.1.0"}
    workers = {name: Interpreter(replace(HERE, torch=torch), machine) for name, torch in torches.items()}
    workers[sys.executable] = Interpreter(HERE, machine)

    class Known:
        def __init__(self, python: str) -> None:
            self.python, self.run = python, workers[python].run

    monkeypatch.setattr(interpreter_launcher, "InterpreterLauncher", Known)
    made = {torch: name for name, torch in torches.items()}
    monkeypatch.setattr(environments, "make_environment", lambda torch, *_: made[torch])
    file, out = tmp_path / "torchwise.lock", tmp_path / "check.json"
    stale = an_entry("stale.py:make", here=replace(HERE, torch="1.0.0"))
    write(Lock().with_entries((an_entry(), stale, an_entry("far.py:make", here=FAR))), file)
    asked = [word for one in (*torches.values(), "9.0.0") for word in ("--against-torch", one)]
    words = ["check", "--lock", str(file), "--no-measure", "--json", str(out), *asked]
    found = CliRunner().invoke(app, words)
    rows = [(row.target, row.state, row.against) for row in codec.from_json(out.read_text(), Check).rows]
    assert sorted(rows) == [
        (TARGET, State.GOOD, "torch 9.0.0"),
        (TARGET, State.GOOD, "torch 9.1.0"),
        ("far.py:make", State.ELSEWHERE, ""),
        ("stale.py:make", State.STALE, ""),
    ]
    assert found.exit_code == 1
    assert "stale before any upgrade, so not all could be checked with torch 9.0.0 and torch 9.1.0" in found.output

    workers["b"].environment, workers["a"].ran = HERE, []
    found = CliRunner().invoke(app, words)
    assert str(found.exception).startswith("b: torch 9.1.0 is asked for"), "it names the interpreter of the several"
    assert not workers["a"].ran, "what cannot be checked is told before hours are spent on the rest"


def test_an_empty_lock_is_told() -> None:
    assert sentence(Check((), 0.05, 0.95)) == "The lock is empty: torchwise tune TARGET && torchwise lock TARGET."


def test_an_interpreter_to_make_environments_with_needs_a_version(tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["check", "--python", "python3"])
    assert "is only for --against-torch" in (found.output + str(found.exception))


def test_the_nightly_check_takes_no_earlier_result_for_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    nightly = importlib.import_module("upgrade_versions")
    (tmp_path / "check.json").write_text('{"rows": [{"state": "slower"}]}')
    monkeypatch.setattr(nightly, "torchwise", lambda *_: 2)
    assert nightly.plant(tmp_path, 1.1) == []

    monkeypatch.setattr(nightly, "lock", lambda _: None)
    planted: list[list[dict[str, str]]] = []

    def check(_folder: Path, *words: str, effort: str = "quick") -> list[dict[str, str]]:
        return planted.pop(0) if "--lock" in words else 6 * [{"state": "good"}]

    monkeypatch.setattr(nightly, "check", check)
    slower, is_open = ([{"state": state, "detail": ""}] for state in ("slower", "inconclusive"))
    asked = ("--plant", "1.1")
    for plant, code, found in (
        ((), 0, []),
        (asked, 1, [[]]),
        (asked, 0, [is_open, is_open, slower]),
        (asked, 1, 3 * [is_open]),
        (asked, 1, [[{"state": "good", "detail": ""}]]),
    ):
        planted[:] = found
        monkeypatch.setattr(sys, "argv", ["upgrade_versions.py", "--to", "9.0.0", *plant])
        with pytest.raises(SystemExit) as ended:
            nightly.main()
        assert int(ended.value.code) == code


SLOWED = """
import os, time, torch
def model(x):
    end = time.perf_counter() + 0.01 * float(os.environ.get("TORCHWISE_TEST_SLOWER", "1"))
    while time.perf_counter() < end:
        x = x * 0.5 + 1.0
    return x * 0.0 + 1.0
def make():
    return model, (torch.ones(8),)
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("brief_searches")
def test_a_planted_regression_is_found_with_real_interpreters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slowed.py").write_text(SLOWED)
    slower = tmp_path / "python"
    slower.write_text(f'#!/bin/sh\nTORCHWISE_TEST_SLOWER=3 exec {sys.executable} "$@"\n')
    slower.chmod(0o755)
    plan = Plan(threads=1)
    entry = an_entry(f"{tmp_path / 'slowed.py'}:make", plan)
    here = InterpreterLauncher(sys.executable)
    job = Job("inspect", entry.decision.workload)
    inspected = codec.from_json(here.run(job, Limits(60.0, 2**33), lambda _: None), Inspection)  # type: ignore[arg-type]
    found = {name: getattr(inspected, name) for name in ("inputs", "identity", "structure", "structure_details")}
    entry = replace(entry, decision=replace(entry.decision, **found))
    lock = Lock().with_entries((entry,))
    there = InterpreterLauncher(str(slower))
    other = describe_other(there, 60.0, Listener(), HERE.torch)
    check = run_upgrade_check(lock, CheckRequest(effort="quick"), here, there, Listener(), other)
    assert only(check).state is State.SLOWER, only(check).detail
    assert only(check).against == f"torch {HERE.torch}"
    assert only(check).target != TARGET
