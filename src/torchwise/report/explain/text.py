"""Texts that every view of an explanation shows."""

from __future__ import annotations

from pathlib import Path

from torchwise.records import Interval
from torchwise.records.answer import Answer
from torchwise.records.explanation import Basis, Explanation, Finding, FixTrial, Kernel, Saving
from torchwise.report import format as show
from torchwise.report import summary
from torchwise.report.command_line import command_line
from torchwise.report.commands import Step
from torchwise.workload.spec import LIVE

NOTHING = "Nothing was found that costs time worth naming."
NONE_SAVED = "saves nothing"
UNTOLD = "could not be measured"


def headline(explanation: Explanation) -> str:
    """Return the plan, the time of a call, and its comparison with eager."""
    what = "torch.compile" if explanation.plan is None else str(explanation.plan)
    call, speedup = explanation.execution.call_s, explanation.measurement.speedup
    return (
        f"{explanation.workload.target} by {what}: {show.time(call)} a call, {show.speedup(speedup)} of eager's speed"
    )


def order(explanation: Explanation) -> str:
    """Return the heading over the findings, which names their order."""
    return "Findings, the largest potential saving first" if explanation.is_ranked else "Findings, in no order"


def place(explanation: Explanation) -> str:
    """Return where and when, in a line."""
    took = f"{show.seconds(explanation.seconds)} to explain"
    return summary.place(explanation.environment, summary.when(explanation.created_at), took)


def describe_saving(found: Saving | None) -> str:
    """Return such as "saves 12.3 µs a call [11.9, 12.8], measured". It claims no saving that may be none."""
    if found is None:
        return "no price"
    once = f"saves {show.seconds(found.once_s)} once in each process" if found.once_s else ""
    if found.answer is Answer.INCONCLUSIVE:
        return f"{once}, measured; its saving in each call {UNTOLD}" if once else UNTOLD
    words = [_each_call(found)]
    if once:
        words = [once] if words == [NONE_SAVED] else [*words, once]
    return f"{' and '.join(words)}, {found.basis.value}"


def gains(found: Saving | None) -> bool:
    """Whether a saving was measured, so that it may be marked as good news."""
    return found is not None and found.basis is Basis.MEASURED and (found.answer is Answer.YES or found.once_s > 0)


def _each_call(found: Saving) -> str:
    saved = found.per_call_s
    if saved.high == 0:
        return NONE_SAVED
    if saved.low > 0:
        return f"saves {show.seconds(saved.mid)} a call {_ends(saved)}"
    if saved.high < 0:
        return f"costs {show.seconds(-saved.mid)} a call {_ends(Interval(-saved.high, -saved.mid, -saved.low))}"
    shows = "saves nothing that shows: at most" if found.basis is Basis.MEASURED else "saves at most"
    return f"{shows} {show.seconds(saved.high)} a call"


def _ends(interval: Interval) -> str:
    return f"[{show.seconds(interval.low)}, {show.seconds(interval.high)}]"


def describe_fix(seen: FixTrial) -> str:
    """Return the result of an attempted fix, such as "dynamic=True: compiled 9 times, …; it does not help"."""
    words = f"{seen.fix}: {seen.seen}"
    if seen.saving and seen.saving.answer is Answer.INCONCLUSIVE and not seen.helps:
        return f"{words}; what it saves {UNTOLD}"
    if seen.saving and (seen.helps or seen.saving.answer is not Answer.YES):
        words += f"; it {describe_saving(seen.saving)}"
    return words if seen.helps else f"{words}; it does not help"


def links(finding: Finding) -> list[tuple[str, str, str]]:
    """Return each place of a finding: its address, its name, and its source line.

    A browser opens the file. Editors also go to the line, which they read after the "#".
    """
    return [(_address(p.file, p.line), str(p), p.excerpt) for p in finding.places]


def _address(file: str, line: int) -> str:
    return f"{Path(file).as_uri()}{f'#L{line}' if line else ''}" if Path(file).is_absolute() else ""


def execution(explanation: Explanation) -> str:
    """Return where a call's time goes, in a sentence."""
    seen = explanation.execution
    words = f"Of {show.seconds(seen.call_s.mid)} a kernel runs for {show.seconds(seen.busy_s)}"
    words += f" and the host is alone for {show.percent(seen.host_share)}"
    if seen.guards:
        words += f"; {show.pluralize(seen.guards, 'guard')} take about {show.seconds(seen.guards_s)}"
    if seen.is_rough:
        words += (
            f". Under the profiler the call took {show.ratio(seen.inflation)} its time: kernels and guards are scaled "
            "to the timed call, and no more than a hint"
        )
    return words + "."


def capturable(explanation: Explanation) -> str:
    """Return whether the call can be one CUDA graph, and why not."""
    found = explanation.capturable
    answer = {True: "can be captured", False: "cannot be captured", None: "was not tried"}[found.answer]
    reasons = f": {'; '.join(found.reasons)}" if found.reasons else ""
    return show.one_line(f"As one CUDA graph the call {answer}{reasons}.")


def cells(kernel: Kernel) -> tuple[str, ...]:
    """Return a kernel as the cells of a row."""
    return (
        show.one_line(kernel.name),
        show.three(kernel.calls),
        show.seconds(kernel.seconds),
        show.size(kernel.nbytes),
        show.NONE if kernel.flops is None else f"{show.three(kernel.flops / 1e6)} M" if kernel.flops else "0",
        "unknown" if kernel.share is None else show.percent(kernel.share),
    )


def next_steps(explanation: Explanation, store: str | None = None) -> list[Step]:
    """Return the next commands, the most useful first. They use `store` if one was named."""
    kept = () if store is None else ("--store", store)
    spec = explanation.workload
    if spec.target.startswith(LIVE):
        return [Step("torchwise.tune(model, inputs)", "proves and times what is proposed here, and more")]
    plans = [f.plan for f in explanation.findings if f.plan is not None and not f.plan.is_eager and _pays(f)]
    first = [
        Step(command_line("tune", spec, "--plan", p.to_json(), *kept), "proves the dearest mend") for p in plans[:1]
    ]
    return [*first, Step(command_line("tune", spec, *kept), "tries every plan that could pay, and decides")]


def _pays(finding: Finding) -> bool:
    return finding.saving is not None and finding.saving.answer is Answer.YES
