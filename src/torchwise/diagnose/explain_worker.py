"""The worker's side of `explain`: compile with PyTorch's trace open, time, profile, and measure potential savings."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from torchwise import environment
from torchwise.compile import compile_plan
from torchwise.compile.transforms.isolate_rnn import has_rnn
from torchwise.compile.transforms.static_form import has_static_form
from torchwise.diagnose import findings, kernels
from torchwise.diagnose.capturable import capturable
from torchwise.diagnose.explain import Inquiry
from torchwise.diagnose.findings.evidence import Evidence
from torchwise.diagnose.fix_trials import find_varying_sizes
from torchwise.diagnose.kernels import PROFILED
from torchwise.diagnose.op_trace import OpTrace, observe
from torchwise.diagnose.relative_saving import measure_with_retry
from torchwise.diagnose.savings import PairedSavings, profiles
from torchwise.diagnose.sizes import bytes_of_kernels
from torchwise.diagnose.stages import FILES, code_of, stages, write
from torchwise.diagnose.suggestions import check_suggestions
from torchwise.diagnose.trace import Artifact, Span, Trace
from torchwise.diagnose.work import KnownWork
from torchwise.errors import InternalError, format_error
from torchwise.records import Measurement
from torchwise.records.answer import Reliability
from torchwise.records.compile_events import CompileEvents
from torchwise.records.explanation import Execution, Explanation, Limits, judge_measurement, rank_findings
from torchwise.records.statistics import median_interval
from torchwise.trial.error_origin import Instruments, check_plainly
from torchwise.trial.harness import Calls, Harness
from torchwise.trial.inspection import mix_of
from torchwise.trial.loading import load, refuse_step
from torchwise.trial.plain_call import run_plainly
from torchwise.verify.leaves import unread_note
from torchwise.workload import Workload

MAX_SETTLING_CALLS = 10
"""Further calls while each compiles something: two more than PyTorch's limit for one function."""
CALLS = 25
"""Calls of one example that time it, if there are several examples."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    watched: CompileEvents
    spans: tuple[Span, ...]
    artifacts: tuple[Artifact, ...]


def examine(inquiry: Inquiry, stage: Callable[[str], None]) -> Explanation:
    """Explain one run.

    Raises:
        InputError: the target cannot be loaded.
        BaselineError: the model raises on its own inputs.
    """
    begun, started = time.time(), time.perf_counter()
    arena = _load_harness(inquiry)
    with arena.gradients():
        stage("compile")
        run, compiled = _compile(inquiry, arena)
        stage("try what is suggested")
        suggested = check_suggestions(compiled.watched.breaks, arena)
        compiled = replace(compiled, watched=replace(compiled.watched, breaks=suggested.breaks))
        stage("measure")
        measurement = measure_with_retry(lambda: arena.measure(run, arena.eager), _is_timed)
        stage("profile")
        limits = kernels.measure_limits(arena.device, _dtype(arena.workload))
        instruments = Instruments(lambda: check_plainly(arena.workload))
        evidence = _collect_evidence(inquiry, arena, run, compiled, measurement, limits, instruments)
        prices = PairedSavings(arena, run, evidence.execution.call_s.mid, inquiry.budget_s, stage, suggested)
        found = findings.find(evidence, prices)
    files = write(compiled.artifacts, Path(inquiry.folder)) if inquiry.folder else {}
    spec, backend = inquiry.job.workload, "eager" if evidence.base.is_eager else evidence.base.backend
    return Explanation(
        workload=spec,
        environment=environment.detect(spec.device),
        plan=inquiry.plan,
        measurement=measurement,
        stages=stages(
            compiled.spans, compiled.artifacts, compiled.watched, evidence.execution, evidence.kernels, backend, files
        ),
        execution=evidence.execution,
        kernels=evidence.kernels,
        findings=rank_findings(found, spec.calls),
        capturable=capturable(evidence, found, prices.failures),
        compile_events=compiled.watched,
        notes=(
            *filter(None, [unread_note(arena.workload.call)]),
            *compiled.watched.notes,
            *prices.notes,
            *instruments.notes,
        ),
        seconds=time.perf_counter() - started,
        created_at=begun,
        folder=inquiry.folder,
        limits=limits,
        trust=judge_measurement(measurement),
    )


def _load_harness(inquiry: Inquiry) -> Harness:
    """Load the workload and run it once unchanged.

    Raises:
        InputError: it cannot be loaded.
        BaselineError: it raises.
        InternalError: Torchwise cannot run it, though it does not raise by itself.
    """
    from torchwise.errors import TorchwiseError

    try:
        workload, spec = load(inquiry.job), inquiry.job.workload
        refuse_step(workload, "explain")
        with torch.set_grad_enabled(spec.mode == "training"):
            once = run_plainly(workload, spec.mode)
        del workload  # the explained run loads its model anew, in the state that it has then
        return Harness(replace(inquiry.job, traits=once.traits), goes_on=True)
    except TorchwiseError:
        raise
    except Exception as error:  # the user's model may raise anything
        check_plainly(load(inquiry.job))  # which raises if the model itself fails
        raise InternalError(f"Torchwise failed, and not the model: {format_error(error)}") from error


def _compile(inquiry: Inquiry, arena: Harness) -> tuple[Calls, _Compiled]:
    """Compile as the plan says, and listen until nothing is compiled any more.

    State that a model changes, such as a count of its calls, causes recompilations up to PyTorch's limit.
    """
    run, seen = arena.runners(_call(inquiry, arena)), -1
    with Trace(artifacts=tuple(FILES), spans=True) as trace:
        arena.first_calls(run)
        for _ in range(MAX_SETTLING_CALLS):
            if len(trace.compilations) == seen:
                break
            seen = len(trace.compilations)
            for call in run:
                arena.once(call)
    return run, _Compiled(trace.to_record(), trace.spans, trace.artifacts)


def _call(inquiry: Inquiry, arena: Harness) -> Callable[..., Any]:
    call, plan, device = arena.workload.call, inquiry.plan, arena.device
    if plan is None:
        compiled: Callable[..., Any] = torch.compile(call, options={PROFILED: True} if device == "cpu" else None)
        return compiled
    if profiles(plan, device):
        plan = plan.with_choice("options", (PROFILED, True))
    return compile_plan(call, plan, arena.workload.examples[0], device=device, mode=arena.mode).call


def _collect_evidence(
    inquiry: Inquiry,
    arena: Harness,
    run: Calls,
    compiled: _Compiled,
    measurement: Measurement,
    limits: Limits,
    instruments: Instruments,
) -> Evidence:
    """Watch one call of the plain model, and a few of the run for each example."""
    workload = arena.workload
    observed = instruments.use("where the host waits", lambda: observe(arena.eager[0], arena.device), OpTrace())
    call_s, is_timed = measurement.candidate_time, _is_timed(measurement)
    profiled = instruments.use(
        "where the time of a call goes",
        lambda: _profile(
            arena, run, call_s.mid, limits if is_timed else None, _collect_known_work(arena, compiled, observed)
        ),
        kernels.Profiled(),
    )
    execution = Execution(
        call_s,
        min(profiled.busy_s, call_s.mid),
        profiled.guards_s,
        sum(one.guards for one in compiled.watched.compilations if one.is_forward),
        profiled.regions,
        profiled.inflation,
    )
    return Evidence(
        device=arena.device,
        plan=inquiry.plan,
        measurement=measurement,
        watched=compiled.watched,
        code=code_of(compiled.artifacts),
        execution=execution,
        profiled=profiled,
        observed=observed,
        has_rnn=isinstance(workload.call, torch.nn.Module) and has_rnn(workload.call),
        has_static_form=has_static_form(workload.call),
        varying=find_varying_sizes(workload.call, workload.examples),
        calls=inquiry.job.workload.calls,
    )


def _is_timed(measured: Measurement) -> bool:
    return judge_measurement(measured).reliability is not Reliability.UNUSABLE


def _collect_known_work(arena: Harness, compiled: _Compiled, observed: OpTrace) -> KnownWork:
    """Return the known work of kernels: further examples have operators of further shapes."""
    code = [artifact.text for artifact in compiled.artifacts if artifact.name == "inductor_output_code"]
    further = [observe(call, arena.device).work for call in arena.eager[1:]] if observed.operators else []
    return KnownWork(
        bytes_of_kernels(code), {key: work for seen in (observed.work, *further) for key, work in seen.items()}
    )


def _profile(arena: Harness, run: Calls, call_s: float, limits: Limits | None, known: KnownWork) -> kernels.Profiled:
    """Profile a call of each example, scaled together to the time of a call of their mix."""
    if len(run) == 1:
        return kernels.profile(run[0], arena.device, call_s, limits, known)
    weights = mix_of(run, arena.workload).weights
    each_s = [median_interval([arena.once(call) for _ in range(CALLS)]).mid for call in run]
    scale = call_s / sum(weight * own_s for weight, own_s in zip(weights, each_s, strict=True))
    seen = [
        kernels.profile(call, arena.device, own_s * scale, limits, known)
        for call, own_s in zip(run, each_s, strict=True)
    ]
    return kernels.average_profiles(seen, weights)


def _dtype(workload: Workload) -> torch.dtype:
    """Return the dtype of the model's numbers, which determines its peak rate of FLOPs."""
    found = workload.examples[0].tensors()
    if isinstance(workload.call, torch.nn.Module):
        found = [*workload.call.parameters(), *found]
    return next((t.dtype for t in found if t.is_floating_point()), torch.get_default_dtype())
