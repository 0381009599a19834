"""The worker's side: build, verify and time a contender against eager, or two contenders against each other."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchwise.bench.contenders import Setting, load_contenders
from torchwise.bench.contenders.torchwise import check_served
from torchwise.bench.job import ContenderJob
from torchwise.compile import compile_plan
from torchwise.plan import Plan, Trait
from torchwise.records import Costs, Decision, Measurement, Outcome, Verdict, WorkerStage
from torchwise.records.benchmark import Performance
from torchwise.trial.error_origin import run_checks
from torchwise.trial.harness import Calls, Harness
from torchwise.trial.job import Restart
from torchwise.verify import StepSubject, Subject, verify, verify_step
from torchwise.verify.first_calls import FirstAnswer, very_first
from torchwise.verify.inputs import draws
from torchwise.verify.retained_outputs import check_retained_outputs
from torchwise.verify.step import check_retained_loss
from torchwise.verify.step_runner import StepRunner
from torchwise.workload import Workload, pytree
from torchwise.workload.identity import structure
from torchwise.workload.train_step import TrainStep


def contend(contender_job: ContenderJob, stage: Callable[[str], None]) -> Performance:
    """Build the contender with empty caches, verify it, alternate timings with eager, and measure its memory."""
    builder = _ContenderHarness(contender_job)
    with builder.harness.gradients():
        stage(WorkerStage.COMPILE)
        call = builder.build(contender_job.contender)
        candidate = builder.harness.runners(call)
        first = builder.keep_first_answers(candidate)
        cold = builder.built_s + builder.harness.first_calls(list(first))
        stage(WorkerStage.VERIFY)
        verdict, overwrites = builder.judge(call, first)
        stage(WorkerStage.MEASURE)
        measurement = builder.measure(candidate, builder.harness.eager)
        own, eager = builder.harness.memory(candidate)
        check_served(call)
        measurement = builder.with_cold(measurement, candidate, stage)
    costs, workload = Costs(cold, peak_memory=own, baseline_peak_memory=eager), builder.harness.workload
    return Performance(costs, verdict, measurement, overwrites, _dtype(workload), workload.roofline)


def warm(contender_job: ContenderJob, stage: Callable[[str], None]) -> Restart:
    """Build the contender from warm caches in this fresh process, and time it against eager once more."""
    builder = _ContenderHarness(contender_job)
    with builder.harness.gradients():
        stage(WorkerStage.WARM_COMPILE)
        candidate = builder.harness.runners(builder.build(contender_job.contender))
        warm_s = builder.built_s + builder.harness.first_calls(candidate)
        stage(WorkerStage.MEASURE)
        return Restart(warm_s, builder.with_cold(builder.measure(candidate, builder.harness.eager), candidate, stage))


def duel(contender_job: ContenderJob, stage: Callable[[str], None]) -> Measurement:
    """Time the contender against its rival in alternation."""
    builder = _ContenderHarness(contender_job)
    with builder.harness.gradients():
        stage(WorkerStage.COMPILE)
        sides = [
            builder.harness.runners(builder.build(name)) for name in (contender_job.contender, contender_job.rival)
        ]
        for side in sides:
            builder.harness.first_calls(side)
        stage(WorkerStage.MEASURE)
        return builder.measure(*sides)


class _ContenderHarness:
    """A harness that builds contenders by name."""

    def __init__(self, contender_job: ContenderJob) -> None:
        self._contender_job = contender_job
        self.harness = Harness(contender_job.job)
        self.built_s = 0.0
        self._step_runner: StepRunner | None = None

    def build(self, name: str) -> Callable[..., Any]:
        """Build a contender. The build time counts as part of its first call."""
        built: list[Callable[..., Any]] = []
        workload, setting = self.harness.workload, self._contender_job.setting

        def make(call: Callable[..., Any]) -> Callable[..., Any]:
            self.built_s = self.harness.once(
                lambda: built.append(load_contenders()[name].build(replace(workload, call=call), setting))
            )
            return built[-1]

        if workload.step:
            self._step_runner = StepRunner(workload.step, make)
            return self._step_runner.call
        return make(workload.call)

    def keep_first_answers(self, calls: Calls) -> list[FirstAnswer]:
        """Wrap each call to keep its first answer."""
        return [FirstAnswer(call, self._step_runner.observe_gradients if self._step_runner else None) for call in calls]

    def judge(self, call: Callable[..., Any], first: Sequence[FirstAnswer] = ()) -> tuple[Any, bool]:
        """Verify copies of the answers. A separate check finds out whether later calls overwrite them."""
        workload, job = self.harness.workload, self._contender_job.job
        if self._step_runner is not None:
            return self._judge_step(self._step_runner, first)
        eager = Subject(
            workload,
            workload.call,
            workload.call,
            stochastic=Trait.STOCHASTIC in job.traits,
            training=self.harness.mode == "training",
        )
        observed = [answer.observation for answer in first]
        options = {"extra_draws": job.effort.extra_draws, "noise_budget_s": job.effort.noise_s}
        verdict = run_checks(
            lambda: verify(replace(eager, candidate=_copy_answers(call), first=observed), **options),  # type: ignore[arg-type]
            lambda: verify(eager, **options),  # type: ignore[arg-type]
        )
        inputs = draws(workload, 1)
        retained = check_retained_outputs(call, workload.call, inputs[0], inputs[-1])
        return verdict, retained.outcome is not Outcome.PASS

    def _judge_step(self, runner: StepRunner, first: Sequence[FirstAnswer]) -> tuple[Verdict, bool]:
        job, setting, contender = (
            self._contender_job.job,
            self._contender_job.setting,
            load_contenders()[self._contender_job.contender],
        )
        workload, device = self.harness.workload, self.harness.device
        precision = Decision.from_json(setting.decision).plan.precision if setting.decision else "native"

        def eager_at_precision(step: TrainStep) -> Callable[..., Any]:
            plan = Plan(precision=precision)
            return compile_plan(step, plan, workload.examples[0], device=device, mode="training").call

        has_scaler = (
            precision == "autocast_fp16" or runner.step.scaler is not None
        )  # the scaler may skip the first step
        copied = copy.copy(runner)
        copied.call = _copy_answers(runner.call)
        subject = StepSubject(
            workload,
            copied,
            lambda step: contender.build(replace(workload, call=step), _adapt_decision(setting, step)),
            eager_at_precision if precision != "native" else None,
            precision,
            stochastic=Trait.STOCHASTIC in job.traits,
            first=None if has_scaler else very_first(first),
        )
        verdict = verify_step(subject, extra_draws=job.effort.extra_draws, noise_budget_s=job.effort.noise_s)
        return verdict, check_retained_loss(runner, draws(workload, 1)).outcome is not Outcome.PASS

    def measure(self, candidate: Calls, baseline: Calls) -> Measurement:
        """Time two sides. Timings of the device are dropped to keep the record small."""
        found = self.harness.measure(candidate, baseline)
        return replace(found, candidate_device_s=(), baseline_device_s=())

    def with_cold(self, found: Measurement, candidate: Calls, stage: Callable[[str], None]) -> Measurement:
        """Also time the candidate against eager with cold processor caches, if requested."""
        if not self._contender_job.job.cold:
            return found
        stage(WorkerStage.MEASURE_COLD)
        return self.harness.with_cold(found, candidate, self.harness.eager)


def _adapt_decision(setting: Setting, step: TrainStep) -> Setting:
    """Adapt the setting's decision to another copy of the step, which may have its dropout turned off."""
    if not setting.decision:
        return setting
    decision = replace(Decision.from_json(setting.decision), structure=structure(step))
    return replace(setting, decision=decision.to_json())


def _copy_answers(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `call` to copy its answers, before a later call can overwrite them."""

    def call_and_copy(*args: Any, **kwargs: Any) -> Any:
        return pytree.map_tensors(lambda t: t.clone(), call(*args, **kwargs))

    return call_and_copy


def _dtype(workload: Workload) -> str:
    """Return the dtype of the workload's weights, or else of its inputs, or the real dtype of complex ones."""
    if workload.step and workload.step.autocast:
        return str(workload.step.autocast).removeprefix("torch.")
    module, example = workload.module, workload.examples[0]
    tensors: list[torch.Tensor] = list(module.parameters()) if module is not None else []
    tensors += example.tensors()
    found = next((t for t in tensors if t.is_floating_point() or t.is_complex()), None)
    dtype = torch.get_default_dtype() if found is None else found.dtype
    return str(dtype.to_real()).removeprefix("torch.")
