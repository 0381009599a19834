"""One experiment: something that answers in the model's place is built, verified, and timed against eager.

The plans of trials and the contenders of benchmarks are candidates alike. So their figures can be compared. At the end
are the worker's tasks of a trial of a plan.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchwise._torch.dynamo import count_compiled_graphs, count_graph_breaks
from torchwise.compile import Backend, compile_plan, tell_shares
from torchwise.compile.transforms import transform_model
from torchwise.compile.transforms.quantization import has_quantized_layers
from torchwise.compile.uncompiled_reason import find_graph_break, why_uncompiled
from torchwise.errors import UnsupportedError
from torchwise.measure.profile import profile_of
from torchwise.plan import EAGER, Plan, Trait
from torchwise.plan.space import choices_of
from torchwise.records import Costs, Measurement, Outcome, Verdict, WorkerStage
from torchwise.records.trial import NOTHING_COMPILED
from torchwise.trial.candidate import Candidate
from torchwise.trial.error_origin import run_checks
from torchwise.trial.harness import Calls, Harness
from torchwise.trial.job import Attempt, Job, Restart
from torchwise.trial.required_properties import check_required, digest_if_required, observe_original, run_call, run_step
from torchwise.trial.settling import check_that_sizes_settle, check_that_state_settles, compile_for_other_values
from torchwise.trial.smaller_rewrites import find_smaller_rewrite, make_judge
from torchwise.verify import StepSubject, Subject, verify, verify_step
from torchwise.verify.observe import Observation, draws
from torchwise.verify.properties import Run
from torchwise.verify.spot_check import FirstAnswer, check_retained_outputs, very_first
from torchwise.verify.step import check_retained_loss
from torchwise.verify.step_runner import StepRunner
from torchwise.verify.substitution import keeps_noise
from torchwise.workload import pytree
from torchwise.workload.train_step import TrainStep


class Experiment:
    """A candidate, its verdict and its timings, in this process. `calls` has its calls in the form that is timed."""

    call: Callable[..., Any]
    calls: Calls

    def __init__(self, job: Job, candidate: Candidate) -> None:
        self._job, self._candidate = job, candidate
        self.harness = Harness(job)
        self.step_runner: StepRunner | None = None
        self._built_s = 0.0
        self._answers: list[FirstAnswer] = []

    def build(self) -> None:
        """Build the candidate. The seconds count as part of its first calls."""
        workload = self.harness.workload
        if workload.step:
            self.step_runner = StepRunner(workload.step, self._build)
            self.call = self.step_runner.call
        else:
            self.call = self._build(workload.call)
        self.calls = self.harness.runners(self.call)

    def _build(self, call: Callable[..., Any]) -> Callable[..., Any]:
        built: list[Callable[..., Any]] = []
        self._built_s = self.harness.own_seconds(lambda: built.append(self._candidate.build(call, self.harness)))
        return built[0]

    def first_calls(self) -> float:
        """Make the first calls, keep their answers, and return the seconds beyond steady ones."""
        observe = self.step_runner.observe_gradients if self.step_runner else None
        self._answers = [FirstAnswer(call, observe) for call in self.calls]
        return self._built_s + self.harness.first_calls(list(self._answers))

    def settle(self) -> float:
        """Return the seconds of code for other values than the examples'."""
        return 0.0

    def verify(self, stage: Callable[[str], None]) -> Verdict:
        """Compare the candidate with the reference, and with eager at its precision."""
        return self._verify_call() if self.step_runner is None else self._verify_step(self.step_runner, stage)

    def _verify_call(self) -> Verdict:
        workload, traits = self.harness.workload, self._job.traits
        original = workload.call
        if self._job.workload.permits_change:
            workload = replace(workload, call=self._candidate.substitute(original))
        is_stochastic = Trait.STOCHASTIC in traits and keeps_noise(original, workload.call, workload.examples[0])
        plain = Subject(
            workload,
            workload.call,
            workload.call,
            stochastic=is_stochastic,
            training=self.harness.mode == "training",
            stateful=Trait.STATEFUL in traits,
        )
        subject = replace(
            plain,
            candidate=copy_answers(self.call) if self._candidate.may_overwrite else self.call,
            floor=self._build_floor(workload.call) or workload.call,
            precision=self._candidate.precision,
            reproducible=self._candidate.build_reproducible(self._job, self.harness, self.call)
            if is_stochastic
            else None,
            first=[] if is_stochastic else [answer.observation for answer in self._answers],  # they drew other numbers
        )
        # Without a form that draws eager's own random numbers, nothing holds a stochastic plan to the user's limit.
        whole = subject.reproducible if is_stochastic else subject.candidate
        subject = replace(subject, is_quantized=whole is not None and has_quantized_layers(workload.call))
        effort, judge = self._job.effort, None
        if workload.call is not original:
            judge = make_judge(self._job, self.harness.workload)
        judged = judge.judge(workload.call) if judge else Verdict(())
        if judged.checks and judged.outcome is not Outcome.PASS:
            return judged
        found = run_checks(
            lambda: verify(subject, extra_draws=effort.extra_draws, noise_budget_s=effort.noise_s),
            lambda: verify(plain, extra_draws=effort.extra_draws, noise_budget_s=effort.noise_s),
        )
        if subject.is_quantized and judge and whole:
            found = judge.judge_whole(found, whole)
        return Verdict((*judged.checks, *found.checks))

    def _verify_step(self, runner: StepRunner, stage: Callable[[str], None]) -> Verdict:
        effort, is_stochastic = self._job.effort, Trait.STOCHASTIC in self._job.traits
        candidate = runner
        if self._candidate.may_overwrite:
            candidate = copy.copy(runner)
            candidate.call = copy_answers(runner.call)
        subject = StepSubject(
            self.harness.workload,
            candidate,
            lambda step: self._candidate.build(step, self.harness),
            None if self._candidate.precision == "native" else self._build_step_floor,
            self._candidate.precision,
            is_stochastic,
            None if is_stochastic else self._first_step,
        )

        def verify_eager() -> Verdict:
            eager = StepRunner(self.harness.workload.step)  # type: ignore[arg-type]
            plain = replace(
                subject, candidate=eager, make=lambda step: step, floor=None, precision="native", first=None
            )
            return verify_step(plain, extra_draws=effort.extra_draws, noise_budget_s=effort.noise_s)

        return run_checks(
            lambda: verify_step(subject, extra_draws=effort.extra_draws, noise_budget_s=effort.noise_s, tell=stage),
            verify_eager,
        )

    @property
    def _first_step(self) -> tuple[int, Observation] | None:
        """The very first step's result and its example: the only step that starts from the state of the verification.

        A step that scales its loss may be skipped, and then has no result.
        """
        step = self.harness.workload.step
        has_scaler = step is None or step.scaler is not None or self._candidate.precision == "autocast_fp16"
        return None if has_scaler else very_first(self._answers)

    def _build_floor(self, call: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return eager at the candidate's precision, which gives the noise floor for it, or None for eager itself."""
        if self._candidate.precision == "native":
            return None
        plan, example = replace(EAGER, precision=self._candidate.precision), self.harness.workload.examples[0]
        return compile_plan(call, plan, example, device=self.harness.device, mode=self.harness.mode).call

    def _build_step_floor(self, step: TrainStep) -> Callable[..., Any]:
        return self._build_floor(step) or step

    def digest_answers(self) -> str:
        """Return the digest of the answers' bits if they must be those of another process, or ""."""
        return digest_if_required(self._job.workload, self.harness.workload, self._run)

    @property
    def _run(self) -> Run:
        if self.step_runner is not None:
            return run_step(self.step_runner, self.harness.workload.examples)
        return run_call(self.harness.workload, self.call, self.harness.mode)

    def overwrites_answers(self) -> bool:
        """Whether later calls overwrite the answers of earlier ones."""
        inputs = draws(self.harness.workload, 1)
        if self.step_runner is not None:
            return check_retained_loss(self.step_runner, inputs).outcome is not Outcome.PASS
        ours, stateful = (self.call, self.harness.workload.call), Trait.STATEFUL in self._job.traits
        return check_retained_outputs(*ours, inputs[0], inputs[-1], is_stateful=stateful).outcome is not Outcome.PASS

    def time_cold(self, found: Measurement, stage: Callable[[str], None]) -> Measurement:
        """Also time the candidate against eager with cold processor caches, if the job asks for it."""
        if not self._job.cold:
            return found
        stage(WorkerStage.MEASURE_COLD)
        return self.harness.with_cold(found, self.calls, self.harness.eager)

    def restart(self, stage: Callable[[str], None], measure: Callable[[], Measurement]) -> Restart:
        """Start the candidate from the caches in the job's folder, in this fresh process, and time it once more."""
        with self.harness.gradients():
            stage(WorkerStage.WARM_COMPILE)
            self.build()
            warm_s = self.first_calls() + self.settle()
            digest = self.digest_answers()
            stage(WorkerStage.MEASURE)
            return Restart(warm_s, self.time_cold(measure(), stage), digest)


def hold_duel(job: Job, sides: Sequence[Candidate], stage: Callable[[str], None]) -> Measurement:
    """Time two candidates in alternation, after both were verified."""
    harness = Harness(job)
    with harness.gradients():
        stage(WorkerStage.COMPILE)
        calls = [start_candidate(candidate, harness) for candidate in sides]
        stage(WorkerStage.MEASURE)
        return harness.measure(*calls, expected_s=job.expected_s)


def start_candidate(candidate: Candidate, harness: Harness) -> Calls:
    """Return the calls of a candidate in the form that is timed, after the first ones, which compile."""
    calls = harness.runners(candidate.build(harness.subject(), harness))
    harness.first_calls(calls)
    return calls


def copy_answers(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `call` to copy its answers, before a later call can overwrite them."""

    def call_and_copy(*args: Any, **kwargs: Any) -> Any:
        return pytree.map_tensors(lambda t: t.clone(), call(*args, **kwargs))

    return call_and_copy


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
        workload = harness.workload
        return compile_plan(
            call,
            self.plan,
            workload.examples[0],
            device=harness.device,
            mode=harness.mode,
            backend=backend,
            inputs=workload.inputs,
        ).call

    def substitute(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model with the rewrites of the plan that replace operators by others."""
        names = [
            choice.value
            for choice in choices_of(self.plan)
            if choice.field == "transforms" and choice.numerics.is_judged_by_user
        ]
        substituted, layers = transform_model(call, names)
        return functools.reduce(lambda wrapped, layer: layer(wrapped), layers, substituted)

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
        cold += trial.settle()
        stage(WorkerStage.VERIFY)
        verdict = trial.verify(stage)
        if verdict.outcome is not Outcome.PASS and not verdict.lacks_property_alone:
            costs = Costs(cold_s=cold, cache_bytes=_size(job.cache_dir))
            instead = find_smaller_rewrite(job, trial.harness.workload) if verdict.is_change_refused else None
            return Attempt(costs, verdict, instead=instead, share=tell_shares())
        digest = trial.digest_answers()
        stage(WorkerStage.MEASURE)
        measurement = trial.measure()
        own, eager = trial.harness.memory(trial.calls)
        costs = Costs(cold, peak_memory=own, baseline_peak_memory=eager, cache_bytes=_size(job.cache_dir))
        return Attempt(costs, verdict, measurement, trial.find_graph_break(measurement), digest, share=tell_shares())


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
        self._is_compiled_here = candidate.backend is None and job.plan.is_traced
        self._may_break = False

    def first_calls(self) -> float:
        """Return the seconds of the first calls beyond steady ones.

        Raises:
            UnsupportedError: the plan compiles, but nothing was compiled.
        """
        graphs, breaks = count_compiled_graphs(), count_graph_breaks()
        seconds = super().first_calls()
        has_several = count_compiled_graphs() - graphs > len(self.calls)  # PyTorch does not count every break
        self._may_break = has_several or count_graph_breaks() > breaks
        if self._is_compiled_here and count_compiled_graphs() == 0:
            workload = self.harness.workload
            message = f"{NOTHING_COMPILED}{why_uncompiled(workload.call, workload.examples[0])}"
            raise UnsupportedError(message, ("backend", "scope", "transforms"))
        return seconds

    def settle(self) -> float:
        """Call the plan as a program does, and return the seconds of code for other values than the examples'.

        Raises:
            UnsupportedError: the calls go on compiling.
        """
        if not self._is_compiled_here or self.step_runner is not None:
            return 0.0
        workload = self.harness.workload
        if Trait.STATEFUL in self._job.traits:
            check_that_state_settles(self.call, workload, self._job.plan)
        if Trait.SIZES_VARY in self._job.traits:
            check_that_sizes_settle(self.call, workload, self._job.workload.varying)
        return compile_for_other_values(self.call, workload, self.harness.own_seconds) if self._may_break else 0.0

    def verify(self, stage: Callable[[str], None]) -> Verdict:
        """Compare the plan with the reference. If it is right, check the properties that the user requires."""
        verdict, spec, workload = super().verify(stage), self._job.workload, self.harness.workload
        if verdict.outcome is not Outcome.PASS or not spec.require:
            return verdict
        eager = observe_original(spec, workload)
        takes_other_sizes = self._job.plan.shapes == "dynamic" or spec.sizes == "varying"
        found = check_required(spec, workload, self._run, eager, takes_other_sizes=takes_other_sizes)
        return Verdict((*verdict.checks, *found))

    def find_graph_break(self, measurement: Measurement) -> str:
        """Return the first graph break of a plan that is not surely faster than eager, with its line, or "".

        PyTorch captures the model once more for that, and forgets what it compiled. So nothing may be timed afterwards.
        """
        if not (self._is_compiled_here and self._may_break) or measurement.speedup.low > 1:
            return ""
        workload = self.harness.workload
        return find_graph_break(workload.call, workload.examples[0])

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
