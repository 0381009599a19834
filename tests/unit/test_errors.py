"""The tree of errors is the one its docstring draws, and the command line turns each into its exit code."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
import sys

import pytest

from builders import a_study
from torchwise import cli, errors
from torchwise.errors import (
    BaselineError,
    BudgetError,
    GraphBreakError,
    InputError,
    InternalError,
    NoEffectError,
    PlanError,
    QueueFullError,
    RefusedPlanError,
    StalePlanError,
    StorageError,
    TargetError,
    TorchwiseError,
    UnsupportedError,
    WorkloadError,
    first_line,
    format_error,
)
from torchwise.records.answer import Answer

EXIT_CODES = {
    TorchwiseError: 1,
    InputError: 2,
    TargetError: 2,
    WorkloadError: 2,
    PlanError: 2,
    StorageError: 2,
    BaselineError: 3,
    BudgetError: 4,
    GraphBreakError: 1,
    InternalError: 1,
    UnsupportedError: 1,
    NoEffectError: 1,
    QueueFullError: 1,
    StalePlanError: 1,
    RefusedPlanError: 1,
}


def make_error(error: type[TorchwiseError], message: str) -> TorchwiseError:
    """Make an error with that message, and with the part of a plan where it must name one."""
    return error(message, ("scope", "rolled")) if error is NoEffectError else error(message)  # type: ignore[call-arg]


def read_drawn_tree() -> dict[str, str]:
    """Read child to parent from the drawing in the module's docstring."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│├└─ ]*)(\w+Error)\b", line):
            depth = len(found.group(1)) // 4
            above[depth:] = [found.group(2)]
            if depth:
                parents[found.group(2)] = above[depth - 1]
    return parents


def test_the_tree_is_the_one_that_the_docstring_draws() -> None:
    classes = [value for value in vars(errors).values() if inspect.isclass(value)]
    real = {cls.__name__: cls.__base__.__name__ for cls in classes if cls is not TorchwiseError}
    assert read_drawn_tree() == real
    assert TorchwiseError.__base__ is Exception


@pytest.mark.parametrize(("error", "code"), EXIT_CODES.items(), ids=lambda value: getattr(value, "__name__", value))
def test_exit_code(error: type[TorchwiseError], code: int) -> None:
    assert make_error(error, "why").exit_code == code
    assert str(make_error(error, "calls is 0")) == "calls is 0"


def test_every_error_has_its_exit_code_listed_here() -> None:
    assert {value for value in vars(errors).values() if inspect.isclass(value)} == set(EXIT_CODES)


@pytest.mark.parametrize("error", EXIT_CODES, ids=lambda error: error.__name__)
def test_the_command_line_says_it_and_exits_with_its_code(error, monkeypatch, capsys) -> None:
    def fail() -> None:
        raise make_error(error, "calls is 0, but must be at least 1")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == EXIT_CODES[error]
    shown = capsys.readouterr()
    assert shown.err == "torchwise: calls is 0, but must be at least 1\n"
    assert shown.out == ""


def test_a_program_that_runs_the_command_reads_the_message_from_a_file(tmp_path, monkeypatch) -> None:
    """Processes of the command do not inherit the variable, and so never write their own errors there."""
    seen: list[str | None] = []

    def fail() -> None:
        seen.append(os.environ.get(errors.ERROR_FILE))
        raise InputError("calls is 0,\nbut must be at least 1")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setenv(errors.ERROR_FILE, str(tmp_path / "error"))
    with pytest.raises(SystemExit):
        cli.main()
    assert seen == [None]
    assert (tmp_path / "error").read_text() == "calls is 0,\nbut must be at least 1"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """Run the command line in this process. Return its exit code."""
    monkeypatch.setattr(sys, "argv", ["torchwise", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def test_an_interruption_is_130_and_says_that_what_is_done_is_kept(tmp_path, monkeypatch, capsys) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchwise.study.run_study", interrupt)
    store = f"sqlite:///{tmp_path / 'store.db'}"
    assert run(monkeypatch, "tune", "zoo:tutorial.fusion_demo", "--device", "cpu", "--store", store) == 130
    assert "finished trials are saved" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "code"), [(Answer.YES, 0), (Answer.NO, 0), (Answer.INCONCLUSIVE, 4), (None, 0)])
def test_what_is_inconclusive_has_an_exit_code_of_its_own(answer, code, tmp_path, monkeypatch, capsys) -> None:
    study = a_study()
    told = dataclasses.replace(study, decision=dataclasses.replace(study.decision, answer=answer))
    monkeypatch.setattr("torchwise.study.run_study", lambda *_: told)
    store, file = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "study.json"
    asked = ("tune", "zoo:tutorial.fusion_demo", "--device", "cpu", "--store", store, "--json", str(file))
    assert run(monkeypatch, *asked) == code
    assert json.loads(file.read_text())["decision"]["answer"] == answer, "the study is written all the same"
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "target is 'nonsense', which names no factory"),
        (["zoo:x", "--calls", "0"], "calls is 0, but must be a whole number of at least 1"),
        (
            ["zoo:x", "--allow", "lossy"],
            "allow is 'lossy', but must be one of exact, same-precision, lower-precision, quantized, substituted",
        ),
        (["zoo:x", "--plan", "{}"], 'the plan names no schema: add "schema":"torchwise.plan/1" to it'),
        (["zoo:x", "--plan", '{"schema":null}'], "schema is None, but this version reads 'torchwise.plan/1'"),
        (["zoo:x", "--objective", "speed"], "objective is 'speed', but must be one of latency, throughput, memory"),
    ],
)
def test_bad_input_is_2_before_anything_runs(arguments: list[str], message: str, monkeypatch, capsys) -> None:
    def never(*_: object) -> None:
        raise AssertionError("it ran")

    monkeypatch.setattr("torchwise.study.run_study", never)
    assert run(monkeypatch, "tune", "--device", "cpu", *arguments) == 2
    assert message in capsys.readouterr().err


COMPILERS = (
    'InternalTorchDynamoError: NotImplementedError: \n\nfrom user code:\n   File "m.py", line 7, in forward\n  x + 1\n'
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (COMPILERS, "InternalTorchDynamoError: NotImplementedError without a message, at m.py:7, in forward"),
        ("raised in dynamo: KeyError:", "raised in dynamo: KeyError without a message"),
        ("\n  RuntimeError: no\n  more", "RuntimeError: no"),
        ("what is wrong:\n  this", "what is wrong:"),
        ("", ""),
    ],
)
def test_the_first_line_of_an_error_says_something(text: str, line: str) -> None:
    assert first_line(text) == line


def test_an_exception_without_a_message_is_told_by_its_place() -> None:
    def fail(*given: object) -> None:
        raise NotImplementedError(*given)

    with pytest.raises(NotImplementedError) as caught:
        fail()
    assert re.fullmatch(
        r"NotImplementedError without a message, at .*test_errors\.py:\d+, in fail", format_error(caught.value)
    )
    with pytest.raises(NotImplementedError) as caught:
        fail("later")
    assert format_error(caught.value) == "NotImplementedError: later"


def test_an_unforeseen_error_is_not_dressed_up_as_one_of_ours(monkeypatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main()
