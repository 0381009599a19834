"""A bisection on a terminal: the verdict, the smallest subgraph, the reproducer, and every probe."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from torchwise.records import format as show
from torchwise.records.bisection import Bisection, Observation, Operation, Symptom
from torchwise.report import document as doc
from torchwise.report.terminal import render_terminal

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
COLUMNS = (*doc.text_columns("probe", "result"), *doc.figure_columns("time"))


def describe_symptom(observation: Observation) -> str:
    """Return an observation as one line, such as "a crash (died in inductor: SIGSEGV)"."""
    if observation.symptom is Symptom.NONE:
        return "correct"
    return f"{SYMPTOMS[observation.symptom]} ({show.truncate(observation.detail, DETAIL)})"


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
    """Return a bisection for a terminal."""
    return render_terminal(bisection_document(bisection))


def bisection_document(bisection: Bisection) -> doc.Document:
    """Return the report on a bisection."""
    tone = doc.Tone.STRONG if bisection.found else doc.Tone.GOOD if bisection.is_comparable else doc.Tone.WARNING
    probes = tuple(
        doc.Row((step.what, describe_symptom(step.observation), show.seconds(step.seconds))) for step in bisection.steps
    )
    total = f"{show.pluralize(len(bisection.steps), 'probe')}, {show.seconds(bisection.seconds)} in total"
    blocks = (
        *(doc.Text(sentence, tone=tone) for sentence in verdict(bisection)),
        *_operations(bisection),
        *_repro(bisection),
        *(doc.Text(show.one_line(note), "note: ") for note in bisection.notes),
        doc.Table("Probes", COLUMNS, probes),
        doc.Text(total, tone=doc.Tone.MUTED),
    )
    return doc.Document("Bisection", blocks)


def _operations(bisection: Bisection) -> Iterator[doc.Block]:
    operations = bisection.subgraph.operations if bisection.subgraph else ()
    yield from (doc.Text(_describe_operation(operation)) for operation in operations[:MAX_OPERATIONS])
    if len(operations) > MAX_OPERATIONS:
        yield doc.Text(f"  … and {len(operations) - MAX_OPERATIONS} more", tone=doc.Tone.MUTED)


def _describe_operation(operation: Operation) -> str:
    source = f"\n      {operation.source}  {operation.line}" if operation.source else ""
    return f"  {operation.code}{source}"


def _repro(bisection: Bisection) -> Iterator[doc.Block]:
    if repro := bisection.repro:
        needs = "needs only torch" if repro.standalone else "needs Torchwise and the target"
        confirmed = "confirmed" if repro.confirmed else "NOT confirmed: it shows no fault when run separately"
        yield doc.Text(f"python {repro.file}  (reproducer {confirmed}; {needs})")
