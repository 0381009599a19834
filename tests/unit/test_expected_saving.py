"""The saving to expect of modules that are not tuned yet comes from the models tuned on this machine."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from builders import a_study
from torchwise import environment
from torchwise.cli import app
from torchwise.plan import EAGER
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Interval
from torchwise.records.recording import RecordedModule, Recording
from torchwise.report.recording import recording_document
from torchwise.report.terminal import render_terminal
from torchwise.runtime.program.decisions import find_expected_speedup
from torchwise.store import open_storage

HERE = environment.detect("cpu")
RECORDING = Recording("p.py", 10.0, (RecordedModule("Net", "module", 100, 8.0),))


def fill(url: str, *speedups: float, target: str = "my:model{}", here: environment.Environment = HERE) -> None:
    """Store a decision for a model of its own for each speed-up, 1 for those that stay with eager."""
    with open_storage(url) as storage:
        for number, speedup in enumerate(speedups):
            study = a_study(workload=WorkloadSpec(target.format(number)))
            assert study.decision is not None
            changes = (
                {"plan": EAGER, "speedup": None} if speedup == 1 else {"speedup": Interval(speedup, speedup, speedup)}
            )
            decision = replace(study.decision, environment=here, workload=study.workload, **changes)
            alone = replace(study.inspection, identity=f"{target} {number}", structure=f"{target} {number}")
            storage.import_study(replace(study, environment=here, inspection=alone, decision=decision))


def write_out(recording: Recording) -> str:
    """Return the report of a recording, with single spaces."""
    file = io.StringIO()
    Console(file=file, width=160).print(render_terminal(recording_document(recording)))
    return " ".join(file.getvalue().split())


def test_it_is_the_mean_over_models_of_this_machine_eager_included(tmp_path: Path) -> None:
    url = str(tmp_path / "s.db")
    assert find_expected_speedup(HERE.hardware, url) is None, "there is no store"
    fill(url, 4.0, 2.0)
    assert find_expected_speedup(HERE.hardware, url) is None, "of two models nothing follows"
    fill(url, 9.0, 9.0, 9.0, target="theirs{}", here=replace(HERE, cpu="another"))
    fill(url, 100.0, target="my:model{}/other-sizes")
    fill(url, 1.0, target="my:other")
    assert find_expected_speedup(HERE.hardware, url) == (pytest.approx(2.0), 3)


def test_a_recording_says_where_its_expectation_comes_from() -> None:
    example = write_out(RECORDING)
    assert "saves at 1.5×" in example
    assert "1.5× is an example: too few models were tuned on this machine" in example
    found = write_out(replace(RECORDING, expected_speedup=2.0, expected_from=3))
    assert "saves at 2×" in found
    assert "4.00 s" in found, "half of the module's 8 s"
    assert "2× is the geometric mean of 3 models tuned on this machine" in found
    tuned = replace(RECORDING.modules[0], plan="eager")
    assert "geometric mean" not in write_out(replace(RECORDING, modules=(tuned,)))


def test_torchwise_run_reads_it_from_the_store(tmp_path: Path) -> None:
    url, file = str(tmp_path / "s.db"), tmp_path / "p.py"
    file.write_text("import torch\nnet = torch.nn.Linear(4, 4)\nfor _ in range(5):\n    net(torch.ones(2, 4))\n")
    for speedups, title in (((), "saves at 1.5×"), ((3.0, 3.0, 3.0, 3.0), "saves at 3×")):
        fill(url, *speedups)
        done = CliRunner().invoke(
            app, ["run", "--store", url, str(file)], catch_exceptions=False, env={"COLUMNS": "160"}
        )
        assert done.exit_code == 0
        assert title in done.stderr
