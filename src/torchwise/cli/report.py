"""`torchwise report`, `compare` and `dashboard`: show what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchwise.cli.common import find_study, resolve_plan, show_study, write_document
from torchwise.cli.options import PLAN_HELP, Budget, Store, complete_plan, complete_study, html_option, json_option
from torchwise.errors import InputError

if TYPE_CHECKING:
    from torchwise.plan import Plan
    from torchwise.records import Study

PORT = 8501
"""Streamlit's default."""


def report(
    study: Annotated[
        str,
        typer.Argument(
            help="Number of a stored study, `latest` (decided last), or a file written with --json.",
            autocompletion=complete_study,
        ),
    ],
    html: Annotated[Path | None, html_option("Write the study as a self-contained page.")] = None,
    json: Annotated[
        Path | None,
        json_option("Write the study as JSON (schema torchwise.study/1), or with --steps those (torchwise.steps/1)"),
    ] = None,
    steps: Annotated[
        bool, typer.Option("--steps", help="Show the decided plan step by step, built up from eager.")
    ] = False,
    plan: Annotated[
        str | None,
        typer.Option(
            help=f"Plan to build up with --steps: {PLAN_HELP}",
            autocompletion=complete_plan,
            show_default="the decided plan",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="With --steps, first try the steps that the study lacks. They join the study."),
    ] = False,
    budget: Budget = None,
    store: Store = None,
) -> None:
    """Show a stored study, with every candidate and why it lost.

    With --steps, a plan is shown step by step, and the page is still that of the study.
    """
    from torchwise.store.location import place_of

    found = find_study(study, store)
    # The number in a file belongs to the store that the file came from.
    named = {"name": study} if study.endswith(".json") else {"store": place_of(store) if store else None}
    if steps:
        if budget is not None and not measure:
            raise InputError(f"--budget is {budget:g} s, but without --measure nothing is measured: add --measure")
        _show_steps(found, plan, json, html, named, (budget, store) if measure else None)
        return
    for option, given in (("--plan", plan), ("--measure", measure or None), ("--budget", budget)):
        if given is not None:
            raise InputError(f"{option} is given without --steps, but is for the steps of a plan: add --steps")
    show_study(found, json, html, **named)


def _show_steps(
    study: Study,
    plan: str | None,
    json: Path | None,
    html: Path | None,
    named: dict[str, Any],
    search: tuple[float | None, str | None] | None,
) -> None:
    """Print a plan step by step, and write the steps as JSON, and the study as a page.

    `search` has the budget and the store for measuring missing steps, or is None to measure nothing.
    """
    from rich.console import Console

    from torchwise.records.files import write_atomically
    from torchwise.records.steps import SCHEMA, list_steps
    from torchwise.report import render_html, render_steps

    shown = _choose_plan(study, plan, named.get("store"))
    if search is not None and not shown.is_eager:
        study = _measure_steps(study, shown, *search)
    Console().print(render_steps(study, shown, **named))
    if json:
        steps = [step.to_dict() for step in list_steps(study, shown)]
        about = {"study": study.id, "target": study.workload.target, "plan": shown.to_dict(), "plan_id": shown.id}
        write_document(json, SCHEMA, {**about, "steps": steps})
    if html:
        write_atomically(render_html(study, **named), html)


def _choose_plan(study: Study, name: str | None, store: str | None) -> Plan:
    """Return the plan that `--plan` names, or else the decided one."""
    if name is not None:
        return resolve_plan(name, (study.workload.target,), store)
    if study.decision is None:
        raise InputError(f"study {study.id} is {study.state} and has no decision yet: name a plan with --plan PLAN")
    return study.decision.plan


def _measure_steps(study: Study, plan: Plan, budget: float | None, store: str | None) -> Study:
    """Try the steps that a study lacks, and return the study with them. The decided plan stays in the choice."""
    from torchwise.cli.tune import search_study
    from torchwise.plan.workload_spec import LIVE
    from torchwise.records.reasons import workload_of
    from torchwise.records.steps import list_plans
    from torchwise.study.request import Request

    spec = workload_of(study)
    if spec.target.startswith(LIVE):
        raise InputError(
            f"target is {spec.target!r}, a model in a Python program, which no command can load: there, "
            "torchwise.tune(model, args, plans=[step.plan for step in study.steps()]) measures the steps"
        )
    verified = [trial.plan for trial in study.trials if trial.is_verified]
    plans = tuple(dict.fromkeys([*list_plans(plan), *verified]))
    request = Request(spec, study.allow, study.effort, budget, plans)
    return search_study(request, "process", spec.device, None, store)[0]


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Before: a .json file that `torchwise bench` exported.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="After: another such file.")],
    threshold: Annotated[float, typer.Option(help="Relative change of speed that is ignored.")] = 0.05,
    json: Annotated[Path | None, json_option("Write the comparison as JSON (schema torchwise.comparison/1)")] = None,
) -> None:
    """Compare two benchmarks row by row, by 95 % intervals.

    The intervals are corrected for the number of rows. A contender is slower only if both its time and its time
    relative to eager grew. So a slower machine alone is no regression.

    Exit codes: 0 no row is slower, wrong or lost. 1 a row is slower, wrong or lost. 2 invalid input. 4 inconclusive:
    the measurements cannot tell for some rows, and no other row is slower, wrong or lost.
    """
    from rich.console import Console

    from torchwise.records import comparison
    from torchwise.records.files import write_json
    from torchwise.report import read_benchmark, render_comparison

    result = comparison.compare(read_benchmark(a), read_benchmark(b), threshold)
    Console(highlight=False).print(render_comparison(result))
    if json:
        write_json(result, json)
    raise typer.Exit(result.exit_code)


def dashboard(
    store: Store = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Unless it is local to this machine, the dashboard is read-only.")
    ] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = PORT,
    read_only: Annotated[
        bool | None,
        typer.Option(
            "--read-only/--writable",
            help="Whether visitors can pin, approve and reject plans. The dashboard asks for no password.",
            show_default="writable from this machine only",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Show the store in a browser, and approve plans there.

    It has live progress, decisions, comparisons, histories, kernels, approvals, analyses and benchmarks.

    Exit codes: 0 stopped by the user, 1 the extra `dashboard` is missing, 2 invalid input.
    """
    from torchwise.dashboard.serve import is_this_machine, serve
    from torchwise.store import default_url, open_storage

    url = store or default_url()
    open_storage(url, existing=True).close()  # an unusable store is refused here, with a clear message
    serve(url, host, port, read_only=not is_this_machine(host) if read_only is None else read_only, browser=browser)
