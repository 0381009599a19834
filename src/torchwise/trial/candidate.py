"""One candidate, from plan to record: the worker's side of a trial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchwise._torch.dynamo import count_compiled_graphs
from torchwise.compile import Backend, CompiledPlan, compile_plan
from torchwise.compile.uncompiled_reason import why_uncompiled
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.measure.profile import profile_of
from torchwise.plan import EAGER, Plan, Trait
from torchwise.records import Costs, Measurement, Outcome, Verdict, WorkerStage
from torchwise.trial.error_origin import run_checks
from torchwise.trial.harness import Calls, Harness
from torchwise.trial.job import Attempt, Job, Restart
from torchwise.verify import StepSubject, Subject, verify, verify_step
from torchwise.verify.first_calls import FirstAnswer, very_first
from torchwise.verify.observe import Observation
from torchwise.verify.step_runner import Maker, StepRunner
from torchwise.workload.module_state import kept_state

SETTLED_AFTER = 5
"""Calls in a row, of which the last two must compile nothing: on the second, Dynamo makes varying values variable."""
MAX_NAMED = 3
"""Pieces of state that an error names."""


def attempt(job: Job, stage: Callable[[str], None], backend: Backend | None = None) -> Attempt:
    """Compile the job's plan, verify it, and only then time it against eager.

    Args:
        job: the order, with its plan.
        stage: called with each stage.
        backend: compiles the model, if it is not the plan's own backend.
    """
    trial = _CandidateTrial(job, backend)
    with trial.harness.gradients():
        stage(WorkerStage.COMPILE)
        cold = trial.first_calls()
        trial.check_that_it_settles()
        stage(WorkerStage.VERIFY)
        verdict = trial.verdict(stage)
        if verdict.outcome is not Outcome.PASS:
            return Attempt(Costs(cold_s=cold, cache_bytes=_size(job.cache_dir)), verdict)
        stage(WorkerStage.MEASURE)
        measurement = trial.measurement()
        own, eager = trial.harness.memory(trial.candidate)
    costs = Costs(cold, peak_memory=own, baseline_peak_memory=eager, cache_bytes=_size(job.cache_dir))
    return Attempt(costs, verdict, measurement)


def start_warm(job: Job, stage: Callable[[str], None]) -> Restart:
    """Start the plan in this fresh process from the caches in the job's folder, and time it against eager once more.

    If `job.cold` is set, it is timed with cold processor caches as well.
    """
    trial = _CandidateTrial(job)
    with trial.harness.gradients():
        stage(WorkerStage.WARM_COMPILE)
        warm_s = trial.first_calls()
        stage(WorkerStage.MEASURE)
        measurement = trial.measurement()
        if job.cold:
            stage(WorkerStage.MEASURE_COLD)
            measurement = trial.harness.with_cold(measurement, trial.candidate, trial.harness.eager)
        return Restart(warm_s, measurement)


def duel(job: Job, stage: Callable[[str], None]) -> Measurement:
    """Time the job's plan against its rival, in alternation, after their trials have verified both."""
    assert job.rival is not None, "a duel is with a rival"
    harness = Harness(job)
    with harness.gradients():
        stage(WorkerStage.COMPILE)
        sides = [calls_of(harness, plan) for plan in (job.plan, job.rival)]
        stage(WorkerStage.MEASURE)
        return harness.measure(*sides, expected_s=job.expected_s)


def calls_of(harness: Harness, plan: Plan) -> Calls:
    """Return the harness's calls under a plan, compiled, as a trial makes them."""
    example = harness.workload.examples[0]
    calls = harness.runners(
        compile_plan(harness.subject(), plan, example, device=harness.device, mode=harness.mode).call
    )
    harness.first_calls(calls)
    return calls


class _CandidateTrial:
    def __init__(self, job: Job, backend: Backend | None = None) -> None:
        self._job = job
        self._is_compiled_here = backend is None and job.plan.backend != "eager"
        self.harness = Harness(job)
        self._step_runner: StepRunner | None = None
        self._answers: list[FirstAnswer] = []
        with self.harness.gradients():
            if step := self.harness.workload.step:
                self._step_runner = StepRunner(step, lambda copy: self._compile_plan(job.plan, of=copy).call)
                call = self._step_runner.call
            else:
                self._compiled = self._compile_plan(job.plan, backend)
                call = self._compiled.call
        self.candidate = self.harness.runners(call)

    def _compile_plan(
        self, plan: Plan, backend: Backend | None = None, *, of: Callable[..., Any] | None = None
    ) -> CompiledPlan:
        harness, call = self.harness, of or self.harness.workload.call
        example = harness.workload.examples[0]
        return compile_plan(call, plan, example, device=harness.device, mode=harness.mode, backend=backend)

    def first_calls(self) -> float:
        """Return the seconds of the first calls beyond steady ones.

        Raises:
            UnsupportedError: the plan compiles, but nothing was compiled.
        """
        observe = self._step_runner.observe_gradients if self._step_runner else None
        self._answers = [FirstAnswer(call, observe) for call in self.candidate]
        seconds = self.harness.first_calls(list(self._answers))
        if self._is_compiled_here and count_compiled_graphs() == 0:
            workload = self.harness.workload
            raise UnsupportedError(f"nothing was compiled: {why_uncompiled(workload.call, workload.examples[0])}")
        return seconds

    @property
    def _first_step(self) -> tuple[int, Observation] | None:
        """The very first step's result and its example: the only step that starts from the state of the verification.

        A step that scales its loss may be skipped, and then has no result.
        """
        step = self.harness.workload.step
        scales = step is None or step.scaler is not None or self._job.plan.precision == "autocast_fp16"
        return None if scales else very_first(self._answers)

    def check_that_it_settles(self) -> None:
        """Make consecutive calls if each changes the state of the next, as a program does and timing does not.

        Raises:
            UnsupportedError: the calls go on compiling, as the values that they change are compiled in.
        """
        if not self._is_compiled_here or Trait.STATEFUL not in self._job.traits or self._step_runner is not None:
            return
        call, example = self._compiled.call, self.harness.workload.examples[0].clone()
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

    def verdict(self, stage: Callable[[str], None]) -> Verdict:
        if self._step_runner is not None:
            return self._step_verdict(self._step_runner, stage)
        plan, workload = self._job.plan, self.harness.workload
        stochastic = Trait.STOCHASTIC in self._job.traits
        floor = workload.call if plan.precision == "native" else self._compile_plan(_floor_of(plan)).call
        subject = Subject(
            workload,
            self._compiled.call,
            floor,
            plan.precision,
            self._reproducible() if stochastic else None,
            stochastic,
            self.harness.mode == "training",
            Trait.STATEFUL in self._job.traits,
            [answer.observation for answer in self._answers],
        )
        plain = replace(subject, candidate=workload.call, floor=workload.call, precision="native", reproducible=None)
        plain = replace(plain, first=())
        effort = self._job.effort
        return run_checks(
            lambda: verify(subject, extra_draws=effort.extra_draws, noise_budget_s=effort.noise_s),
            lambda: verify(plain, extra_draws=effort.extra_draws, noise_budget_s=effort.noise_s),
        )

    def _step_verdict(self, step_runner: StepRunner, stage: Callable[[str], None]) -> Verdict:
        plan, effort = self._job.plan, self._job.effort

        def maker(plan: Plan) -> Maker:
            return lambda copy: self._compile_plan(plan, of=copy).call

        floor = None if plan.precision == "native" else maker(_floor_of(plan))
        stochastic = Trait.STOCHASTIC in self._job.traits
        first = None if stochastic else self._first_step
        subject = StepSubject(self.harness.workload, step_runner, maker(plan), floor, plan.precision, stochastic, first)

        def verify_eager() -> Verdict:
            eager = StepRunner(self.harness.workload.step)  # type: ignore[arg-type]
            as_written = replace(subject, candidate=eager, make=lambda copy: copy, floor=None, precision="native")
            as_written = replace(as_written, first=None)
            return verify_step(as_written, extra_draws=effort.extra_draws, noise_budget_s=effort.noise_s)

        return run_checks(
            lambda: verify_step(subject, extra_draws=effort.extra_draws, noise_budget_s=effort.noise_s, tell=stage),
            verify_eager,
        )

    def _reproducible(self) -> Callable[..., Any] | None:
        """Return the candidate drawing eager's own random numbers, if that is possible."""
        plan = self._job.plan
        if plan.precision not in ("native", "tf32") or not self._job.effort.reproduce_noise:
            return None  # another dtype draws other numbers from the same generator
        if plan.backend != "eager" and Trait.NOISE_NOT_REPRODUCIBLE in self._job.traits:
            return None  # an earlier trial of this study found out
        if plan.backend == "eager":
            return self._compiled.call
        # CUDA graphs keep their own count of random numbers, so the arithmetic is verified without them.
        plain = replace(plan, capture="none", mode=plan.mode.replace("reduce-overhead", "default"))
        plain = replace(plain, mode="max-autotune-no-cudagraphs") if plain.mode == "max-autotune" else plain
        return self._compile_plan(plain.with_choice("options", ("fallback_random", True))).call

    def measurement(self) -> Measurement:
        job, eager = self._job, self.harness.eager
        # If threads wait for cores, eager's time varies widely: no time is its usual one.
        expected_s = None if Trait.CONTENDED_CORES in job.traits else job.baseline_s
        measurement = self.harness.measure(
            self.candidate, eager, prune_below=job.prune_below, expected_s=(None, expected_s)
        )
        return replace(measurement, busy_s=profile_of(self.candidate[0], self.harness.device).busy_s)


def _floor_of(plan: Plan) -> Plan:
    """Return eager at the plan's precision, which gives the noise floor for it."""
    return replace(EAGER, precision=plan.precision)


def _size(folder: str) -> int:
    return sum(f.stat().st_size for f in Path(folder).rglob("*") if f.is_file()) if folder else 0


def _list_few(paths: list[str]) -> str:
    return ", ".join([*paths[:MAX_NAMED], *(["…"] if len(paths) > MAX_NAMED else [])])
