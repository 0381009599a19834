"""What every view of an explanation says, in words."""

from __future__ import annotations

from pathlib import Path

from torchwise.records import Interval
from torchwise.records.explanation import Basis, Explanation, Finding, Kernel, Price, Tried
from torchwise.report import facts
from torchwise.report import format as show
from torchwise.report.command_line import command_line
from torchwise.report.commands import Step
from torchwise.workload.spec import LIVE

NOTHING = "Nothing was found that costs time worth naming."
NONE_SAVED = "saves nothing"


def headline(explanation: Explanation) -> str:
    """Return what was run, how long a call takes, and how that compares with eager."""
    what = "torch.compile" if explanation.plan is None else str(explanation.plan)
    call, speedup = explanation.measurement.candidate_time, show.speedup(explanation.measurement.speedup)
    return f"{explanation.workload.target} by {what}: {show.seconds(call.mid)} a call, {speedup} of eager's speed"


def place(explanation: Explanation) -> str:
    """Return where and when, in a line."""
    took = f"{show.seconds(explanation.seconds)} to explain"
    return facts.place(explanation.environment, facts.when(explanation.created_at), took)


def price(found: Price | None) -> str:
    """Return such as "saves 12.3 µs a call [11.9, 12.8], measured"; no saving is claimed that may be none."""
    if found is None:
        return "no price"
    words = [_each_call(found)]
    if found.once_s:
        once = f"saves {show.seconds(found.once_s)} once in each process"
        words = [once] if words == [NONE_SAVED] else [*words, once]
    return f"{' and '.join(words)}, {found.basis.value}"


def _each_call(found: Price) -> str:
    saved = found.per_call_s
    if saved.low == saved.high == 0:
        return NONE_SAVED
    if saved.low > 0:
        return f"saves {show.seconds(saved.mid)} a call {_ends(saved)}"
    if saved.high < 0:
        return f"costs {show.seconds(-saved.mid)} a call {_ends(Interval(-saved.high, -saved.mid, -saved.low))}"
    if found.basis is Basis.MEASURED:
        return f"saves nothing that shows: {show.seconds(saved.low)} to {show.seconds(saved.high)} a call"
    return f"saves at most {show.seconds(saved.high)} a call"


def _ends(interval: Interval) -> str:
    return f"[{show.seconds(interval.low)}, {show.seconds(interval.high)}]"


def tried(seen: Tried) -> str:
    """Return what came of a fix that was tried, such as "dynamic=True: compiled 9 times, …; it does not help"."""
    gain = f"; it {price(seen.price)}" if seen.helps and seen.price else ""
    return f"{seen.fix}: {seen.seen}{gain}{'' if seen.helps else '; it does not help'}"


def links(finding: Finding) -> list[tuple[str, str, str]]:
    """Return each place of a finding: its address, its name, and the line as it is written.

    A browser opens the file; editors go to the line, which they read behind the "#".
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
        words += f"; {show.counted(seen.guards, 'guard')}, {show.seconds(seen.guards_s)} under the profiler"
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
        show.NONE if kernel.flops is None else f"{show.three(kernel.flops / 1e6)} M",
        show.percent(kernel.share),
    )


def next_steps(explanation: Explanation, store: str | None = None) -> list[Step]:
    """Return what to type next, the most useful first; in `store` where one was named."""
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
    return finding.price is not None and finding.price.per_call_s.low > 0
