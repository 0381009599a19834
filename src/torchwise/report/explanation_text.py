"""An explanation in words: its headline, its savings and fixes, and where the time of a call goes."""

from __future__ import annotations

from torchwise.records import Interval
from torchwise.records import format as show
from torchwise.records.answer import Answer
from torchwise.records.explanation import Basis, Explanation, FixTrial, Saving
from torchwise.report import facts

NOTHING = "No finding has a relevant potential saving."
NONE_SAVED = "saves nothing"
UNMEASURED = "could not be measured"


def headline(explanation: Explanation) -> str:
    """Return the plan, the time of a call, and its comparison with eager."""
    name = "torch.compile" if explanation.plan is None else str(explanation.plan)
    call, speedup = explanation.execution.call_s, explanation.measurement.speedup
    return (
        f"{explanation.workload.target} with {name}: {show.time(call)} per call, {show.speedup(speedup)} eager's speed"
    )


def order(explanation: Explanation) -> str:
    """Return the heading over the findings, which names their order."""
    return (
        "Findings, the largest potential saving first" if explanation.is_ranked else "Findings, not ordered by saving"
    )


def place(explanation: Explanation) -> str:
    """Return machine, date and duration of the explanation, in a line."""
    took = f"explained in {show.seconds(explanation.seconds)}"
    return facts.place(explanation.environment, facts.when(explanation.created_at), took)


def describe_saving(found: Saving | None) -> str:
    """Return such as "saves 12.3 µs per call [11.9, 12.8], measured". A saving that may be zero is not claimed."""
    if found is None:
        return "saving unknown"
    once = f"saves {show.seconds(found.once_s)} once in each process" if found.once_s else ""
    if found.answer is Answer.INCONCLUSIVE:
        return f"{once}, measured. Its saving per call {UNMEASURED}" if once else UNMEASURED
    is_once_alone = bool(once) and found.per_call_s.high == 0
    words = [once] if is_once_alone else [_each_call(found), *([once] if once else [])]
    return f"{' and '.join(words)}, {found.basis.value}"


def gains(found: Saving | None) -> bool:
    """Whether a positive saving was measured, so that it may be shown in green."""
    return found is not None and found.basis is Basis.MEASURED and (found.answer is Answer.YES or found.once_s > 0)


def _each_call(found: Saving) -> str:
    saved = found.per_call_s
    if saved.high == 0:
        return NONE_SAVED
    if saved.low > 0:
        return f"saves {show.seconds(saved.mid)} per call {_ends(saved)}"
    if saved.high < 0:
        return f"costs {show.seconds(-saved.mid)} per call {_ends(Interval(-saved.high, -saved.mid, -saved.low))}"
    prefix = "saves nothing measurable: at most" if found.basis is Basis.MEASURED else "saves at most"
    return f"{prefix} {show.seconds(saved.high)} per call"


def _ends(interval: Interval) -> str:
    return f"[{show.seconds(interval.low)}, {show.seconds(interval.high)}]"


def describe_fix(attempt: FixTrial) -> str:
    """Return the result of an attempted fix, such as "dynamic=True: compiled 9 times, …; it does not help"."""
    words = f"{attempt.fix}: {attempt.seen}"
    if attempt.saving and attempt.saving.answer is Answer.INCONCLUSIVE and not attempt.helps:
        return f"{words}; its saving {UNMEASURED}"
    if attempt.saving and (attempt.helps or attempt.saving.answer is not Answer.YES):
        words += f"; it {describe_saving(attempt.saving)}"
    return words if attempt.helps else f"{words}; it does not help"


def execution(explanation: Explanation) -> str:
    """Return the shares of kernels, host and guards in a call's time, as text."""
    timed = explanation.execution
    words = f"Kernels run for {show.seconds(timed.busy_s)} of the {show.seconds(timed.call_s.mid)} of a call, "
    words += f"and only the host works for the remaining {show.percent(timed.host_share)}."
    if timed.guards:
        words += f" {show.pluralize(timed.guards, 'guard')} take about {show.seconds(timed.guards_s)}."
    if timed.is_rough:
        words += (
            f" Under the profiler the call took {show.ratio(timed.inflation)} its normal time. So times of kernels and "
            "guards are scaled to the timed call, and only rough."
        )
    return words


def capturable(explanation: Explanation) -> str:
    """Say whether the call can be captured as one CUDA graph, and why not."""
    found = explanation.capturable
    answer = {True: "can be captured", False: "cannot be captured", None: "was not captured"}[found.answer]
    reasons = f": {'; '.join(found.reasons)}" if found.reasons else ""
    return show.one_line(f"The call {answer} as one CUDA graph{reasons}.")
