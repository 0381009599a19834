"""Possible causes of lost time: a finder reads the evidence, and has the saving of its fix measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torchwise.diagnose.evidence import COMPILED, Evidence, make_estimate
from torchwise.diagnose.findings_recompiles import find_recompile_limits, find_repeated
from torchwise.diagnose.findings_uncompiled import find_breaks, find_complex_numbers, find_fallbacks, find_rnn
from torchwise.diagnose.op_trace import Wait
from torchwise.diagnose.savings import Savings, share_saved_anywhere
from torchwise.plan import EAGER, Plan
from torchwise.plan.rules import CUDA_GRAPH_MODES
from torchwise.records import format as show
from torchwise.records.answer import Answer, Reliability
from torchwise.records.compile_events import UncompiledKind
from torchwise.records.explanation import Basis, Finding, Saving, SourceLocation, judge_measurement, make_saving, settle

MIN_KERNEL_SHARE = 0.10
"""Share of a call that a kernel must take to be reported."""
FAR = 0.5
"""Share of the roofline from which a kernel is near enough."""
MAX_KERNELS = 3
MIN_GUARD_SAVING = 0.005
"""Share of a call below which a saving is not reported."""
MIN_GUARD_SHARE = 0.01
"""Share of a call that guards must take under the profiler, which lengthens them, before a fix is tried."""


WITH_THE_PLAN = (
    "torchwise.apply with this plan: it checks a signature and a cheaper guard of the module instead, which notice "
    "every change that the guards would"
)
WITHOUT_GUARDS = (
    'compile with options={"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe} if the modules '
    "never change. A change would go unnoticed"
)
MIN_HOST_SHARE = 0.10
"""Share of a call from which waiting for the host is reported."""


def find(evidence: Evidence, savings: Savings) -> list[Finding]:
    """Return all findings. No saving exceeds the call, and none is claimed without a measurement."""
    call_s, trust = evidence.execution.call_s.mid, judge_measurement(evidence.measurement)
    is_timed = trust.reliability is not Reliability.UNUSABLE
    found = [finding for finder in FROM_EVIDENCE if is_timed or finder not in BY_TIME for finding in finder(evidence)]
    for finder in FROM_TRIALS:
        if is_timed or finder not in BY_TIME:
            found += finder(evidence, savings)
    return [withhold_advice(settle(finding, call_s, trust)) for finding in found]


def withhold_advice(finding: Finding) -> Finding:
    """Mark the advice whose timing showed no gain."""
    saving = finding.saving
    if saving is None or saving.basis is Basis.ESTIMATED or saving.answer is Answer.YES or saving.once_s:
        return finding
    is_certain = saving.answer is not Answer.INCONCLUSIVE
    lead = "Tried, and no saving was measured" if is_certain else "Not recommended, as no gain could be measured"
    return replace(finding, fix=f"{lead}: {finding.fix}")


def find_slower_run(evidence: Evidence) -> Iterator[Finding]:
    """Find a run whose whole interval of speed-ups over eager lies below 1."""
    measurement = evidence.measurement
    if measurement.speedup.high >= 1 or not measurement.speedup.is_usable or evidence.base.is_eager:
        return
    swapped = replace(measurement, candidate_s=measurement.baseline_s, baseline_s=measurement.candidate_s)
    in_eager = any(one.kind is UncompiledKind.RECOMPILE_LIMIT for one in evidence.watched.fallbacks)
    yield Finding(
        "slower than eager",
        f"compiled, it takes {1 / measurement.speedup.mid:.2f} times as long as in eager",
        "It was compiled too often, so PyTorch runs it in eager for good, after checking the guards of every version."
        if in_eager
        else "Guards, dispatch and the start of the generated code take longer here than compiling saves.",
        "keep it from being compiled again, or run it in eager"
        if in_eager
        else "run it in eager, or fix the other findings first",
        make_saving(share_saved_anywhere(swapped), evidence.execution.call_s.mid, "timed in alternation with eager"),
        plan=EAGER,
    )


def find_slow_kernels(evidence: Evidence) -> Iterator[Finding]:
    """Find the longest kernels that are far from the roofline."""
    call_s, count = evidence.execution.call_s.mid, 0
    for kernel in evidence.kernels:
        part = kernel.seconds / call_s
        slow = kernel.share is not None and kernel.share < FAR and part >= MIN_KERNEL_SHARE
        if not slow or count == MAX_KERNELS or kernel.share is None:
            continue
        count += 1
        most = kernel.seconds * (1 - kernel.share)
        yield Finding(
            "roofline",
            f"{kernel.name} reaches {kernel.share:.0%} of this hardware's peak",
            f"It takes {part:.0%} of a call in {kernel.calls:.3g} "
            f"launch{'es' * (round(kernel.calls) != 1)}. Small kernels do not fill the machine, and a library's kernel "
            "may not suit the shape.",
            "try larger batches, another memory format or lower precision: torchwise tune times them"
            if not kernel.generated
            else "run torchwise tune with --effort thorough, which times the compiler's own tuning of it",
            make_estimate(0.0, most / 4, most, "at most its time beyond the roofline can be saved"),
        )


def find_guards(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find guards that can be left out: safely with a plan if that is faster, or else at the user's risk."""
    execution = evidence.execution
    if evidence.plan is not None or not execution.guards or execution.guards_s < MIN_GUARD_SHARE * execution.call_s.mid:
        return
    plan = None if evidence.watched.breaks else COMPILED  # with graph breaks, a plan keeps the guards
    saving = savings.measure_plan(plan) if plan else None
    if saving is None or saving.per_call_s.low <= 0:  # checking every module may cost as much as the guards
        plan, saving = None, savings.measure_without_guards()
    if saving is None or saving.per_call_s.high <= MIN_GUARD_SAVING * execution.call_s.mid:
        return
    most = max(evidence.watched.compilations, key=lambda one: one.guards)
    yield Finding(
        "guards",
        f"{execution.guards:,} guards are checked on every call",
        "torch.compile checks on each call whether the module, its weights' shapes and the globals that it read have "
        f"changed since it compiled. {most.guards:,} of the guards belong to {most.function}.",
        WITH_THE_PLAN if plan else WITHOUT_GUARDS,
        saving,
        (SourceLocation(most.file, most.line, most.function),),
        plan,
    )


def find_host_time(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find a call in which the device waits for the host."""
    execution = evidence.execution
    if (
        execution.host_share < MIN_HOST_SHARE
        or evidence.base.capture != "none"
        or evidence.base.mode in CUDA_GRAPH_MODES
    ):
        return
    idle = max(
        execution.call_s.mid * execution.host_share - execution.guards_s, 0.0
    )  # guards have a saving of their own
    on_gpu = evidence.device == "cuda"
    launches = sum(kernel.calls for kernel in evidence.kernels)
    plan = evidence.captured
    yield Finding(
        "host-bound",
        f"in {execution.host_share:.0%} of a call no kernel runs",
        f"The host launches {launches:,.0f} kernels one by one, and the GPU waits for it."
        if on_gpu
        else f"Python, dispatch and guards around {launches:,.0f} kernels take "
        f"{show.seconds(execution.call_s.mid * execution.host_share)} of each call.",
        _describe_capture(plan)
        if on_gpu
        else "give it more work in each call, such as a larger batch, or remove the guards and graph breaks",
        _estimate_host_saving(evidence, savings, plan, idle),
        plan=plan,
    )


def _describe_capture(plan: Plan | None) -> str:
    if plan is None:
        return "give it more work in each call, such as a larger batch, or reduce the number of kernels"
    if plan.capture == "branches":
        return "the plan captures the call in several CUDA graphs, split where Python reads a value from the GPU"
    return "the plan captures the whole call in one CUDA graph, which the host replays in one launch"


def _estimate_host_saving(evidence: Evidence, savings: Savings, plan: Plan | None, idle: float) -> Saving:
    if plan is not None and (saving := savings.measure_plan(plan)):
        return saving
    busy = "GPU" if evidence.device == "cuda" else "kernels"
    return make_estimate(
        0.0, idle / 2, idle, f"at most the time of a call beyond that of its {busy} and guards can be saved"
    )


def find_waits(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find each line once. If a graph break lies on the same line, its finding has the saving."""
    plan = _find_static_plan(evidence) or _find_capture_plan(evidence, savings)
    broken = {(one.file, one.line) for one in evidence.watched.breaks}
    for wait in evidence.observed.waits:
        yield Finding(
            "synchronisation",
            f"the host waits for data: {wait.what}" + (f", {wait.times} times in a call" if wait.times > 1 else ""),
            "The program reads a tensor's value here, so the host waits for the device. A CUDA graph cannot "
            "contain that.",
            _describe_wait_fix(plan),
            _estimate_wait_saving(evidence, savings, wait, plan, (wait.place.file, wait.place.line) in broken),
            (wait.place,),
            plan,
        )


def _find_static_plan(evidence: Evidence) -> Plan | None:
    if not evidence.has_static_form or "static_form" in evidence.base.transforms:
        return None
    return evidence.with_choice("transforms", "static_form")


def _find_capture_plan(evidence: Evidence, savings: Savings) -> Plan | None:
    """Return the plan that captures the call around its waits, if there is one and it ran."""
    plan = evidence.captured
    if plan is None or not (plan.capture == "branches" or "numbers_on_gpu" in plan.transforms):
        return None
    return plan if savings.measure_plan(plan) else None


def _describe_wait_fix(plan: Plan | None) -> str:
    by_hand = "keep the decision on the device, with torch.where or a mask of fixed size, or remove it"
    if plan is None:
        return by_hand
    if "static_form" in plan.transforms:
        return "the plan's static_form uses the model's own form without this wait"
    if plan.capture == "branches":
        return f"the plan captures the code between these reads, once per branch. Or {by_hand}"
    return (
        "the plan's numbers_on_gpu keeps the number on the GPU and captures the call, without compiling it. Or compute "
        "with the tensor"
    )


def _estimate_wait_saving(
    evidence: Evidence, savings: Savings, wait: Wait, plan: Plan | None, broken: bool
) -> Saving | None:
    if plan is not None and (saving := savings.measure_plan(plan)):
        return saving
    if evidence.device == "cpu":
        reason = "the graph break there has the saving" if broken else "the device is the host itself"
        return make_estimate(0.0, 0.0, 0.0, f"the wait itself is short on a CPU: {reason}")
    idle = evidence.execution.call_s.mid * evidence.execution.host_share
    share = wait.times / max(sum(one.times for one in evidence.observed.waits), 1)
    return make_estimate(0.0, idle * share / 2, idle * share, "a share of the time in which the GPU is idle")


FROM_EVIDENCE: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    find_slower_run,
    find_fallbacks,
    find_slow_kernels,
)
"""These take their saving from the evidence."""
FROM_TRIALS: tuple[Callable[[Evidence, Savings], Iterator[Finding]], ...] = (
    find_recompile_limits,
    find_complex_numbers,
    find_rnn,
    find_breaks,
    find_guards,
    find_host_time,
    find_waits,
    find_repeated,
)
"""These have a fix tried, in the order in which they spend the budget: the largest savings come first."""
BY_TIME = (find_slower_run, find_slow_kernels, find_host_time)
"""These depend on times alone, and are left out if the call could not be timed."""
