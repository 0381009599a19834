"""Every command that measures writes what it found as JSON of its own schema, whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import torchwise.bench
import torchwise.diagnose.analysis.run
import torchwise.diagnose.bisect
import torchwise.diagnose.explain
import torchwise.study
from analysis_samples import an_analysis
from bench_samples import a_benchmark
from builders import a_study
from explain_samples import explanation
from torchwise.cli.analyze import analyze
from torchwise.cli.bench import bench
from torchwise.cli.bisect import bisect
from torchwise.cli.explain import explain
from torchwise.cli.tune import tune
from torchwise.errors import InputError
from torchwise.records.bisection import Bisection, Sighting, Symptom

TARGET = "zoo:tutorial.fusion_demo"


def a_bisection() -> Bisection:
    return Bisection(explanation().workload, explanation().environment, Sighting(Symptom.NONE))


COMMANDS: dict[str, tuple[Callable[..., None], Any, str, Callable[[], Any]]] = {
    "torchwise.study/1": (tune, torchwise.study, "run_study", a_study),
    "torchwise.explanation/1": (explain, torchwise.diagnose.explain, "explain", explanation),
    "torchwise.analysis/1": (analyze, torchwise.diagnose.analysis.run, "run_analysis", an_analysis),
    "torchwise.bisection/1": (bisect, torchwise.diagnose.bisect, "run_bisection", a_bisection),
    "torchwise.bench/1": (bench, torchwise.bench, "run_benchmark", a_benchmark),
}
"""By schema: the command, what does its work, and an answer in place of that."""


@pytest.mark.parametrize("schema", COMMANDS)
def test_a_command_writes_its_schema(schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, module, name, answer = COMMANDS[schema]
    monkeypatch.setattr(module, name, lambda *_args, **_options: answer())
    monkeypatch.chdir(tmp_path)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    store = ("--store", "studies.db") if command is tune else ()
    result = CliRunner().invoke(app, [TARGET, "--device", "cpu", "--json", "found.json", *store])
    assert result.exit_code == 0, (result.output, result.exception)
    assert json.loads((tmp_path / "found.json").read_text())["schema"] == schema


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
        expected = f"memory limit is {limit} GiB, but must be a finite size of at least one byte"
        assert (type(done.exception), str(done.exception)) == (InputError, expected)
