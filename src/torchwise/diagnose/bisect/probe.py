"""The worker's side: compile up to one stage, verify against eager and, if requested, time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from torchwise.compile import compile_plan
from torchwise.compile.backends.inductor import count_compiled_graphs
from torchwise.compile.uncompiled_reason import why_uncompiled
from torchwise.diagnose.bisect import private
from torchwise.diagnose.bisect.capture import capture, extract_subgraph
from torchwise.diagnose.bisect.job import Probe, ProbeResult
from torchwise.errors import BaselineError, InputError
from torchwise.measure import Clock, Precision, measure_pair
from torchwise.plan import EAGER, Trait
from torchwise.records import Measurement, Outcome, Verdict
from torchwise.records.bisection import Observation, Symptom
from torchwise.trial.inspection import mix_of
from torchwise.trial.loading import load, refuse_step, runner
from torchwise.trial.plain_call import PlainCall, run_plainly
from torchwise.verify import Subject, is_stochastic, verify
from torchwise.workload import Example, Workload

BACKENDS = {"dynamo": "eager"}
"""PyTorch's name of a stage, if it differs from ours."""
SLOWER = 1.1
"""Multiple of eager's time from which on a right answer counts as slow.

The whole interval must lie beyond it.
"""
PRECISION = Precision(half_width=0.03, budget_s=3.0)


def run_probe(order: Probe, stage: Callable[[str], None]) -> ProbeResult:
    """Run eager, then the stage, and compare the two with the float64 reference.

    Raises:
        BaselineError: eager itself raises, or is not finite where the reference is.
        InputError: nothing of the model is compiled, so that there is nothing to bisect.
    """
    stage("load")
    workload = subject(order)
    switches = private.Switches(order.most)
    switches.install()
    before = count_compiled_graphs()
    stage("eager")
    with torch.set_grad_enabled(_trains(order)):
        once = run_plainly(workload, order.job.workload.mode)
        stochastic = _draws(workload, once) if order.stage == "eager" else order.stochastic
    order = replace(order, job=replace(order.job, traits=once.traits))
    if order.stage == "eager":
        return ProbeResult(_baseline(workload, order), stochastic=stochastic)
    stage(order.stage)
    candidate = build(workload, order)
    verdict = _verdict(workload, candidate, order)
    if order.stage != "plan" and count_compiled_graphs() == before:
        with torch.set_grad_enabled(_trains(order)):
            why = why_uncompiled(workload.call, workload.examples[0])
        raise InputError(f"nothing of the model is compiled: {why}")
    sighting = classify_verdict(verdict)
    if not sighting.is_fault and order.timed:
        stage(f"{order.stage}, timed")
        sighting = _pace(_measure(workload, candidate, order))
    return ProbeResult(sighting, switches.applied, stochastic)


def subject(order: Probe) -> Workload:
    """Return the subject of the probe: the whole model, or a part of one of its graphs."""
    workload = load(order.job)
    refuse_step(workload, "bisect")
    if order.part is None:
        return workload
    graphs = capture(workload, training=_trains(order))
    return extract_subgraph(graphs[order.part.graph], order.part)


def build(workload: Workload, order: Probe) -> Callable[..., Any]:
    """Return the model, compiled up to the order's stage on its first call."""
    plan = order.job.plan
    if order.stage == "plan":
        wanted, mode = order.job.workload, order.job.workload.mode
        return compile_plan(workload.call, plan, workload.examples[0], device=wanted.device, mode=mode).call
    if "cse" in order.options:
        private.set_cse(bool(order.options["cse"]))
    if order.stage != "inductor":
        backend = BACKENDS.get(order.stage, order.stage)
        return _compile(workload.call, order, backend=backend)
    return _compile(workload.call, order, options=inductor_options(order))


def inductor_options(order: Probe) -> dict[str, Any]:
    """Return the options of the plan with those of the order on top, as far as this torch has them.

    Freezing is set for the process, as PyTorch ignores it here.
    """
    plan, known = order.job.plan, private.inductor_options()
    mode = torch._inductor.list_mode_options()[plan.mode]
    found = {**mode, **dict(plan.options), **order.options}
    if order.stochastic:
        found["fallback_random"] = True
    private.set_freezing(bool(found.pop("freezing", False)))
    return {name: value for name, value in found.items() if name in known}


def classify_verdict(verdict: Verdict) -> Observation:
    """Turn a verdict into an observed symptom."""
    if verdict.outcome is not Outcome.FAIL:
        right = verdict.outcome is Outcome.PASS
        return Observation(Symptom.NONE if right else Symptom.NOT_COMPARABLE, verdict.reason)
    lost = any("finite" in check.detail or "NaN" in check.detail for check in verdict.checks)
    return Observation(Symptom.NAN if lost else Symptom.WRONG, verdict.reason)


def _compile(call: Callable[..., Any], order: Probe, **how: Any) -> Callable[..., Any]:
    dynamic = None if order.job.plan == EAGER else order.job.plan.shapes == "dynamic"
    compiled: Callable[..., Any] = torch.compile(call, dynamic=dynamic, **how)
    return compiled


def _draws(workload: Workload, once: PlainCall) -> bool:
    """Return whether a call draws random numbers."""
    call = runner(workload.call, workload.examples[0], "inference", original=workload.call, restores=bool(once.traits))
    return is_stochastic(call, workload.call)[0]


def _baseline(workload: Workload, order: Probe) -> Observation:
    sighting = classify_verdict(_verdict(workload, workload.call, order))
    if sighting.is_fault:
        raise BaselineError(f"the model itself, run plainly, is not right by its float64 reference: {sighting.detail}")
    return sighting


def _verdict(workload: Workload, candidate: Callable[..., Any], order: Probe) -> Verdict:
    """Judge on the examples alone: a repro could not show a fault that only other inputs show."""
    floor, plan = workload.call, order.job.plan
    if order.stage == "plan" and plan.precision != "native":
        eager = replace(order, job=replace(order.job, plan=replace(EAGER, precision=plan.precision)))
        floor = build(workload, eager)
    precision = plan.precision if order.stage == "plan" else "native"
    stateful = Trait.STATEFUL in order.job.traits
    judged = Subject(workload, candidate, floor, precision, training=_trains(order), stateful=stateful)
    with torch.set_grad_enabled(_trains(order)):
        return verify(judged, extra_draws=0)


def _measure(workload: Workload, candidate: Callable[..., Any], order: Probe) -> Measurement:
    wanted = order.job.workload
    clock = Clock(wanted.device, each=wanted.objective != "throughput")

    def make_runner(call: Callable[..., Any], example: Example) -> Callable[[], Any]:
        return runner(call, example, wanted.mode, original=workload.call, restores=bool(order.job.traits))

    with torch.set_grad_enabled(_trains(order)):
        sides = [
            mix_of([make_runner(call, example) for example in workload.examples], workload)
            for call in (candidate, workload.call)
        ]
        return measure_pair(sides[0], sides[1], clock, PRECISION)


def _pace(measurement: Measurement) -> Observation:
    speedup = measurement.speedup
    slower = f"{1 / speedup.mid:.2f} [{1 / speedup.high:.2f}, {1 / speedup.low:.2f}] times eager's time"
    return Observation(Symptom.SLOW if speedup.high * SLOWER < 1 else Symptom.NONE, f"a call takes {slower}")


def _trains(order: Probe) -> bool:
    return order.job.workload.mode == "training"
