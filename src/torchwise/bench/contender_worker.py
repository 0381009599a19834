"""The worker's side: build, verify and time contenders, and measure the peaks of the hardware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchwise.bench.contenders import Setting, load_contenders
from torchwise.bench.contenders.torchwise import check_served
from torchwise.bench.request import ContenderJob, HardwareSurvey
from torchwise.measure import device_lock
from torchwise.measure.profile import bandwidth, matrix_rate
from torchwise.records import Costs, Decision, Measurement, Verdict, WorkerStage
from torchwise.records.benchmark import Peaks, Performance
from torchwise.trial.experiment import Experiment, PlanCandidate, copy_answers, hold_duel
from torchwise.trial.harness import Harness
from torchwise.trial.job import Job, Restart
from torchwise.trial.smaller_rewrites import make_judge
from torchwise.workload import Workload
from torchwise.workload.identity import structure
from torchwise.workload.train_step import TrainStep

DTYPES = {"cpu": ("float32", "bfloat16", "float64"), "cuda": ("float32", "bfloat16", "float16", "float64")}


@dataclass(frozen=True, slots=True)
class ContenderCandidate:
    """A contender as a candidate."""

    name: str
    setting: Setting
    may_overwrite = True

    @property
    def precision(self) -> str:
        """The precision of Torchwise's decision. All others compute in the model's own."""
        return Decision.from_json(self.setting.decision).plan.precision if self.setting.decision else "native"

    def build(self, call: Callable[..., Any], harness: Harness) -> Callable[..., Any]:
        """Return the contender's callable in place of the model or step."""
        setting = adapt_decision(self.setting, call) if isinstance(call, TrainStep) else self.setting
        return load_contenders()[self.name].build(replace(harness.workload, call=call), setting)

    def build_reproducible(self, job: Job, harness: Harness, call: Callable[..., Any]) -> None:  # noqa: ARG002
        """Return None: a contender is timed as its users run it."""
        return

    def substitute(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model, with the operators and numbers of Torchwise's decision: that is judged as its trials were.

        All others are judged against the model.
        """
        if not self.setting.decision:
            return call
        return PlanCandidate(Decision.from_json(self.setting.decision).plan).substitute(call)


def contend(contender_job: ContenderJob, stage: Callable[[str], None]) -> Performance:
    """Build the contender with empty caches, verify it, alternate timings with eager, and measure its memory."""
    trial = _start(contender_job)
    with trial.harness.gradients():
        stage(WorkerStage.COMPILE)
        trial.build()
        cold = trial.first_calls()
        stage(WorkerStage.VERIFY)
        verdict, overwrites = _verify(contender_job, trial, stage), trial.overwrites_answers()
        stage(WorkerStage.MEASURE)
        measurement = _measure(trial)
        own, eager = trial.harness.memory(trial.calls)
        check_served(trial.call)
        measurement = trial.time_cold(measurement, stage)
    costs, workload = Costs(cold, peak_memory=own, baseline_peak_memory=eager), trial.harness.workload
    return Performance(costs, verdict, measurement, overwrites, _dtype(workload), workload.roofline)


def _verify(contender_job: ContenderJob, trial: Experiment, stage: Callable[[str], None]) -> Verdict:
    """Verify a contender. One that rounds more than the model does may have the error that the user allows, if any."""
    job, rounds = contender_job.job, getattr(load_contenders()[contender_job.contender], "rounds", False)
    if rounds and job.workload.permits_change and job.workload.mode == "inference":
        return make_judge(job, trial.harness.workload).judge(copy_answers(trial.call))
    return trial.verify(stage)


def warm(contender_job: ContenderJob, stage: Callable[[str], None]) -> Restart:
    """Build the contender from warm caches in this fresh process, and time it against eager once more."""
    trial = _start(contender_job)
    return trial.restart(stage, lambda: _measure(trial))


def duel(contender_job: ContenderJob, stage: Callable[[str], None]) -> Measurement:
    """Time the contender against its rival in alternation."""
    sides = [ContenderCandidate(name, contender_job.setting) for name in (contender_job.contender, contender_job.rival)]
    return _drop_device_times(hold_duel(contender_job.job, sides, stage))


def _start(contender_job: ContenderJob) -> Experiment:
    return Experiment(contender_job.job, ContenderCandidate(contender_job.contender, contender_job.setting))


def _measure(trial: Experiment) -> Measurement:
    return _drop_device_times(trial.harness.measure(trial.calls, trial.harness.eager))


def _drop_device_times(found: Measurement) -> Measurement:
    """Drop the device's own timings to keep the record small."""
    return replace(found, candidate_device_s=(), baseline_device_s=())


def adapt_decision(setting: Setting, step: TrainStep) -> Setting:
    """Adapt the setting's decision to another copy of the step, which may have its dropout turned off."""
    if not setting.decision:
        return setting
    decision = replace(Decision.from_json(setting.decision), structure=structure(step))
    return replace(setting, decision=decision.to_json())


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


def survey(job: HardwareSurvey, stage: Callable[[str], None]) -> Peaks:
    """Measure the device's bandwidth and matrix rates, with PyTorch's default settings."""
    device = job.job.workload.device
    device_lock.join(device)
    with device_lock.alone():
        stage("bandwidth")
        bytes_per_s = bandwidth(device)
        stage("matrix products")
        return Peaks(bytes_per_s, {name: matrix_rate(getattr(torch, name), device) for name in DTYPES[device]})
