"""Properties that the user requires: plans without them are refused by evidence, and the decision says their price."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lock_samples import Worker, a_study, make_measurement
from sketches import HERE, INDUCTOR, PASSED, a_history, a_trial, an_inspection
from step_samples import a_step, make_step_workload

import torchwise
from brief import BRIEF
from live_decisions import make_decision
from torchwise.errors import InputError, WorkloadError
from torchwise.plan import EAGER, Plan, PlanSpace
from torchwise.plan.requirements import Property
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Check,
    CheckName,
    Costs,
    Failure,
    FailureKind,
    Interval,
    Outcome,
    Trial,
    TrialState,
    Verdict,
    codec,
)
from torchwise.records.candidates import verdict_word
from torchwise.records.reasons import own_fault
from torchwise.records.trial import with_repeat
from torchwise.report.facts import command_line, options
from torchwise.runtime.components.config import CompileConfig
from torchwise.runtime.components.find import apply_if_faster, permits
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.study.cluster.manifest import Task
from torchwise.study.decision import decide
from torchwise.study.history import has_ended_early
from torchwise.study.lock.entry import entry_in, entry_of, section_of
from torchwise.study.request import check_requirements
from torchwise.study.samplers import StagedSampler
from torchwise.trial import Job, Limits, measure_again, try_plan
from torchwise.trial.experiment import attempt
from torchwise.trial.job import Attempt, Restart
from torchwise.trial.required_properties import check_original, run_step
from torchwise.verify.step_runner import StepRunner
from torchwise.workload import Example, Workload

NOT_BITWISE = Check(CheckName.BITWISE, Outcome.FAIL, "output differs in 3 of 8 elements")
LACKS = Verdict((*PASSED.checks, NOT_BITWISE))
FASTER = Plan(backend="inductor", mode="max-autotune")


def make_lacking(plan: Plan, speedup: float, **changes: Any) -> Trial:
    return a_trial(plan, speedup, verdict=LACKS, cold_s=1.0, **changes)


# ---- in the request


def test_a_requirement_is_part_of_the_identity_of_a_study() -> None:
    specs = [WorkloadSpec("a:b", require=names) for names in ((), ("bitwise",), ("deterministic", "bitwise"))]  # type: ignore[arg-type]
    assert len({Job("inspect", spec).identity_of("1d" * 8) for spec in specs}) == 3
    same = WorkloadSpec("a:b", require=("bitwise", "deterministic", "bitwise"))  # type: ignore[arg-type]
    assert same.list_rules() == specs[2].list_rules() == ["require deterministic bitwise"]
    assert codec.from_json(codec.to_json(same), WorkloadSpec) == specs[2]


def test_what_no_plan_could_have_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"require is 'bit-wise', but must be one of .*did you mean bitwise"):
        WorkloadSpec("a:b", require=("bit-wise",))  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="batch-invariant with mode 'training', but gradients are sums"):
        WorkloadSpec("a:b", mode="training", require=(Property.BATCH_INVARIANT,))
    lone = Check(CheckName.BATCH_INVARIANT, Outcome.NOT_COMPARABLE, "output is of shape ()")
    with pytest.raises(InputError, match=r"require is batch-invariant, but .* cannot be told: output is of shape \(\)"):
        check_requirements(an_inspection(properties=(lone,)))
    check_requirements(an_inspection(properties=(NOT_BITWISE,)))


def test_a_requirement_is_in_commands_lock_files_and_manifests() -> None:
    spec = WorkloadSpec("app.py:make", require=(Property.DETERMINISTIC, Property.BITWISE))
    assert command_line("tune", spec).endswith("--device cpu --require deterministic --require bitwise")
    assert options(spec)["require"] == ("deterministic", "bitwise")
    task = Task("zoo:any", "cpu", require=("bitwise", "deterministic"))
    assert task.request().workload.require == spec.require
    assert {"--require=bitwise", "--require=deterministic"} <= set(task.arguments())
    entry = entry_of(a_study("app.py:make", require=spec.require))
    section = section_of(entry)
    assert section["require"] == ["deterministic", "bitwise"]
    assert entry_in(entry.key, section).decision.workload.require == spec.require
    assert "require" not in section_of(entry_of(a_study("app.py:make")))


# ---- of the original model


def draw_in_python(x: torch.Tensor) -> torch.Tensor:
    return x + random.random() * 1e-6


@pytest.mark.parametrize(
    ("call", "lacks"),
    [
        (torch.relu, []),
        (draw_in_python, ["deterministic", "bitwise"]),
        (lambda x: x - x.mean(), ["batch-invariant"]),
    ],
)
def test_the_original_model_is_judged_first(call: Callable[..., Any], lacks: list[str]) -> None:
    spec = WorkloadSpec("a:b", require=tuple(Property))
    workload = Workload(call, (Example((torch.randn(4, 3),)),))
    checks = check_original(spec, workload)
    assert [check.name.value for check in checks] == [each.value for each in Property]
    assert [check.name.value for check in checks if check.outcome is Outcome.FAIL] == lacks


def test_a_training_step_is_judged_by_loss_gradients_and_parameters() -> None:
    workload = make_step_workload(a_step())
    spec = WorkloadSpec("a:b", mode="training", require=(Property.DETERMINISTIC, Property.BITWISE))
    assert [check.outcome for check in check_original(spec, workload)] == [Outcome.PASS, Outcome.PASS]
    assert check_original(replace(spec, require=()), workload) == ()


def test_a_step_is_judged_at_a_scale_at_which_no_step_is_skipped() -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 1e3 * torch.nn.functional.cross_entropy(output, target)

    step = a_step(scaler=torch.amp.GradScaler("cpu", init_scale=2.0**127), loss=loss)
    workload = make_step_workload(step)
    runner = StepRunner(step)
    before = dict(runner.list_parameters())["enter.weight"].detach().clone()
    leaves = dict(run_step(runner, workload.examples)(workload.examples[0], 0).leaves)
    assert leaves["gradient of enter.weight"].isfinite().all()
    assert not torch.equal(leaves["enter.weight after the step"], before)


# ---- of a plan

TARGET = """
import torch
def model(x):
    return (x * 1.5).exp().sum(-1)
def make():
    return model, (torch.linspace(-1, 1, 40).view(4, 10),)
"""


def reverse(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the model with the sum in another order."""
    return lambda x: call(x.flip(-1))


def vary(call: Callable[..., Any]) -> Callable[..., Any]:
    count: list[int] = []

    def answer(x: torch.Tensor) -> torch.Tensor:
        count.append(1)
        return torch.nextafter(call(x), torch.tensor(torch.inf)) if len(count) % 3 == 0 else call(x)

    return answer


def depend_on_size(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x: call(x) if len(x) == 4 else call(x.flip(-1))


@pytest.mark.parametrize(
    ("compile_with", "require", "lacks"),
    [
        (lambda call: call, tuple(Property), ""),
        (reverse, ("deterministic",), ""),
        (reverse, ("bitwise",), "bitwise"),
        (vary, ("deterministic",), "deterministic"),
        (reverse, ("batch-invariant",), "batch-invariant"),  # other sizes are left to the original model
    ],
)
def test_a_right_plan_without_a_required_property_is_refused_and_timed(
    compile_with: Callable[..., Any], require: tuple[str, ...], lacks: str, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(TARGET)
    spec = WorkloadSpec(f"{tmp_path / 'app.py'}:make", require=require)  # type: ignore[arg-type]
    job = Job("try", spec, INDUCTOR, effort=replace(BRIEF, rounds=5))
    found = attempt(job, lambda _: None, lambda call, _plan: compile_with(call))
    assert found.measurement is not None, found.verdict.reason
    assert found.verdict.lacks_property_alone is bool(lacks), found.verdict.reason
    assert found.verdict.outcome is (Outcome.FAIL if lacks else Outcome.PASS)
    assert found.verdict.reason.startswith(lacks)
    assert bool(found.digest) is ("deterministic" in require)


def test_sizes_say_what_answers_other_batches(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(TARGET)
    outcomes = {}
    for sizes in ("as-given", "varying", "fixed"):
        target = f"{tmp_path / 'app.py'}:make"
        spec = WorkloadSpec(target, sizes=sizes, require=(Property.BATCH_INVARIANT,))  # type: ignore[arg-type]
        job = Job("try", spec, INDUCTOR, effort=replace(BRIEF, rounds=5))
        verdict = attempt(job, lambda _: None, lambda call, _plan: depend_on_size(call)).verdict
        outcomes[sizes] = verdict.outcome
    assert outcomes == {"as-given": Outcome.PASS, "varying": Outcome.FAIL, "fixed": Outcome.PASS}


class TwoProcesses(Worker):
    """Answers a try and a restart from a table."""

    def __init__(self, *answers: Attempt | Restart | Failure) -> None:
        super().__init__()
        self.answers = list(answers)

    def run(self, job: Job, limits: Limits, on_stage: object) -> str | Failure:  # type: ignore[override]
        self.ran.append(job)
        answer = self.answers.pop(0)
        return answer if isinstance(answer, Failure) else codec.to_json(answer)


@pytest.mark.parametrize(("digest", "is_verified"), [("a", True), ("b", False)])
@pytest.mark.parametrize("speedup", [2.0, 0.9])
def test_bits_of_a_second_process_count(digest: str, is_verified: bool, speedup: float) -> None:
    timed = make_measurement(speedup)
    worker = TwoProcesses(Attempt(Costs(1.0), PASSED, timed, digest="a"), Restart(0.5, timed, digest))
    spec = WorkloadSpec("a:b", require=(Property.DETERMINISTIC,))
    trial = Trial(0, Plan(threads=1), TrialState.RUNNING)
    ask = functools.partial(try_plan, starts_again=lambda _: False)
    found = ask(worker, Job("try", spec), trial, Limits(9.0, 2**30), lambda _: None)  # type: ignore[arg-type]
    assert (worker.tasks, found.state) == (["try", "warm"], TrialState.COMPLETE)
    assert found.is_verified is is_verified
    if not is_verified:
        assert "lacks a required property: deterministic: another process gives other bits" in found.reason
        assert found.verdict is not None
        assert found.verdict.lacks_property_alone
    assert verdict_word(found.verdict) == ("passed" if is_verified else "not deterministic")


def test_a_plan_whose_second_process_the_budget_ended_is_not_shown_to_be_deterministic() -> None:
    ended = Failure(FailureKind.OUT_OF_BUDGET, "warm compile", "no time is left")
    worker = TwoProcesses(Attempt(Costs(1.0), PASSED, make_measurement(2.0), digest="a"), ended)
    spec = WorkloadSpec("a:b", require=(Property.DETERMINISTIC,))
    trial = Trial(0, INDUCTOR, TrialState.RUNNING)
    found = try_plan(worker, Job("try", spec), trial, Limits(9.0, 2**30), lambda _: None)  # type: ignore[arg-type]
    assert (found.state, found.is_verified) == (TrialState.FAIL, False)
    assert "in a second process" in found.reason
    assert has_ended_early(found, None, 60.0, 1), "another search tries it again"
    assert decide(a_history(found, require=("deterministic",), calls=1000), HERE).plan == EAGER


@pytest.mark.parametrize(("digest", "is_equal"), [("a", True), ("b", False)])
def test_bits_of_each_further_process_count(digest: str, is_equal: bool) -> None:
    timed = make_measurement(2.0)
    spec = WorkloadSpec("a:b", require=(Property.DETERMINISTIC,))
    ask = functools.partial(measure_again, job=Job("warm", spec), limits=Limits(9.0, 2**30), on_stage=lambda _: None)
    found = ask(TwoProcesses(Restart(0.5, timed, digest)), digest="a")  # type: ignore[arg-type]
    trial = with_repeat(a_trial(INDUCTOR, 2.0), found if isinstance(found, Failure) else found.measurement)
    assert trial.is_verified is is_equal
    if not is_equal:
        assert "the plan is not deterministic: another process gives other bits" in trial.reason


# ---- in the decision


def test_the_price_is_that_of_the_best_plan_without_the_property() -> None:
    asked: dict[str, Any] = {"require": ("bitwise",), "calls": 1000}
    chosen, faster, fastest = a_trial(INDUCTOR, 1.5, cold_s=1.0), make_lacking(FASTER, 2.0), make_lacking(EAGER, 9.0)
    wrong = replace(fastest, plan=Plan(backend="inductor", mode="reduce-overhead"), verdict=Verdict(()))
    decision = decide(a_history(chosen, faster, wrong, **asked), HERE)
    assert decision.plan == INDUCTOR
    price = decision.price
    assert price is not None
    assert (price.plan, price.lacks) == (FASTER, ("bitwise",))
    assert price.ratio.mid == pytest.approx(2.0 / 1.5)
    assert price.seconds == pytest.approx(1000 * (1 / 1.5 - 1 / 2.0))
    assert f"The requirement has a price: {FASTER} is right but not bitwise, and runs at 2 [" in decision.reason
    assert codec.from_json(codec.to_json(decision), type(decision)) == decision


def test_a_price_against_eager_or_none_at_all() -> None:
    asked: dict[str, Any] = {"require": ("bitwise",), "calls": 1000}
    stays = decide(a_history(make_lacking(FASTER, 2.0), **asked), HERE)
    assert stays.plan == EAGER
    assert stays.price is not None
    assert stays.price.ratio.mid == pytest.approx(2.0)
    assert "would save about" in stays.reason
    free = decide(a_history(a_trial(INDUCTOR, 1.5, cold_s=1.0), make_lacking(FASTER, 1.4), **asked), HERE)
    assert (free.plan, free.price) == (INDUCTOR, None)
    assert "To require bitwise costs nothing" in free.reason
    unasked = decide(a_history(a_trial(INDUCTOR, 1.5, cold_s=1.0), calls=1000), HERE)
    assert "require" not in unasked.reason.lower()


def test_an_uncertain_price_is_inconclusive() -> None:
    chosen = a_trial(INDUCTOR, 1.5, cold_s=1.0)
    unsure = a_trial(FASTER, 1.2, 2.4, verdict=LACKS, cold_s=1.0)
    decision = decide(a_history(chosen, unsure, require=("bitwise",), calls=1000), HERE)
    assert "Whether the requirement costs anything is inconclusive" in decision.reason
    assert "would save about" not in decision.reason.split("inconclusive")[1]


def test_a_plan_stopped_early_has_no_price() -> None:
    stopped = make_lacking(FASTER, 2.0, measurement=make_measurement(2.0), repeats=())
    assert stopped.measurement is not None
    stopped = replace(stopped, measurement=replace(stopped.measurement, pruned=True))
    assert decide(a_history(stopped, require=("bitwise",), calls=1000), HERE).price is None


def test_if_eager_lacks_the_property_a_slower_plan_that_has_it_is_chosen() -> None:
    lack = Check(CheckName.DETERMINISTIC, Outcome.FAIL, "on input 1 output differs")
    inspection = an_inspection(properties=(lack,))
    asked: dict[str, Any] = {"inspection": inspection, "require": ("deterministic",), "calls": 1000}
    slower = decide(a_history(a_trial(INDUCTOR, 0.8, cold_s=1.0), **asked), HERE)
    assert slower.plan == INDUCTOR
    assert "Eager is not deterministic (on input 1 output differs)" in slower.reason
    none = decide(a_history(make_lacking(INDUCTOR, 2.0), **asked), HERE)
    assert none.plan == EAGER
    assert "Stay with eager, which is itself not deterministic" in none.reason


LACK = Check(CheckName.DETERMINISTIC, Outcome.FAIL, "on input 1 output differs")


def test_eager_without_the_property_is_the_price_of_a_slower_plan() -> None:
    inspection = an_inspection(properties=(LACK,))
    asked: dict[str, Any] = {"inspection": inspection, "require": ("deterministic",), "calls": 1000}
    slower = decide(a_history(a_trial(INDUCTOR, 0.8, cold_s=1.0), **asked), HERE)
    assert slower.price is not None
    assert (slower.price.plan, slower.price.lacks) == (EAGER, ("deterministic",))
    assert slower.price.ratio.mid == pytest.approx(1 / 0.8)
    assert "eager is right but not deterministic, and runs at 1.25 [" in slower.reason
    faster = decide(a_history(a_trial(INDUCTOR, 1.5, cold_s=1.0), **asked), HERE)
    assert faster.price is None
    none = decide(a_history(make_lacking(INDUCTOR, 0.9), **asked), HERE)
    for decision in (slower, faster, none):
        assert "costs nothing" not in decision.reason


def test_a_price_contradicts_no_reason() -> None:
    stays = decide(a_history(make_lacking(FASTER, 2.0), require=("bitwise",), calls=1000), HERE)
    assert "no plan that has the required properties was surely faster. The requirement has a price" in stays.reason
    heavy = decide(a_history(make_lacking(FASTER, 0.9), require=("bitwise",), objective="memory", calls=1000), HERE)
    assert "costs nothing" not in heavy.reason


def test_a_plan_that_is_slower_than_eager_answers_if_eager_lacks_the_property() -> None:
    model = torch.nn.ReLU()
    config = CompileConfig.of("production", minimum_speedup=1.0)
    for require, reason in (((), FallbackReason.NOT_FAST_ENOUGH), ((Property.DETERMINISTIC,), None)):
        decision = make_decision(model, Plan(threads=1), torch.ones(2))
        spec = replace(decision.workload, require=require)
        decision = replace(decision, workload=spec, speedup=Interval(0.7, 0.8, 0.9))
        found = apply_if_faster(model, decision, config)
        assert (found.fallback.reason if found.fallback else None) is reason
        assert permits(config, found) is (reason is None or found.served is None)


def test_a_plan_is_sought_for_its_property_even_where_time_could_not_pay() -> None:
    lacks = {"inspection": an_inspection(properties=(LACK,)), "require": ("deterministic",)}
    sampler = StagedSampler(PlanSpace("cpu", "inference", frozenset({"module", "gemm"})))
    few, needed = (sampler.list_worthwhile(a_history(calls=30, **asked)) for asked in ({}, lacks))
    assert (INDUCTOR in few, INDUCTOR in needed) == (False, True)


def test_the_table_says_what_a_refused_plan_lacks() -> None:
    trial = make_lacking(FASTER, 2.0)
    assert own_fault(trial).startswith("right, at 2.00× [")
    assert "lacks a required property: bitwise: output differs in 3 of 8 elements" in own_fault(trial)
    assert not trial.is_verified
    wrong = Verdict((Check("values", Outcome.FAIL, "off"), NOT_BITWISE))
    assert not wrong.lacks_property_alone
    assert not PASSED.lacks_property_alone


@pytest.mark.usefixtures("brief_searches")
def test_a_search_proves_that_bits_are_equal_in_two_processes(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU())
    tune = functools.partial(torchwise.tune, model, (torch.randn(4, 16),), plans=[Plan(threads=1)], progress=False)
    asked: dict[str, Any] = {"effort": "quick", "store": str(tmp_path / "studies.db")}
    study = tune(require=["bitwise", "deterministic"], **asked).record
    (trial,) = study.trials
    assert trial.verdict is not None
    names = [check.name for check in trial.verdict.checks if check.outcome is Outcome.PASS]
    assert names[-3:] == ["deterministic", "bitwise", "deterministic"], trial.reason
    assert [check.outcome for check in study.inspection.properties] == [Outcome.PASS, Outcome.PASS]
