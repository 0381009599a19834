"""Every command that measures writes its findings as JSON of its own schema, whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import torchwise.bench
import torchwise.diagnose.analyze
import torchwise.diagnose.bisect
import torchwise.diagnose.explain
import torchwise.study
from analysis_samples import an_analysis
from bench_samples import a_benchmark
from builders import a_study
from explain_samples import explanation
from torchwise.cli import app as main_app
from torchwise.cli.analyze import analyze
from torchwise.cli.bench import bench
from torchwise.cli.bisect import bisect
from torchwise.cli.explain import explain
from torchwise.cli.tune import tune
from torchwise.errors import InputError
from torchwise.records.bisection import Bisection, Observation, Symptom

TARGET = "zoo:tutorial.fusion_demo"


def a_bisection() -> Bisection:
    return Bisection(explanation().workload, explanation().environment, Observation(Symptom.NONE))


COMMANDS: dict[str, tuple[Callable[..., None], Any, str, Callable[[], Any]]] = {
    "torchwise.study/1": (tune, torchwise.study, "run_study", a_study),
    "torchwise.explanation/1": (explain, torchwise.diagnose.explain, "explain", explanation),
    "torchwise.analysis/1": (analyze, torchwise.diagnose.analyze, "run_analysis", an_analysis),
    "torchwise.bisection/1": (bisect, torchwise.diagnose.bisect, "run_bisection", a_bisection),
    "torchwise.bench/1": (bench, torchwise.bench, "run_benchmark", a_benchmark),
}
"""By schema: the command, the function that does its work, and an answer in place of that."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str], Any]:
    """Run the command of a schema, with an answer in place of its work, and its files in `tmp_path`."""

    def run(schema: str, file: str) -> Any:
        command, module, name, answer = COMMANDS[schema]
        monkeypatch.setattr(module, name, lambda *_args, **_options: answer())
        monkeypatch.chdir(tmp_path)
        app = typer.Typer(pretty_exceptions_enable=False)
        app.command()(command)
        store = ("--store", "studies.db") if command is tune else ()
        result = CliRunner().invoke(app, [TARGET, "--device", "cpu", "--json", file, *store])
        assert result.exit_code == 0, (result.output, result.exception)
        return result

    return run


@pytest.mark.parametrize("schema", COMMANDS)
def test_a_command_writes_its_schema(schema: str, tmp_path: Path, ran: Callable[[str, str], Any]) -> None:
    ran(schema, "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["schema"] == schema


@pytest.mark.parametrize("schema", COMMANDS)
def test_a_dash_is_standard_output_and_all_else_goes_to_standard_error(
    schema: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], ran: Callable[[str, str], Any]
) -> None:
    result = ran(schema, "-")
    assert json.loads(capfd.readouterr().out)["schema"] == schema  # the descriptor itself
    assert result.stdout == ""
    assert result.stderr
    assert not (tmp_path / "-").exists()


def test_what_was_in_standard_output_stays_and_a_reader_that_has_enough_is_no_error(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torchwise.cli", "zoo", "--json", "-"]
    with (tmp_path / "log").open("a") as log:
        log.write("before\n")
        log.flush()
        subprocess.run(words, stdout=log, stderr=subprocess.DEVNULL, check=True)
    before, _, rest = (tmp_path / "log").read_text().partition("\n")
    assert (before, json.loads(rest)["schema"]) == ("before", "torchwise.zoo/1")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert "Broken pipe" not in process.stderr.read()
    assert process.returncode == 1


def test_a_dash_is_for_json_alone() -> None:
    result = CliRunner().invoke(main_app, ["report", "1", "--html", "-"])
    assert (type(result.exception), str(result.exception)) == (
        InputError,
        "- cannot be written: only --json can use standard output; give a file",
    )


def test_a_memory_limit_is_given_in_gibibytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torchwise.study, "run_study", lambda request, *_others: asked.append(request) or a_study())
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(tune)
    for limit in ((), ("--memory-limit", "1.5")):
        words = [TARGET, "--device", "cpu", "--store", str(tmp_path / "studies.db"), *limit]
        assert CliRunner().invoke(app, words).exit_code == 0
    assert [request.workload.memory_limit for request in asked] == [None, 3 * 2**29]
    for limit in ("-1", "0", "1e-12", "nan", "inf"):
        done = CliRunner().invoke(app, [TARGET, "--device", "cpu", "--memory-limit", limit])
        expected = f"memory limit is {limit!r}, but must be a finite size of at least one byte, such as 2GB or 2GiB"
        assert (type(done.exception), str(done.exception)) == (InputError, expected)
