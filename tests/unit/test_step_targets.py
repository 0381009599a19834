"""Training steps as targets: in which mode, for which commands, and how they reach a worker."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise
from torchwise.errors import InputError
from torchwise.trial import Job, Limits, ProcessLauncher, inspect_workload
from torchwise.trial.job import EFFORTS
from torchwise.trial.loading import _give_main_its_names
from torchwise.workload import WorkloadSpec

TARGET = "zoo:training.carrier@small"
LIMITS = Limits(120, 8 * 2**30)


def inspected(target: str, mode: str) -> Any:
    job = Job("inspect", WorkloadSpec(target, mode=mode), effort=EFFORTS["quick"])  # type: ignore[arg-type]
    return inspect_workload(ProcessLauncher(), job, LIMITS, lambda _stage: None)


def test_a_step_is_inspected_with_what_it_works_on(tmp_path: Path) -> None:
    file = tmp_path / "steps.py"
    file.write_text(
        "import torch, torchwise\n"
        "def make():\n"
        "    model = torch.nn.Linear(8, 4)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "    step = torchwise.TrainStep(model, torch.nn.functional.cross_entropy, optimizer)\n"
        "    return step, (torch.randn(12, 8), torch.randint(0, 4, (12,)))\n"
    )
    found = inspected(f"{file}:make", "training")
    assert {"training_step", "fusable", "foreachable", "divisible_by_2", "divisible_by_4"} <= found.traits
    assert found.work.samples == 12
    assert found.work.tokens is None
    assert found.work.flops == 2 * 2 * 12 * 8 * 4  # forward, and the weight's gradient: the input needs none
    assert found.work.peak_flops > 0
    assert found.description == "Linear, 36 parameters, float32, trained by SGD"


def test_a_step_in_the_mode_for_answers_is_refused() -> None:
    with pytest.raises(InputError, match="the workload is a training step, but mode is 'inference': use mode 'train"):
        inspected(TARGET, "inference")


@pytest.mark.parametrize("look", [torchwise.explain, torchwise.bisect])
def test_what_looks_at_calls_of_a_model_refuses_a_step(look: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="looks at calls of a model: give the model that it trains"):
        look(TARGET, mode="training", device="cpu")


def test_code_of_a_script_finds_its_names_in_the_main_module() -> None:
    def uses_a_global() -> Any:
        return a_name_of_the_script  # type: ignore[name-defined]  # noqa: F821

    travelled = types.FunctionType(uses_a_global.__code__, {"a_name_of_the_script": torch, "__name__": "__main__"})
    travelled.__module__ = "__main__"
    names = vars(sys.modules["__main__"])
    try:
        _give_main_its_names()
        assert names["a_name_of_the_script"] is torch
    finally:
        names.pop("a_name_of_the_script", None)
