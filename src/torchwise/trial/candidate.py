"""One candidate, from plan to record: the worker's side of a trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchwise.errors import UnsupportedError
from torchwise.measure import Clock, Precision, held_memory, measure_pair, peak_memory, profile_of
from torchwise.plan import EAGER, Plan
from torchwise.realize import Realized, realize
from torchwise.realize.backends.inductor import compiled_graphs
from torchwise.records import Costs, Measurement, Outcome, Verdict
from torchwise.trial.inspection import mix_of
from torchwise.trial.job import Attempt, Job
from torchwise.trial.loading import load, runner
from torchwise.verify import Subject, verify
from torchwise.workload import Workload

SETTLING_CALLS = 4
"""First calls of each example that count towards the cost of compiling: CUDA graphs record on the second and third."""


def attempt(job: Job, stage: Callable[[str], None]) -> Attempt:
    """Compile the job's plan, verify it, and only then time it against eager."""
    import torch

    workload = load(job)
    with torch.set_grad_enabled(job.workload.mode == "training"):
        trial = _Tryout(job, workload)
        stage("compile")
        cold = trial.first_calls()
        stage("verify")
        verdict = trial.verdict()
        if verdict.outcome is not Outcome.PASS:
            return Attempt(Costs(cold_s=cold, cache_bytes=_size(job.cache_dir)), verdict)
        stage("measure")
        measurement = trial.measurement()
        own, eager = trial.memory()
    costs = Costs(cold, peak_memory=own, baseline_peak_memory=eager, cache_bytes=_size(job.cache_dir))
    return Attempt(costs, verdict, measurement)


def start_warm(job: Job, stage: Callable[[str], None]) -> float:
    """Start the plan in this fresh process from the caches in the job's folder; return its warm cost in seconds."""
    import torch

    workload = load(job)
    with torch.set_grad_enabled(job.workload.mode == "training"):
        trial = _Tryout(job, workload)
        stage("warm compile")
        return trial.first_calls()


class _Tryout:
    def __init__(self, job: Job, workload: Workload) -> None:
        self._job = job
        self._workload = workload
        self._device, self._mode = job.workload.device, job.workload.mode
        self._clock = Clock(self._device, each=job.workload.objective != "throughput")
        # Eager runs first, so that the libraries' own start-up is not counted as compile time.
        self._eager = self._runners(workload.call)
        for call in self._eager:
            self._clock.once(call)
        self._held_before, self._held = held_beside_inputs(workload, self._device), 0
        self._realized = self._realize(job.plan)
        self._candidate = self._runners(self._realized.call)

    def _realize(self, plan: Plan) -> Realized:
        return realize(self._workload.call, plan, self._workload.examples[0], device=self._device, mode=self._mode)

    def _runners(self, call: Callable[..., Any]) -> list[Callable[[], Any]]:
        restore = "writes_inputs" in self._job.traits
        return [runner(call, e, self._mode, restore_inputs=restore) for e in self._workload.examples]

    def first_calls(self) -> float:
        """Make the first calls, compilation included; return the seconds they took beyond steady ones.

        Raises:
            UnsupportedError: the plan compiles, but nothing was compiled.
        """
        rounds = [sum(self._clock.once(call) for call in self._candidate) for _ in range(SETTLING_CALLS)]
        self._held = held_since(self._held_before, self._device)
        if self._job.plan.backend != "eager" and compiled_graphs() == 0:
            raise UnsupportedError("nothing was compiled: the model runs where torch.compile does not look")
        return sum(rounds) - SETTLING_CALLS * min(rounds)

    def verdict(self) -> Verdict:
        plan = self._job.plan
        stochastic = "stochastic" in self._job.traits
        floor = self._workload.call if plan.precision == "native" else self._realize(_floor_of(plan)).call
        subject = Subject(
            self._workload,
            self._realized.call,
            floor,
            plan.precision,
            self._reproducible() if stochastic else None,
            stochastic,
            self._mode == "training",
        )
        effort = self._job.effort
        return verify(subject, extra_draws=effort.extra_draws, noise_budget_s=effort.noise_s)

    def _reproducible(self) -> Callable[..., Any] | None:
        """Return the candidate drawing eager's own random numbers, where that is possible."""
        plan = self._job.plan
        if plan.precision not in ("native", "tf32") or not self._job.effort.reproduce_noise:
            return None  # another dtype draws other numbers from the same generator
        if plan.backend != "eager" and "noise_not_reproducible" in self._job.traits:
            return None  # an earlier trial of this study found out
        if plan.backend == "eager":
            return self._realized.call
        # CUDA graphs keep their own count of random numbers, so the arithmetic is proven without them.
        plain = replace(plan, capture="none", mode=plan.mode.replace("reduce-overhead", "default"))
        plain = replace(plain, mode="max-autotune-no-cudagraphs") if plain.mode == "max-autotune" else plain
        return self._realize(plain.with_choice("options", ("fallback_random", True))).call

    def measurement(self) -> Measurement:
        candidate, baseline = mix_of(self._candidate, self._workload), mix_of(self._eager, self._workload)
        precision = Precision(self._job.effort.half_width, self._job.effort.measure_s)
        found = measure_pair(candidate, baseline, self._clock, precision, prune_below=self._job.prune_below)
        return replace(found, busy_s=profile_of(self._candidate[0], self._device).busy_s)

    def memory(self) -> tuple[int | None, int | None]:
        """Return peak memory of the candidate and of eager: the largest over the examples.

        What the candidate holds between calls counts as its own: copies of weights, graphs' pools, frozen constants.
        """
        found = [[peak_memory(call, self._device) for call in calls] for calls in (self._candidate, self._eager)]
        own, eager = (max((m for m in side if m is not None), default=None) for side in found)
        return (None if own is None else own + self._held), eager


def held_beside_inputs(workload: Workload, device: str) -> int | None:
    """Return the bytes held once there is one more copy of the inputs, as every candidate's calls bring along."""
    copies = [example.clone() for example in workload.examples]
    held = held_memory(device)
    del copies
    return held


def held_since(before: int | None, device: str) -> int:
    """Return the bytes held now beyond `before`; 0 where that cannot be known."""
    now = held_memory(device)
    return 0 if now is None or before is None else max(now - before, 0)


def _floor_of(plan: Plan) -> Plan:
    """Return eager at the plan's precision: the noise floor it is held against."""
    return replace(EAGER, precision=plan.precision)


def _size(folder: str) -> int:
    return sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file()) if folder else 0
