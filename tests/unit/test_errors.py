"""The tree of errors is the one its docstring draws, and the command line turns each into its exit code."""

from __future__ import annotations

import inspect
import re

import pytest

from torchwise import cli, errors
from torchwise.errors import (
    BaselineError,
    InputError,
    PlanError,
    StalePlanError,
    StorageError,
    TargetError,
    TorchwiseError,
    UnsupportedError,
    WorkloadError,
)

EXIT_CODES = {
    TorchwiseError: 1,
    InputError: 2,
    TargetError: 2,
    WorkloadError: 2,
    PlanError: 2,
    StorageError: 2,
    BaselineError: 3,
    UnsupportedError: 1,
    StalePlanError: 1,
}


def drawn_tree() -> dict[str, str]:
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
    assert drawn_tree() == real
    assert TorchwiseError.__base__ is Exception


@pytest.mark.parametrize(("error", "code"), EXIT_CODES.items(), ids=lambda value: getattr(value, "__name__", value))
def test_exit_code(error: type[TorchwiseError], code: int) -> None:
    assert error("why").exit_code == code
    assert str(error("calls is 0")) == "calls is 0"


def test_every_error_has_its_exit_code_listed_here() -> None:
    assert {value for value in vars(errors).values() if inspect.isclass(value)} == set(EXIT_CODES)


@pytest.mark.parametrize("error", EXIT_CODES, ids=lambda error: error.__name__)
def test_the_command_line_says_it_and_exits_with_its_code(error, monkeypatch, capsys) -> None:
    def fail() -> None:
        raise error("calls is 0, but must be at least 1")

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == EXIT_CODES[error]
    shown = capsys.readouterr()
    assert shown.err == "torchwise: calls is 0, but must be at least 1\n"
    assert shown.out == ""


def test_an_interruption_is_130_and_says_that_what_is_done_is_kept(monkeypatch, capsys) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupt)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 130
    assert "finished trials are kept" in capsys.readouterr().err


def test_an_unforeseen_error_is_not_dressed_up_as_one_of_ours(monkeypatch) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main()
