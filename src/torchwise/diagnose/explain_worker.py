"""The worker's side of `explain`: compile with PyTorch's trace open, time, profile, and measure potential savings."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from torchwise import environment
from torchwise._torch.autotuning import tell_candidates
from torchwise.compile import compile_plan
from torchwise.compile.programs.region_map import tell_regions
from torchwise.compile.transforms.isolate_rnn import has_rnn
from torchwise.compile.transforms.static_form import has_static_form
from torchwise.diagnose import findings, kernels
from torchwise.diagnose.evidence import FILES, Evidence, code_of, stages, write
from torchwise.diagnose.explain import Inquiry
from torchwise.diagnose.fix_trials import check_suggestions, find_varying_sizes
from torchwise.diagnose.kernels import profiler_options, with_profiler
from torchwise.diagnose.op_trace import OpTrace, observe
from torchwise.diagnose.savings import SPENT, Savings, measure_with_retry
from torchwise.diagnose.trace import Trace
from torchwise.diagnose.work import KnownWork, bytes_of_kernels
from torchwise.errors import InternalError, TorchwiseError, format_error
from torchwise.plan import Plan
from torchwise.records import Measurement
from torchwise.records.answer import Reliability
from torchwise.records.compile_events import CompileEvents, UncompiledKind
from torchwise.records.explanation import (
    AutotunedOperator,
    Basis,
    Box,
    Candidate,
    Capturable,
    Execution,
    Explanation,
    Finding,
    Limits,
    judge_measurement,
    rank_findings,
)
from torchwise.records.statistics import median_interval
from torchwise.trial.error_origin import Instruments, check_plainly
from torchwise.trial.harness import Calls, Harness
from torchwise.trial.inspection import mix_of
from torchwise.trial.loading import load, refuse_step
from torchwise.trial.plain_call import run_plainly
from torchwise.verify.leaves import unread_note
from torchwise.workload import Workload

MAX_SETTLING_CALLS = 10
"""Maximum number of further calls that still compile something: two more than PyTorch's limit for one function."""
CALLS = 25
"""Timed calls of each example, if there are several examples."""
RESERVE_S = 2.0
"""Seconds of a budget that are left for the report after the last fix."""
NOT_WANTED = "fixes are not to be measured (--no-fixes)"
_STAYS = "the numbers that are read from the GPU can stay there (numbers_on_gpu)"


def explain_target(inquiry: Inquiry, stage: Callable[[str], None]) -> Generator[Explanation, None, Explanation]:
    """Explain one run. With a budget, which may end the worker, the explanation without fixes is yielded first."""
    created_at, started, has_end = time.time(), time.perf_counter(), math.isfinite(inquiry.end)
    harness = _load_harness(inquiry)
    with harness.gradients():
        stage("compile")
        autotuned: list[AutotunedOperator] = []
        regions: list[tuple[Box, ...]] = []
        with tell_candidates(functools.partial(_note_candidates, autotuned)), tell_regions(regions.append):
            run, trace = _compile(inquiry, harness)
        compile_s = time.perf_counter() - started
        stage("try the suggested code")
        suggested = check_suggestions(trace.breaks, harness)
        watched = replace(trace.to_record(), breaks=suggested.breaks)
        stage("measure")
        measurement = measure_with_retry(lambda: harness.measure(run, harness.eager), _is_timed)
        stage("profile")
        limits = kernels.measure_limits(harness.device, _dtype(harness.workload))
        instruments = Instruments(lambda: check_plainly(harness.workload))
        evidence = _collect_evidence(inquiry, harness, run, trace, watched, measurement, limits, instruments)
        observed = replace(
            _describe(inquiry, trace, evidence),
            created_at=created_at,
            limits=limits,
            autotuned=tuple(autotuned),
            regions=tuple(regions),
            trust=judge_measurement(measurement),
        )

        def conclude(fixes_s: float) -> Explanation:
            savings = Savings(
                harness,
                run,
                evidence.execution.call_s.mid,
                fixes_s,
                stage,
                suggested,
                fix_s=compile_s if has_end else 0.0,
                spent=SPENT if inquiry.fixes_s else NOT_WANTED,
            )
            found = findings.find(evidence, savings)
            unread = filter(None, [unread_note(harness.workload.call)])
            return replace(
                observed,
                findings=rank_findings(found, inquiry.job.workload.calls),
                capturable=judge_capture(evidence, found, savings.failures),
                notes=(*unread, *watched.notes, *savings.notes, *instruments.notes),
                seconds=time.perf_counter() - started,
            )

        if has_end and inquiry.fixes_s:
            yield conclude(0.0)
        return conclude(min(inquiry.fixes_s, inquiry.end - time.monotonic() - RESERVE_S))


def _describe(inquiry: Inquiry, trace: Trace, evidence: Evidence) -> Explanation:
    """Return the explanation without findings, and write its artifacts."""
    files = write(trace.artifacts, Path(inquiry.folder)) if inquiry.folder else {}
    spec, backend = inquiry.job.workload, "eager" if evidence.base.is_eager else evidence.base.backend
    return Explanation(
        workload=spec,
        environment=environment.detect(spec.device),
        plan=inquiry.plan,
        measurement=evidence.measurement,
        stages=stages(
            trace.spans, trace.artifacts, evidence.watched, evidence.execution, evidence.kernels, backend, files
        ),
        execution=evidence.execution,
        kernels=evidence.kernels,
        findings=(),
        capturable=Capturable(None),
        compile_events=evidence.watched,
        folder=inquiry.folder,
    )


def _note_candidates(
    found: list[AutotunedOperator], operator: str, inputs: tuple[str, ...], seconds: Mapping[str, float]
) -> None:
    timed = [Candidate(name, taken if math.isfinite(taken) else None) for name, taken in seconds.items()]
    timed.sort(key=lambda one: math.inf if one.seconds is None else one.seconds)
    found.append(AutotunedOperator(operator, inputs, tuple(timed)))


def _load_harness(inquiry: Inquiry) -> Harness:
    """Load the workload and run it once unchanged."""
    try:
        workload, spec = load(inquiry.job), inquiry.job.workload
        refuse_step(workload, "explain")
        with torch.set_grad_enabled(spec.mode == "training"):
            once = run_plainly(workload, spec.mode)
        del workload  # the explained run loads the model again, in its first state
        return Harness(replace(inquiry.job, traits=once.traits), goes_on=True)
    except TorchwiseError:
        raise
    except Exception as error:  # the user's model may raise anything
        check_plainly(load(inquiry.job))  # which raises if the model itself fails
        raise InternalError(f"Torchwise failed, and not the model: {format_error(error)}") from error


def _compile(inquiry: Inquiry, harness: Harness) -> tuple[Calls, Trace]:
    """Compile by the plan, and call until nothing is compiled any more.

    State that a model changes, such as a count of its calls, causes recompilations up to PyTorch's limit.
    """
    run, compiled = harness.runners(_call(inquiry, harness)), -1
    with Trace(artifacts=tuple(FILES), spans=True) as trace:
        harness.first_calls(run)
        for _ in range(MAX_SETTLING_CALLS):
            if len(trace.compilations) == compiled:
                break
            compiled = len(trace.compilations)
            for call in run:
                harness.once(call)
    return run, trace


def _call(inquiry: Inquiry, harness: Harness) -> Callable[..., Any]:
    workload, plan, device = harness.workload, inquiry.plan, harness.device
    if plan is None:
        compiled: Callable[..., Any] = torch.compile(workload.call, options=profiler_options(device) or None)
        return compiled
    plan = with_profiler(plan, device)
    return compile_plan(
        workload.call, plan, workload.examples[0], device=device, mode=harness.mode, inputs=workload.inputs
    ).call


def _collect_evidence(
    inquiry: Inquiry,
    harness: Harness,
    run: Calls,
    trace: Trace,
    watched: CompileEvents,
    measurement: Measurement,
    limits: Limits,
    instruments: Instruments,
) -> Evidence:
    """Observe one call of the original model, and a few calls of the run for each example."""
    workload = harness.workload
    observed = instruments.use("where the host waits", lambda: observe(harness.eager[0], harness.device), OpTrace())
    call_s, is_timed = measurement.candidate_time, _is_timed(measurement)
    profiled = instruments.use(
        "where the time of a call goes",
        lambda: _profile(
            harness, run, call_s.mid, limits if is_timed else None, _collect_known_work(harness, trace, observed)
        ),
        kernels.Profiled(),
    )
    execution = Execution(
        call_s,
        min(profiled.busy_s, call_s.mid),
        profiled.guards_s,
        sum(one.guards for one in watched.compilations if one.is_forward),
        profiled.regions,
        profiled.inflation,
    )
    return Evidence(
        device=harness.device,
        plan=inquiry.plan,
        measurement=measurement,
        watched=watched,
        code=code_of(trace.artifacts),
        execution=execution,
        profiled=profiled,
        observed=observed,
        has_rnn=has_rnn(workload.call),
        has_static_form=has_static_form(workload.call),
        varying=find_varying_sizes(workload.call, workload.examples),
        calls=inquiry.job.workload.calls,
    )


def _is_timed(measured: Measurement) -> bool:
    return judge_measurement(measured).reliability is not Reliability.UNUSABLE


def _collect_known_work(harness: Harness, trace: Trace, observed: OpTrace) -> KnownWork:
    """Return the known work of kernels. Each example may have operators of other shapes."""
    code = [artifact.text for artifact in trace.artifacts if artifact.name == "inductor_output_code"]
    further = [observe(call, harness.device).work for call in harness.eager[1:]] if observed.operators else []
    return KnownWork(
        bytes_of_kernels(code), {key: work for known in (observed.work, *further) for key, work in known.items()}
    )


def _profile(harness: Harness, run: Calls, call_s: float, limits: Limits | None, known: KnownWork) -> kernels.Profiled:
    """Profile a call of each example, and scale their times together to the time of a call of their mix."""
    if len(run) == 1:
        return kernels.profile(run[0], harness.device, call_s, limits, known)
    weights = mix_of(run, harness.workload).weights
    each_s = [median_interval([harness.once(call) for _ in range(CALLS)]).mid for call in run]
    scale = call_s / sum(weight * own_s for weight, own_s in zip(weights, each_s, strict=True))
    profiles = [
        kernels.profile(call, harness.device, own_s * scale, limits, known)
        for call, own_s in zip(run, each_s, strict=True)
    ]
    return kernels.average_profiles(profiles, weights)


def _dtype(workload: Workload) -> torch.dtype:
    """Return the dtype of the model's numbers, which determines its peak rate of FLOPs."""
    tensors = workload.examples[0].tensors()
    if isinstance(workload.call, torch.nn.Module):
        tensors = [*workload.call.parameters(), *tensors]
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.get_default_dtype())


def judge_capture(evidence: Evidence, findings: Iterable[Finding], failures: Mapping[Plan | str, str]) -> Capturable:
    """Return whether the call can be captured, with every known obstacle. `failures` are of tried fixes, by plan."""
    reasons = [f"{wait.place}: {wait.what}" for wait in evidence.observed.waits]
    reasons += [one.what for one in evidence.watched.fallbacks if one.kind is UncompiledKind.CUDAGRAPH_SKIP]
    if evidence.device != "cuda":
        return Capturable(False if reasons else None, tuple(reasons) or ("there are no CUDA graphs on a CPU",))
    if evidence.base.capture == "call" or (evidence.base.capture == "branches" and not reasons):
        # The explained run is captured itself.
        return Capturable(True)
    plan = evidence.captured
    timed = {one.plan for one in findings if one.saving and one.saving.basis is not Basis.ESTIMATED}
    if plan is not None and plan.capture == "call" and plan in timed:
        return Capturable(True, (_STAYS,) if "numbers_on_gpu" in plan.transforms else tuple(reasons))
    if plan is not None and plan in failures:
        reasons.append(f"plan {plan}: {failures[plan]}")
    return Capturable(False if reasons else None, tuple(reasons))
