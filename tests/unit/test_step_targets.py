"""Training steps as targets: their modes, the commands that take them, and how they reach a worker."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise
from brief import BRIEF
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Outcome, Trial, TrialState
from torchwise.trial import Job, Limits, ProcessLauncher, hold_duel, inspect_workload, try_plan
from torchwise.trial.loading import load, save, with_optimizer_state

TARGET = "zoo:training.carrier@small"
LIMITS = Limits(120, 8 * 2**30)


def inspect_target(target: str, mode: str) -> Any:
    job = Job("inspect", WorkloadSpec(target, mode=mode), effort=EFFORTS["quick"])  # type: ignore[arg-type]
    return inspect_workload(ProcessLauncher(), job, LIMITS, lambda _stage: None)


@pytest.mark.parametrize(
    ("loss", "labels", "is_cut"),
    [("mse_loss", "torch.randn(12, 4)", True), ("cross_entropy", "torch.randint(0, 4, (12,))", False)],
    ids=["a mean over all", "a mean over the labels that count"],
)
def test_a_step_is_inspected_with_what_it_works_on(tmp_path: Path, loss: str, labels: str, is_cut: bool) -> None:
    file = tmp_path / "steps.py"
    file.write_text(
        "import torch, torchwise\n"
        "def make():\n"
        "    model = torch.nn.Linear(8, 4)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        f"    step = torchwise.TrainStep(model, torch.nn.functional.{loss}, optimizer)\n"
        f"    return step, (torch.randn(12, 8), {labels})\n"
    )
    found = inspect_target(f"{file}:make", "training")
    assert {"training_step", "fusable", "foreachable"} <= found.traits
    assert ({"divisible_by_2", "divisible_by_4"} <= found.traits) is is_cut, "-100 in the next batch weighs nothing"
    assert any("divisible" in trait for trait in found.traits) is is_cut
    assert found.work.samples == 12
    assert found.work.tokens is None
    assert found.work.flops == 2 * 2 * 12 * 8 * 4  # forward, and the weight's gradient: the input needs none
    assert found.work.peak_flops > 0
    assert found.description == "Linear, 36 parameters, float32, trained by SGD"


def test_a_search_hears_where_the_loss_went(tmp_path: Path) -> None:
    heard: list[str] = []
    job = Job("try", WorkloadSpec(TARGET, mode="training"), effort=BRIEF)
    trial = Trial(0, Plan(optimizer="foreach"), TrialState.RUNNING)
    done = try_plan(ProcessLauncher(), job, trial, LIMITS, heard.append)
    assert done.verdict is not None
    assert done.verdict.outcome is Outcome.PASS, done.reason
    assert any(stage.startswith("verify: the loss goes from ") for stage in heard), heard


def test_two_plans_of_a_step_are_timed_beside_each_other() -> None:
    """A batch cut in four takes about four times as long."""
    job = Job("try", WorkloadSpec(TARGET, mode="training"), Plan(optimizer="foreach"), effort=BRIEF)
    found = hold_duel(ProcessLauncher(), job, Plan(microbatches=4), LIMITS, lambda _stage: None)
    assert found.measurement is not None, found.failure
    assert found.measurement.speedup.mid > 1.3, "a busy machine widens the interval"


def test_where_the_scaler_skips_the_first_steps_the_optimizer_has_its_state_all_the_same() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    step = torchwise.TrainStep(model, torch.nn.functional.mse_loss, optimizer, scaler=scaler)
    batch = (100 * torch.randn(8, 4), torch.randn(8, 1))
    skipped = step.copy()
    skipped(*batch)
    assert not skipped.optimizer.state
    assert with_optimizer_state(torchwise.Workload(step, (torchwise.Example(batch),))).step is step
    assert len(optimizer.state) == 2


def test_a_step_in_the_mode_for_answers_is_refused() -> None:
    with pytest.raises(InputError, match="the workload is a training step, but mode is 'inference': use mode 'train"):
        inspect_target(TARGET, "inference")


@pytest.mark.parametrize("look", [torchwise.explain, torchwise.bisect])
def test_what_looks_at_calls_of_a_model_refuses_a_step(look: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="needs calls of a model: give the model that it trains"):
        look(TARGET, mode="training", device="cpu")


def test_code_of_a_script_finds_its_names_in_the_main_module(tmp_path: Path) -> None:
    def uses_a_global(x: torch.Tensor) -> Any:
        return a_name_of_the_script(x)  # type: ignore[name-defined]  # noqa: F821

    code, given = uses_a_global.__code__, {"a_name_of_the_script": torch.sin, "__name__": "__main__"}
    of_the_script = types.FunctionType(code, given)
    of_the_script.__module__ = "__main__"
    names = vars(sys.modules["__main__"])
    try:
        save(torchwise.Workload(of_the_script, (torchwise.Example((torch.ones(1),)),)), str(tmp_path / "model.pt"))
        load(Job("inspect", WorkloadSpec("live:script"), source=str(tmp_path / "model.pt")))
        assert names["a_name_of_the_script"] is torch.sin
    finally:
        names.pop("a_name_of_the_script", None)
