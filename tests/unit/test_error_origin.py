"""Every valid program is examined, and an error of ours is never put down to the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from torchwise.compile.transforms import isolate_rnn
from torchwise.errors import BaselineError, InputError, InternalError, WorkloadError
from torchwise.plan import CHOICES, EAGER, Choice, Numerics, Trait
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind, Inspection
from torchwise.records.trial import WorkerStage
from torchwise.runtime.bucketing import padding_check
from torchwise.runtime.bucketing.padding import Padding
from torchwise.trial import Limits, error_origin, experiment, inspect_workload, inspection, step_inspection
from torchwise.trial.experiment import Experiment, PlanCandidate
from torchwise.trial.inspection import inspect
from torchwise.trial.job import Job
from torchwise.trial.plain_call import run_plainly
from torchwise.trial.step_inspection import flops_of
from torchwise.verify import spot_check
from torchwise.workload import Workload, target

TARGETS = Path(__file__).parent.parent / "targets" / "valid_programs.py"
BRIEF = replace(EFFORTS["standard"], half_width=0.5, measure_s=0.02, extra_draws=1, noise_s=0.1)

GRADIENTS = ["forces", "penalty", "functional", "equilibrium", "adjoint", "use_checkpoint", "reentrant"]
LEFT = ["old_weight_norm", "old_spectral_norm", "new_spectral_norm", "store_loss", "activation_hook"]
LEFT += ["activation_closure", "patch_forward", "add_locks", "sparse", "twice"]


@pytest.fixture(autouse=True)
def _no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_inspection, "matrix_rate", lambda *_: 1e9)


def load_workload(factory: str) -> Workload:
    return target.load(f"{TARGETS}:{factory}", device="cpu")


def job(factory: str, mode: str = "training", **how: Any) -> Job:
    return Job("inspect", WorkloadSpec(f"{TARGETS}:{factory}", mode=mode, device="cpu"), effort=BRIEF, **how)  # type: ignore[arg-type]


def inspect_target(factory: str, mode: str = "training") -> Inspection:
    return inspect(job(factory, mode), lambda _stage: None)


@pytest.mark.parametrize("factory", GRADIENTS)
def test_the_flops_of_a_step_that_takes_gradients_within_are_counted(factory: str) -> None:
    workload = load_workload(factory)
    example = workload.examples[0]
    assert flops_of(lambda: workload.call(*example.args)) > 0


def test_they_are_what_pytorch_counts() -> None:
    workload = load_workload("use_checkpoint")
    example = workload.examples[0]
    with FlopCounterMode(display=False) as counter:
        workload.call(*example.args)
    assert flops_of(lambda: workload.call(*example.args)) == counter.get_total_flops()


@pytest.mark.parametrize("factory", GRADIENTS + LEFT)
def test_a_copy_of_a_step_goes_on_as_the_step_does(factory: str) -> None:
    workload = load_workload(factory)
    step, batch = workload.step, workload.examples[0].args
    assert step is not None
    step(*batch)
    copied = step.copy()
    theirs = [copied(*batch) for _ in range(2)]
    assert [step(*batch) for _ in range(2)] == theirs
    parts = zip(step.modules().values(), copied.modules().values(), strict=True)
    ours = {p.data_ptr() for one, _ in parts for p in one.parameters()}
    assert ours.isdisjoint(p.data_ptr() for module in copied.modules().values() for p in module.parameters())


@pytest.mark.parametrize("factory", ["forces", "store_loss", "sparse"])
def test_a_step_that_runs_is_looked_at(factory: str) -> None:
    found = inspect_target(factory)
    assert found.work is not None
    assert found.work.flops
    assert not [note for note in found.notes if "not known" in note]


@pytest.mark.parametrize("factory", ["keyless", "sparse_answer"])
def test_so_is_a_model_with_unusual_answers(factory: str) -> None:
    assert "module" in inspect_target(factory, "inference").traits


def raises(*_args: Any, **_named: Any) -> Any:
    raise RuntimeError("the instrument broke")


@pytest.mark.parametrize(
    "broken",
    [
        {
            (inspection, "_is_stochastic"): "whether it draws random numbers",
            (inspection, "find_repeated_blocks"): "whether it has repeated blocks",
            (isolate_rnn, "has_rnn"): "whether it has an nn.RNN, nn.GRU or nn.LSTM",
        },
        {
            (inspection, "prints"): "whether it prints",
            (step_inspection, "flops_of"): "how many FLOPs a step takes",
        },
    ],
    ids=["all but FLOPs", "FLOPs"],
)
def test_an_instrument_that_fails_is_left_out(
    broken: dict[tuple[Any, str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, name in broken:
        monkeypatch.setattr(place, name, raises)
    found = inspect_target("forces")
    for what in broken.values():
        note = f"{what} is not known: looking for it raised RuntimeError: the instrument broke"
        assert note in " ".join(found.notes)
    assert found.work is not None
    assert (found.work.flops is None) == ((step_inspection, "flops_of") in broken)


def test_what_the_model_raises_itself_is_its_own() -> None:
    with pytest.raises(BaselineError, match=r"the model raised RuntimeError: .*modified by an inplace operation"):
        inspect_target("break_backward")


def test_so_is_what_it_raises_where_an_instrument_looks() -> None:
    calls = iter(range(100))

    def fails_later() -> None:
        if next(calls):
            raise error_origin.make_baseline_error(ValueError("no more"), load_workload("forces").examples[0])
        raise KeyError("x")

    with pytest.raises(BaselineError, match="no more"):
        error_origin.Instruments(fails_later).use("anything", fails_later, None)


def test_a_copy_that_fails_where_the_step_does_not_is_our_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load_workload("forces")
    step = workload.step
    broken = step.copy()  # type: ignore[union-attr]
    broken.loss = raises
    monkeypatch.setattr(type(step), "copy", lambda _self: broken)
    with pytest.raises(InternalError, match="a copy of the training step fails where the step itself does not"):
        run_plainly(workload, "training")


def test_a_backward_pass_of_a_loss_that_we_made_up_is_not_the_models() -> None:
    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
            raise RuntimeError("gradients must be of the right kind")

    def model(x: torch.Tensor, *, as_loss: bool) -> Any:
        y = Refuses.apply(x.requires_grad_())  # type: ignore[no-untyped-call]
        return y.sum() if as_loss else y

    example = load_workload("forces").examples[0]
    for as_loss, error in ((False, WorkloadError), (True, BaselineError)):
        kwargs = {"as_loss": as_loss}
        workload = Workload(model, (replace(example, args=(torch.ones(3),), kwargs=kwargs),))
        with pytest.raises(error, match="gradients must be of the right kind"):
            run_plainly(workload, "training")


FAILED = Failure(FailureKind.RAISED, WorkerStage.INSPECT, "ValueError: odd")
DIED = replace(FAILED, kind=FailureKind.DIED, message="SIGSEGV")


class Answers:
    """A launcher whose workers end as told."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.tasks = list(answers), []  # type: ignore[var-annotated]

    def run(self, order: Any, _limits: Any, _on_stage: Any) -> Any:
        self.tasks.append(order.task)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "error", "tasks"),
    [
        ([FAILED], InternalError, ["inspect"]),
        ([DIED, "true"], InternalError, ["inspect", "check"]),
        ([DIED, replace(DIED, stage="run eager")], BaselineError, ["inspect", "check"]),
        ([DIED, BaselineError("the model raised")], BaselineError, ["inspect", "check"]),
        ([replace(DIED, stage="run eager")], BaselineError, ["inspect"]),
        ([InputError("no such target")], InputError, ["inspect"]),
    ],
)
def test_a_worker_that_ends_is_put_down_to_whom_it_is_due(
    answers: list[Any], error: type[Exception], tasks: list[str]
) -> None:
    launcher = Answers(*answers)
    with pytest.raises(error) as raised:
        inspect_workload(launcher, job("forces"), Limits(60, 2**33), lambda _stage: None)
    assert launcher.tasks == tasks
    assert ("and not the model" in str(raised.value)) == (error is InternalError)


def test_a_plain_run_in_a_worker_is_nothing_else() -> None:
    heard: list[str] = []
    assert error_origin.check(job("forces"), heard.append)
    assert heard == ["run eager"]
    with pytest.raises(BaselineError, match="inplace"):
        error_origin.check(job("break_backward"), heard.append)


@pytest.mark.parametrize("factory", ["forces", "keyless"])
def test_checks_that_fail_for_eager_too_are_not_the_candidates_fault(
    factory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mode = "training" if factory == "forces" else "inference"
    tried = Experiment(job(factory, mode), PlanCandidate(EAGER))
    monkeypatch.setattr(experiment, "verify", raises)
    monkeypatch.setattr(experiment, "verify_step", raises)
    refusal = "with eager in the candidate's place they raise"
    tried.build()
    with tried.harness.gradients(), pytest.raises(InternalError, match=refusal):
        tried.verify(lambda _stage: None)


def test_what_a_candidate_alone_raises_is_its_own() -> None:
    judge: Callable[[], Any] = raises
    with pytest.raises(RuntimeError, match="the instrument broke"):
        error_origin.run_checks(judge, lambda: None)


def test_a_proof_of_padding_says_whose_error_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padding_check, "observe", raises)
    with pytest.raises(InternalError, match="and not the model, on inputs of size"):
        padding_check.verify_padding(lambda x: x + 1, (torch.randn(8, 2),), buckets=(4, 8), padding=Padding({"x": 0}))


def test_outputs_that_eager_cannot_hold_either_are_not_the_candidates_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load_workload("forces").examples[0]
    monkeypatch.setattr(spot_check.pytree, "equal", raises)
    with pytest.raises(RuntimeError, match="the instrument broke"):
        spot_check.check_retained_outputs(
            torch.sin, torch.sin, *(replace(example, args=example.args[:1]) for _ in range(2))
        )


def test_a_detector_of_a_plug_in_that_cannot_be_imported_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Trait("theirs.lost")
    theirs = Choice(
        "transforms",
        "theirs",
        Numerics.EXACT,
        complexity=1,
        summary="",
        detectors=((lost, "no_such_module:find"), (Trait.MODULE, "operator:not_")),
    )
    without = inspect_target("forces")
    monkeypatch.setitem(CHOICES, theirs.key, theirs)
    found = inspect_target("forces")
    assert "No module named 'no_such_module'" in " ".join(found.notes)
    # Three traits are measured anew in each run: a busy machine may show them in one run alone.
    measured = {Trait.CONTENDED_CORES, Trait.SHORT_CALLS, Trait.ROW_REGIONS}
    assert found.traits >= without.traits - measured, "no detector takes away what another has found"
