"""The summary of the models that people serve says where Torchwise is behind, and every target of it can be loaded."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench_samples import a_benchmark, a_row, a_spec, ours
from builders import WRONG
from torchwise.plan import EAGER
from torchwise.records import Measurement
from torchwise.records.benchmark import RowState
from torchwise.workload.target import find_factory

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("served_models")


def describe(served: ModuleType, model: str, *rows: Any, level: str = "fp32", device: str = "cpu") -> str:
    spec = a_spec(served.name_target(model, served.LEVELS[level]))
    benchmark = a_benchmark(tuple(replace(row, workload=spec) for row in rows))
    benchmark = replace(benchmark, environment=replace(benchmark.environment, device=device))
    return "\n".join(served.summarize(benchmark, level))


def test_it_names_a_model_on_which_torchwise_is_behind_the_best_other_way(served: ModuleType) -> None:
    eager, inductor = a_row("eager", 1.0), a_row("default", 1.2)
    openvino = a_row("openvino", 2.0)
    text = describe(served, "mlp", eager, inductor, openvino, ours(1.8, 0.9, rival="openvino"))
    assert "- mlp: 0.9" in text
    assert "(openvino)" in text
    assert "Torchwise over plain Inductor: 1.5" in text
    text = describe(served, "mlp", eager, inductor, openvino, ours(2.0, 1.0, rival="openvino"))
    assert "Torchwise is nowhere over 2% behind" in text
    vague = a_row("default", measurement=Measurement((0.1, 1.0, 10.0) * 4, (1.0,) * 12))
    text = describe(served, "mlp", eager, vague, ours(1.8, 0.9, rival="openvino"))
    assert "plain Inductor: no figure yet, too uncertain on 1 more" in text


def test_only_right_answers_count(served: ModuleType) -> None:
    lacking = a_row("openvino", None, state=RowState.MISSING, reason="openvino is not installed")
    text = describe(served, "mlp", a_row("eager", 1.0), a_row("default", 1.2), lacking, ours(1.3, 1.1, rival="default"))
    assert "| missing |" in text
    assert "nowhere" in text
    text = describe(served, "mlp", a_row("eager", 1.0), ours(1.0, 1.0, plan=EAGER, rival="eager"))
    assert "1.00× [1.00, 1.00] (eager)" in text
    assert "plain Inductor: no figure yet." in text


def test_the_usual_way_to_fewer_bits_counts_if_its_error_is_allowed(served: ModuleType) -> None:
    eager, own = a_row("eager", 1.0), ours(1.5, 1.5, rival="eager")
    assert "- mlp: 0.5" in describe(served, "mlp", eager, a_row("int8-dynamic", 3.0), own, level="int8")
    wrong = describe(served, "mlp", eager, a_row("int8-dynamic", 3.0, verdict=WRONG), own, level="int8")
    assert "| not right |" in wrong
    assert "nowhere" in wrong


def test_on_a_gpu_the_other_ways_are_the_modes_of_inductor(served: ModuleType) -> None:
    rows = a_row("eager", 1.0), a_row("default", 1.2), a_row("reduce-overhead", 2.5)
    text = describe(served, "mlp", *rows, ours(2.0, 0.8, rival="reduce-overhead"), level="fp8", device="cuda")
    assert "NVIDIA H200, " in text
    assert "| default | reduce-overhead | max-autotune | torchwise | plan |" in text
    assert "- mlp: 0.8" in text


def test_every_target_of_the_file_exists_in_both_numbers(served: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BENCHMARKS.parent)
    for model in {*served.MODELS, *served.ON_GPUS} - set(served.HF):
        for level in served.LEVELS.values():
            assert callable(find_factory(served.name_target(model, level)))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_run_continues_its_file_and_leaves_out_unknown_contenders(
    device: str,
    served: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    level = served.Level(True, "same-precision", dict.fromkeys(("cpu", "cuda"), ("unheard-of",)))
    monkeypatch.setitem(served.LEVELS, "bf16", level)
    options = argparse.Namespace(
        models=["mlp", "gpt2_decode"], budget=9.0, effort="quick", tolerance=0.1, device=device
    )
    served.run("bf16", tmp_path / "a.json", options, time.monotonic() + 50)
    assert "no contender unheard-of" in capsys.readouterr().out
    assert [command[4] for command in commands] == [
        f"{served.FILE}:mlp_bf16",
        "hf:gpt2@decode,length=128,dtype=bfloat16",
    ]
    for command in commands:
        assert command[command.index("--resume") + 1] == str(tmp_path / "a.json")
        assert command[command.index("--contenders") + 1] == "eager,torchwise"
        assert command[command.index("--device") + 1] == device
    served.run("bf16", tmp_path / "a.json", options, time.monotonic() - 1)
    assert len(commands) == 2, "no row starts after the end"
    options.models = None
    served.run("bf16", tmp_path / "a.json", options, time.monotonic() + 50)
    ran = [command[4] for command in commands[2:]]
    assert len(ran) == len(served.MODELS) + (device == "cuda")
    assert (f"{served.FILE}:feed_forward_bf16" in ran) == (device == "cuda")
