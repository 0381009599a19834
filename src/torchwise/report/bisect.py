"""A bisection on a terminal: its progress, and its result."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchwise.records.bisection import Bisection, Observation, Operation, Step, Symptom
from torchwise.report import format as show
from torchwise.report.progress import Progress

STAGES = {
    "dynamo": "Dynamo, which turns Python into a graph",
    "aot_eager": "AOT autograd, which traces the graph down to ATen operators",
    "aot_eager_decomp_partition": "decompositions, common subexpressions or the partitioner of AOT autograd",
    "inductor": "Inductor, which optimises the graph and generates code",
    "plan": "the plan's own choices",
}
SYMPTOMS = {
    Symptom.NONE: "no fault",
    Symptom.NOT_COMPARABLE: "not comparable",
    Symptom.WRONG: "a wrong answer",
    Symptom.NAN: "values that are not finite",
    Symptom.CRASH: "a crash",
    Symptom.HANG: "a hang",
    Symptom.SLOW: "a slow-down",
}
MAX_OPERATIONS = 20
DETAIL = 160
LEADER = "no fault found yet"


class Silent:
    """A listener that shows nothing."""

    def note(self, *_: object, **__: object) -> None:
        """Show nothing."""

    start_probe = stage = finish_probe = note


class BisectProgress(Progress):
    """Listener of a bisection that shows the current probe, its duration, and each observation.

    Attributes:
        steps: the probes so far.
    """

    steps: tuple[Step, ...] = ()

    def start_probe(self, what: str) -> None:
        """Start a probe."""
        if not self.steps:
            self._leader = LEADER
        self._task, self._stage, self._task_start = show.one_line(what), "", self._clock()

    def finish_probe(self, step: Step) -> None:
        """Finish a probe."""
        self.steps = (*self.steps, step)
        if step.observation.is_fault and self._leader == LEADER:
            self._leader = f"the fault: {describe_symptom(step.observation)}"
        self._say(f"{show.one_line(step.what)}: {describe_symptom(step.observation)} ({show.seconds(step.seconds)})")
        self._task, self._stage = "", ""


def describe_symptom(observation: Observation) -> str:
    """Return an observation as one line, such as "a crash (died in inductor: SIGSEGV)"."""
    if observation.symptom is Symptom.NONE:
        return "correct"
    detail = show.truncate(show.one_line(observation.detail), DETAIL)
    return f"{SYMPTOMS[observation.symptom]} ({detail})"


def verdict(bisection: Bisection) -> list[str]:
    """Return the result, sentence by sentence."""
    if not bisection.found:
        return _no_fault(bisection)
    sentences = [
        f"The fault, {describe_symptom(bisection.observation)}, enters with {STAGES[bisection.stage or 'plan']}.",
    ]
    if cause := bisection.cause:
        place = f", application {cause.place} of {cause.of}" if cause.place else ""
        sentences.append(f"Its cause is the {cause.kind} {show.one_line(cause.name)}{place}: {cause.detail}.")
        if cause.workaround:
            sentences.append(f"Workaround: torch.compile(..., options={cause.workaround!r})")
    if part := bisection.subgraph:
        size = show.pluralize(len(part.operations), "operation")
        rest = "" if part.complete else ", and the budget ended before a smaller one was found"
        sentences.append(f"The smallest subgraph that shows it has {size} of {part.of}{rest}.")
    return sentences


def _no_fault(bisection: Bisection) -> list[str]:
    """Describe a bisection that found no fault, or whose answers could not be compared."""
    detail = show.one_line(bisection.observation.detail)
    if not bisection.is_comparable:
        return [
            f"Not comparable: {detail}.",
            "The compiled model ran without a crash and without a hang. It is unknown whether its answers are correct.",
        ]
    symptom = SYMPTOMS[Symptom(bisection.what)] if bisection.what in list(Symptom) else ""
    result = f"{symptom} did not occur" if symptom else "the compiled model gives correct answers"
    return [f"No fault found: {result}{f' ({detail})' if detail else ''}."]


def render_bisection(bisection: Bisection) -> RenderableType:
    """Return a bisection: the verdict, the smallest subgraph with its source lines, the reproducer, and every probe."""
    parts: list[RenderableType] = [
        Text("\n".join(verdict(bisection)), style=_style(bisection)),
        *_operations(bisection),
        *_repro(bisection),
        *(Text(f"note: {show.one_line(note)}") for note in bisection.notes),
        Text(""),
        _probe_table(bisection),
        Text(
            f"{show.pluralize(len(bisection.steps), 'probe')}, {show.seconds(bisection.seconds)} in total", style="dim"
        ),
    ]
    return Group(*parts)


def _style(bisection: Bisection) -> str:
    if not bisection.is_comparable:
        return "bold yellow"
    return "bold" if bisection.found else "bold green"


def _operations(bisection: Bisection) -> Iterator[RenderableType]:
    operations = bisection.subgraph.operations if bisection.subgraph else ()
    for operation in operations[:MAX_OPERATIONS]:
        yield Padding(Text(_operation(operation)), (0, 0, 0, 2))
    if len(operations) > MAX_OPERATIONS:
        yield Padding(Text(f"… and {len(operations) - MAX_OPERATIONS} more", style="dim"), (0, 0, 0, 2))


def _operation(operation: Operation) -> str:
    source = f"\n    {operation.source}  {operation.line}" if operation.source else ""
    return show.plain(f"{operation.code}{source}")


def _repro(bisection: Bisection) -> Iterator[RenderableType]:
    if repro := bisection.repro:
        needs = "needs only torch" if repro.standalone else "needs Torchwise and the target"
        confirmed = "confirmed" if repro.confirmed else "NOT confirmed: it shows no fault when run separately"
        yield Text(f"python {show.plain(repro.file)}  (reproducer {confirmed}; {needs})")


def _probe_table(bisection: Bisection) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("probe", overflow="fold")
    table.add_column("result", overflow="fold")
    table.add_column("time", justify="right")
    for step in bisection.steps:
        table.add_row(
            Text(show.one_line(step.what)), Text(describe_symptom(step.observation)), show.seconds(step.seconds)
        )
    return table
