"""One plan, from compilation to record: the worker's side of a trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchwise._torch.dynamo import count_compiled_graphs
from torchwise.compile import Backend, compile_plan
from torchwise.compile.uncompiled_reason import why_uncompiled
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.measure.profile import profile_of
from torchwise.plan import Plan, Trait
from torchwise.records import Costs, Measurement, Outcome, WorkerStage
from torchwise.trial.experiment import Experiment, hold_duel
from torchwise.trial.harness import Harness
from torchwise.trial.job import Attempt, Job, Restart
from torchwise.workload.module_state import kept_state

SETTLED_AFTER = 5
"""Calls in a row, of which the last two must compile nothing: on the second, Dynamo makes varying values variable."""
MAX_NAMED = 3
"""Pieces of state that an error names."""


@dataclass(frozen=True, slots=True)
class PlanCandidate:
    """A plan as a candidate. A backend compiles a model, but no step, in place of the plan's own."""

    plan: Plan
    backend: Backend | None = None
    may_overwrite = False

    @property
    def precision(self) -> str:
        """The plan's precision."""
        return self.plan.precision

    def build(self, call: Callable[..., Any], harness: Harness) -> Callable[..., Any]:
        """Return `call` compiled by the plan."""
        backend = None if harness.workload.step else self.backend
        example = harness.workload.examples[0]
        return compile_plan(call, self.plan, example, device=harness.device, mode=harness.mode, backend=backend).call

    def build_reproducible(self, job: Job, harness: Harness, call: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return the plan in a form that draws eager's own random numbers, if that is possible."""
        plan = self.plan
        if plan.precision not in ("native", "tf32") or not job.effort.reproduce_noise:
            return None  # another dtype draws other numbers from the same generator
        if plan.backend == "eager":
            return call
        if Trait.NOISE_NOT_REPRODUCIBLE in job.traits:
            return None  # an earlier trial of this study found out
        # CUDA graphs keep their own count of random numbers, so the arithmetic is verified without them.
        plain = replace(plan, capture="none", mode=plan.mode.replace("reduce-overhead", "default"))
        plain = replace(plain, mode="max-autotune-no-cudagraphs") if plain.mode == "max-autotune" else plain
        plain = plain.with_choice("options", ("fallback_random", True))
        return PlanCandidate(plain).build(harness.workload.call, harness)


def attempt(job: Job, stage: Callable[[str], None], backend: Backend | None = None) -> Attempt:
    """Compile the job's plan, verify it, and only then time it against eager. A backend is as for `PlanCandidate`."""
    trial = PlanExperiment(job, PlanCandidate(job.plan, backend))
    with trial.harness.gradients():
        stage(WorkerStage.COMPILE)
        trial.build()
        cold = trial.first_calls()
        trial.check_that_it_settles()
        stage(WorkerStage.VERIFY)
        verdict = trial.verify(stage)
        if verdict.outcome is not Outcome.PASS:
            return Attempt(Costs(cold_s=cold, cache_bytes=_size(job.cache_dir)), verdict)
        stage(WorkerStage.MEASURE)
        measurement = trial.measure()
        own, eager = trial.harness.memory(trial.calls)
    costs = Costs(cold, peak_memory=own, baseline_peak_memory=eager, cache_bytes=_size(job.cache_dir))
    return Attempt(costs, verdict, measurement)


def start_warm(job: Job, stage: Callable[[str], None]) -> Restart:
    """Start the plan in this fresh process from the caches in the job's folder, and time it against eager once more.

    If `job.cold` is set, it is timed with cold processor caches as well.
    """
    trial = PlanExperiment(job, PlanCandidate(job.plan))
    return trial.restart(stage, trial.measure)


def duel(job: Job, stage: Callable[[str], None]) -> Measurement:
    """Time the job's plan against its rival, in alternation, after their trials have verified both."""
    assert job.rival is not None, "a duel is with a rival"
    return hold_duel(job, (PlanCandidate(job.plan), PlanCandidate(job.rival)), stage)


class PlanExperiment(Experiment):
    """A trial of the job's plan, which must compile what it says, and settle."""

    def __init__(self, job: Job, candidate: PlanCandidate) -> None:
        super().__init__(job, candidate)
        self._is_compiled_here = candidate.backend is None and job.plan.backend != "eager"

    def first_calls(self) -> float:
        """Return the seconds of the first calls beyond steady ones.

        Raises:
            UnsupportedError: the plan compiles, but nothing was compiled.
        """
        seconds = super().first_calls()
        if self._is_compiled_here and count_compiled_graphs() == 0:
            workload = self.harness.workload
            raise UnsupportedError(f"nothing was compiled: {why_uncompiled(workload.call, workload.examples[0])}")
        return seconds

    def check_that_it_settles(self) -> None:
        """Make consecutive calls if each changes the state of the next, as a program does and timing does not.

        Raises:
            UnsupportedError: the calls go on compiling, as the values that they change are compiled in.
        """
        if not self._is_compiled_here or Trait.STATEFUL not in self._job.traits or self.step_runner is not None:
            return
        call, example = self.call, self.harness.workload.examples[0].clone()
        compiled = [count_compiled_graphs()]
        with kept_state(self.harness.workload.call, example.args, example.kwargs) as state:
            try:
                for _ in range(SETTLED_AFTER):
                    call(*example.args, **example.kwargs)
                    compiled.append(count_compiled_graphs())
            except StalePlanError as error:
                raise UnsupportedError(f"a call changes what the plan holds for: {error}") from error
            except Exception:  # a model may raise when a cache is full; verification compares the calls with its own
                return
            changed, grown = list(state.changes()), state.find_grown()
        if len(compiled) <= SETTLED_AFTER or not compiled[-1] > compiled[-2] > compiled[-3]:
            return
        if grown and self._job.plan.shapes == "static":
            raise UnsupportedError(
                f"every call compiles again, as each gives another shape to {_list_few(grown)}: a plan with "
                "shapes='dynamic' compiles once for all"
            )
        named = _list_few(changed) or "its inputs"
        raise UnsupportedError(f"every call compiles again, for each changes what the code depends on: {named}")

    def measure(self) -> Measurement:
        """Time the plan against eager, until it can no longer lead."""
        job, eager = self._job, self.harness.eager
        # If threads wait for cores, eager's time varies widely: no time is its usual one.
        expected_s = None if Trait.CONTENDED_CORES in job.traits else job.baseline_s
        measurement = self.harness.measure(
            self.calls, eager, prune_below=job.prune_below, expected_s=(None, expected_s)
        )
        return replace(measurement, busy_s=profile_of(self.calls[0], self.harness.device).busy_s)


def _size(folder: str) -> int:
    return sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file()) if folder else 0


def _list_few(paths: list[str]) -> str:
    return ", ".join([*paths[:MAX_NAMED], *(["…"] if len(paths) > MAX_NAMED else [])])
