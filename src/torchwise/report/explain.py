"""An explanation on a terminal and as a page: the dearest finding first, then where the time goes."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchwise.records import Interval
from torchwise.records.explanation import Basis, Explanation, Finding, Kernel, Price
from torchwise.report import format as show
from torchwise.report.facts import when
from torchwise.report.json_export import write_whole

TEMPLATE = "explain.html.j2"
MOST_KERNELS = 12
NOTHING = "Nothing was found that costs time worth naming."


def render_explanation(explanation: Explanation) -> RenderableType:
    """Return an explanation: the call, the findings, the stages, the kernels, and what to type next."""
    parts: list[RenderableType] = [
        Text(show.one_line(headline(explanation)), style="bold"),
        Text(place(explanation), style="dim"),
        Text("\nFindings, the dearest first", style="bold"),
    ]
    parts += [_finding(number, one) for number, one in enumerate(explanation.findings, 1)] or [_hanging(NOTHING)]
    parts += [Text("\nStages", style="bold"), _stages(explanation)]
    parts += [Text("\nKernels of one call", style="bold"), _kernels(explanation.kernels[:MOST_KERNELS])]
    if left := explanation.kernels[MOST_KERNELS:]:
        total = sum(kernel.seconds for kernel in left)
        parts.append(_hanging(f"and {len(left):,} more, {show.seconds(total)} together"))
    parts.append(_hanging(execution(explanation)))
    parts.append(_hanging(capturable(explanation)))
    for title, lines in (("Worth knowing", explanation.notes), ("Next", next_commands(explanation))):
        if lines:
            parts += [Text(f"\n{title}", style="bold"), *(_hanging(show.plain(line)) for line in lines)]
    return Group(*parts)


def render_explanation_html(explanation: Explanation) -> str:
    """Return an explanation as a self-contained page. The same explanation always gives the same page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("torchwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: show.plain(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css = files("torchwise.report").joinpath("templates/report.css").read_text(encoding="utf-8")
    return environment.get_template(TEMPLATE).render(
        told=explanation,
        show=show,
        css=Markup(css),
        headline=headline(explanation),
        place=place(explanation),
        price=price,
        links=links,
        kernels=[cells(kernel) for kernel in explanation.kernels],
        execution=execution(explanation),
        capturable=capturable(explanation),
        nothing=NOTHING,
        steps=next_commands(explanation),
    )


def write_explanation(explanation: Explanation, *, html: Path | None = None, json: Path | None = None) -> None:
    """Write a page, or schema `torchwise.explanation/1`, each whole or not at all.

    Raises:
        StorageError: a file cannot be written.
    """
    if html:
        write_whole(render_explanation_html(explanation), html)
    if json:
        write_whole(explanation.to_json() + "\n", json)


def headline(explanation: Explanation) -> str:
    """Return what was run, how long a call takes, and how that compares with eager."""
    what = "torch.compile" if explanation.plan is None else str(explanation.plan)
    call, speedup = explanation.measurement.candidate_time, show.speedup(explanation.measurement.speedup)
    return f"{explanation.workload.target} by {what}: {show.seconds(call.mid)} a call, {speedup} of eager's speed"


def place(explanation: Explanation) -> str:
    """Return where and when, in a line."""
    here = explanation.environment
    words = [here.gpu or here.cpu, f"torch {here.torch}", when(explanation.created_at)]
    words.append(f"{show.seconds(explanation.seconds)} to explain")
    return show.one_line(", ".join(filter(None, words)))


def price(found: Price | None) -> str:
    """Return such as "saves 12.3 µs a call [11.9, 12.8], measured"."""
    if found is None:
        return "no price"
    per_call = found.per_call_s
    words = []
    if per_call.high or per_call.low or not found.once_s:
        verb = "costs" if per_call.high < 0 else "saves"
        sign = -1 if per_call.high < 0 else 1
        ends = _ends(per_call, sign)
        words.append(f"{verb} {show.seconds(sign * per_call.mid)} a call {ends}")
    if found.once_s:
        words.append(f"{'and' if words else 'saves'} {show.seconds(found.once_s)} once in each process")
    return f"{' '.join(words)}, {found.basis.value}"


def _ends(interval: Interval, sign: int) -> str:
    low, high = sorted((sign * interval.low, sign * interval.high))
    return f"[{show.seconds(low)}, {show.seconds(high)}]"


def links(finding: Finding) -> list[tuple[str, str, str]]:
    """Return each place of a finding: its address, its name, and the line as it is written."""
    return [(Path(p.file).as_uri() if Path(p.file).is_absolute() else "", str(p), p.excerpt) for p in finding.places]


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


def next_commands(explanation: Explanation) -> list[str]:
    """Return the commands that make sense next, the most useful first."""
    target = explanation.workload.target
    if target.startswith("live:"):
        return ["torchwise.tune(model, inputs) proves and times what is proposed here, and more"]
    plans = [f.plan for f in explanation.findings if f.plan is not None and not f.plan.is_eager and _pays(f)]
    found = [f"torchwise tune {target} --plan '{plans[0].to_json()}'"] if plans else []
    return [*found, f"torchwise tune {target}"]


def _pays(finding: Finding) -> bool:
    return finding.price is not None and finding.price.per_call_s.low > 0


def _finding(number: int, one: Finding) -> RenderableType:
    style = "green" if one.price and one.price.basis is Basis.MEASURED else "yellow"
    lines: list[RenderableType] = [
        Text.assemble((f"{number}. {show.plain(one.title)}", "bold"), "  ", (price(one.price), style))
    ]
    for spot in one.places:
        lines.append(_hanging(show.one_line(str(spot)), style="cyan"))
        if spot.excerpt:
            lines.append(_hanging(show.clipped(spot.excerpt, 200), indent=4, style="dim"))
    lines.append(_hanging(show.plain(one.cause)))
    lines.append(_hanging(show.plain(one.mend), "Mend: "))
    if one.price:
        lines.append(_hanging(show.plain(one.price.how), "Price: ", "dim"))
    return Padding(Group(*lines), (0, 0, 1, 0))


def _stages(explanation: Explanation) -> RenderableType:
    table = _table(("stage", False), ("time", True), ("in", False), ("out", False))
    for stage in explanation.stages:
        out = "; ".join((stage.came_out, *(_files(stage.artefacts))))
        table.add_row(*map(Text, (stage.name, show.seconds(stage.seconds), stage.went_in, out)))
    return table


def _files(names: tuple[str, ...]) -> list[str]:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return [", ".join(names[:2]) + more] if names else []


def _kernels(kernels: tuple[Kernel, ...]) -> RenderableType:
    table = _table(("kernel", False), ("calls", True), ("time", True), ("bytes", True), ("FLOPs", True), ("roof", True))
    for kernel in kernels:
        table.add_row(*map(Text, cells(kernel)))
    return table


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


def _table(*columns: tuple[str, bool]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, expand=False)
    for name, is_figure in columns:
        table.add_column(name, justify="right" if is_figure else "left", overflow="fold")
    return table


def _hanging(text: str, lead: str = "", style: str = "", indent: int = 3) -> RenderableType:
    return Padding(Text.assemble((lead, "bold"), (text, style)), (0, 0, 0, indent))
