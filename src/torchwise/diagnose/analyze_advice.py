"""The advice of an analysis: each rule covers one topic, and returns nothing if its figures are unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torchwise.records import Interval, Outcome
from torchwise.records import format as show
from torchwise.records.analysis import MARGIN, Advice, Analysis, BatchFigures
from torchwise.records.answer import Answer, exceeds
from torchwise.records.reasons import own_fault

Rule = Callable[[Analysis], str]
"""Returns a sentence or two, or an empty text if there is nothing to say."""

DRIFTED, TAILED = 0.10, 1.5
"""Relative drift, and ratio of 99th percentile to median, from which each is reported."""
WARM_SAVES, MIN_COLD_S = 0.7, 1.0
"""Share of the cold cost up to which a warm start is recommended, and the fewest cold seconds that are reported."""
MORE_MEMORY = 0.1
"""Share of eager's peak from which a memory difference is reported."""
WAITS = 0.3
"""Share of a call from which the GPU's waiting for the host is reported."""
SHORTER = 0.9
"""Share of a smaller batch's time below which a larger batch's time cannot be due to the batch."""
GROWS = 1.1
"""Gain in throughput from one batch size to the next below which it no longer grows."""


def advise(analysis: Analysis) -> tuple[Advice, ...]:
    """Return the advice.

    The first sentence says whether to use the plan at all. Unknown figures lead to no advice.
    """
    if analysis.answer is Answer.INCONCLUSIVE:
        return (Advice(use.__name__, use(analysis)),)
    found = ((rule.__name__, rule(analysis)) for rule in RULES)
    return tuple(Advice(name, text) for name, text in found if text)


def use(analysis: Analysis) -> str:
    """Say whether to use the plan at all."""
    trial, name = analysis.trial, str(analysis.plan)
    if trial.failure or trial.verdict is None or trial.verdict.outcome is not Outcome.PASS:
        return f"Do not use {name}: {own_fault(trial)}."
    if analysis.plan.is_eager:
        return "This plan is eager: nothing is compiled, so there is no compile time to pay back."
    return _describe_benefit(analysis, name)


def _describe_benefit(analysis: Analysis, name: str) -> str:
    speed, pays, expected = analysis.speedup, analysis.break_even_calls, analysis.workload.calls
    assert speed is not None, "a verified plan was timed"
    if exceeds(speed) is Answer.INCONCLUSIVE:
        return (
            f"Inconclusive: the speed-up of {name} over eager, {show.speedup(speed)}, is too uncertain. Analyze it "
            "again when nothing else runs, or with --effort thorough."
        )
    if speed.high < 1:
        return f"Keep the original model: {name} is slower, with a speed-up over eager of {show.speedup(speed)}."
    if exceeds(speed) is Answer.NO or pays is None:
        return f"Keep the original model: {name} is not clearly faster, with a speed-up of {show.speedup(speed)}."
    overhead = show.seconds(analysis.cost_model.overhead(analysis.trial))
    if analysis.answer is Answer.INCONCLUSIVE:
        return (
            f"Inconclusive: {name} pays back its {overhead} of compiling after {show.count(pays.low)} to "
            f"{show.count(pays.high)} calls, and {show.count(expected)} are expected."
        )
    if not speed.is_usable:
        return _describe_lower_bound(analysis, name, speed)
    gain = analysis.cost_model.baseline_s - analysis.cost_model.seconds_per_call(analysis.tried).mid
    after = "from the first call on" if pays.mid < 1 else f"after {show.pluralize(pays.mid, 'call')}"
    saves = f"it saves {show.seconds(gain)} a call and pays back its {overhead} of compiling {after}"
    if analysis.answer is Answer.NO:
        return f"Keep the original model for {show.pluralize(expected, 'call')}. With {name} {saves}."
    saved = f"Over the expected {show.pluralize(expected, 'call')} it saves {show.seconds(analysis.saved_s)}"
    return f"Use {name}: {saves}. {saved}."


def _describe_lower_bound(analysis: Analysis, name: str, speed: Interval) -> str:
    """Give the certain part of a plan's speed-up when there is no single figure for it."""
    calls = show.pluralize(analysis.workload.calls, "call")
    if analysis.answer is Answer.NO:
        return f"Keep the original model for {calls}: {name} is faster, but does not pay back its compiling so soon."
    saved = show.seconds(analysis.saved_s)
    return f"Use {name}: its speed-up over eager is {show.speedup(speed)}, and it saves at least {saved} over {calls}."


def earns(analysis: Analysis) -> str:
    """Grade the plan in one word, with the return on its compiling and the probability that it does not pay."""
    if analysis.answer is not Answer.YES or not analysis.speedup or not analysis.speedup.is_usable:
        return ""
    earned, risk = analysis.return_on_compiling, analysis.probability_of_loss
    if earned is None or risk is None or analysis.grade is None:
        return ""
    return (
        f"The plan is {analysis.grade}: its compiling returns {show.percent(earned.mid)} over the expected calls. "
        f"The probability that it does not pay is {show.probability(risk)}."
    )


def few_calls(analysis: Analysis) -> str:
    """Name the number of calls under which compiling does not pay."""
    pays = analysis.break_even_calls
    if pays is None or pays.mid < 1 or analysis.plan.backend == "eager" or not analysis.speedup:
        return ""
    if exceeds(analysis.speedup) is not Answer.YES or not analysis.speedup.is_usable:
        return ""
    return (
        f"Do not compile for fewer than {show.pluralize(pays.mid, 'call')} ({show.count(pays.low)} to "
        f"{show.count(pays.high)} by the 95 % interval of the speed-up)."
    )


def warm_start(analysis: Analysis) -> str:
    """Say how much keeping the compile caches saves at each start."""
    costs = analysis.trial.costs
    if costs is None or costs.warm_s is None or costs.cold_s < MIN_COLD_S:
        return ""
    figures = f"{show.seconds(costs.warm_s)} in place of {show.seconds(costs.cold_s)}"
    if costs.warm_s > WARM_SAVES * costs.cold_s:
        return f"A warm start saves little: {figures}. Each restart spends nearly the whole compile time again."
    return (
        f"A warm start saves {show.seconds(costs.cold_s - costs.warm_s)}: {figures}. Keep the compile caches between "
        f"starts (TORCHINDUCTOR_CACHE_DIR, {show.size(costs.cache_bytes)})."
    )


def tail(analysis: Analysis) -> str:
    """Say that some calls take much longer than most, and whether the plan causes that."""
    if analysis.calls is None:
        return ""
    plan, eager = analysis.calls
    plan_ratio = plan.quantile(0.99) / plan.quantile(0.5)
    if plan_ratio < TAILED:
        return ""
    eager_ratio = eager.quantile(0.99) / eager.quantile(0.5)
    cause = (
        "Eager's calls vary as much: the cause is the machine or the model"
        if eager_ratio >= plan_ratio / TAILED
        else f"Eager's take only {show.ratio(eager_ratio)} its median: the cause is the plan"
    )
    return (
        f"One call in a hundred takes {show.seconds(plan.quantile(0.99))} or more, {show.ratio(plan_ratio)} the "
        f"median. {cause}."
    )


def drift(analysis: Analysis) -> str:
    """Say that calls of the plan became slower or faster during the measurement, while eager's did not."""
    if analysis.steady is None or abs(moved := analysis.steady.plan.drift) < DRIFTED:
        return ""
    if abs(analysis.steady.baseline.drift) >= DRIFTED:  # the machine's clock or load changed
        return ""
    word = "longer" if moved > 0 else "shorter"
    if moved >= 9:  # a percentage would only be a large number
        return f"Calls took {show.three(1 + moved)} times as long in the last third as in the first. Eager's did not."
    return f"Calls became {show.percent(abs(moved))} {word} from the first third to the last. Eager's did not."


def memory(analysis: Analysis) -> str:
    """Say how much memory to reserve, and how much the plan needs beyond eager."""
    if analysis.steady is None or (reserve := analysis.steady.memory.reserve) is None:
        return ""
    used, more = analysis.steady.memory, ""
    if used.overhead is not None and used.baseline_call and abs(used.overhead) > MORE_MEMORY * used.baseline_call:
        word = "more" if used.overhead > 0 else "less"
        more = f" A call needs {show.size(abs(used.overhead))} {word} than eager's {show.size(used.baseline_call)}."
    others = "CUDA's own context" if analysis.workload.device == "cuda" else "Python and PyTorch themselves"
    return f"Reserve {show.size(reserve)} in addition to {others}: {show.percent(MARGIN)} above the peak seen.{more}"


def waits(analysis: Analysis) -> str:
    """Say that the GPU waits for the host, and how to avoid that."""
    timed = analysis.trial.measurement
    if timed is None or timed.launch_share < WAITS or analysis.plan.capture != "none":
        return ""
    return (
        f"The GPU waits for the host during {show.percent(timed.launch_share)} of a call. CUDA graphs can help: try "
        "--plan reduce-overhead, or `torchwise tune`."
    )


def batches(analysis: Analysis) -> str:
    """Say how much a larger batch costs, and where throughput stops growing."""
    timed = analysis.batch_figures
    if len(timed) < 2 or not all(figures.speedup.is_usable and figures.is_comparable for figures in timed):
        return ""
    if any(later.time.mid < SHORTER * one.time.mid for one, later in pairwise(timed)):
        return ""  # the plan is timed by itself at each size, and the machine changed meanwhile
    first, last = timed[0], timed[-1]
    gained = last.throughput / first.throughput
    text = (
        f"A batch of {last.size} takes {show.ratio(last.time.mid / first.time.mid)} the time of a batch of "
        f"{first.size}, with {show.ratio(gained)} its throughput."
    )
    best = max(timed, key=lambda figures: figures.throughput)
    stops = _stops_growing(timed)
    if best is not last:
        text += f" Batch {best.size} has the highest throughput, {show.three(best.throughput)} items per second."
    elif stops is not None:
        text += f" Beyond batch {stops.size} throughput hardly grows."
    return text


def batches_lost(analysis: Analysis) -> str:
    """Name the batch sizes at which the plan is certainly slower than eager, if it is not at the others."""
    timed = analysis.batch_figures
    slower = [figures for figures in timed if figures.speedup.high < 1]
    if not slower or len(slower) == len(timed):
        return ""
    names = ", ".join(f"{figures.size} ({show.speedup(figures.speedup)})" for figures in slower)
    return f"At some batch sizes the plan is slower than eager: {names}."


def _stops_growing(timed: Sequence[BatchFigures]) -> BatchFigures | None:
    """Return the first batch size from which on every larger one gains less than a tenth over the one before."""
    growing = [later.throughput >= GROWS * one.throughput for one, later in pairwise(timed)]
    if growing and not growing[-1]:
        last = max((place + 1 for place, grows in enumerate(growing) if grows), default=0)
        return timed[last]
    return None


RULES: tuple[Rule, ...] = (use, earns, few_calls, warm_start, tail, drift, memory, waits, batches, batches_lost)
