"""`torchwise explain`: find why and where a model is slow, and the potential saving of each fix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.cli.common import interruptible, keep_report, resolve_choice
from torchwise.cli.options import (
    PLAN_HELP,
    Device,
    Keep,
    Mode,
    Store,
    Target,
    budget_option,
    complete_plan,
    count_option,
    former_option,
    html_option,
    json_option,
)
from torchwise.plan.workload_spec import DEFAULT_CALLS


def explain(
    target: Target,
    plan: Annotated[
        str | None,
        typer.Option(
            help=f"Plan to explain: {PLAN_HELP}",
            show_default="torch.compile with its defaults",
            autocompletion=complete_plan,
        ),
    ] = None,
    mode: Mode = "inference",
    device: Device = "",
    calls: Annotated[
        int,
        count_option(
            "--calls", "Expected number of calls over the lifetime of a process, to weigh savings that occur once."
        ),
    ] = DEFAULT_CALLS,
    budget: Annotated[float | None, budget_option("none, but 45 for fixes")] = None,
    fixes: Annotated[
        bool, typer.Option("--fixes/--no-fixes", help="Measure the potential savings of fixes, or estimate them.")
    ] = True,
    artifacts: Annotated[
        Path | None, typer.Option(help="Folder for graphs before and after compilation, generated code and guards.")
    ] = None,
    artefacts: Annotated[Path | None, former_option("--artefacts", "--artifacts")] = None,
    json: Annotated[Path | None, json_option("Write the explanation as JSON (schema torchwise.explanation/1)")] = None,
    html: Annotated[Path | None, html_option("Write the explanation as a self-contained page.")] = None,
    keep: Keep = True,
    store: Store = None,
) -> None:
    """Explain where a compiled model spends its time.

    The result has findings with potential savings, compiler stages and kernels.

    Exit codes: 0 explained, 1 the model cannot be compiled, 2 invalid input, 3 the model itself fails, 4 the budget is
    spent before the run is measured, 130 interrupted.
    """
    from rich.console import Console

    from torchwise.diagnose.explain import explain as run
    from torchwise.plan.workload_spec import check_form
    from torchwise.report.explanation import render_explanation, write_explanation
    from torchwise.store.location import place_of

    check_form(target)
    location = place_of(store) if store else None
    chosen = resolve_choice(plan, (target,), store) if plan else None
    with interruptible(lambda: "; an unfinished explanation is not saved"):
        explanation = run(
            target,
            plan=chosen,
            mode=mode,
            device=device or None,
            calls=calls,
            budget=budget,
            fixes=fixes,
            artifacts=artifacts or artefacts,
        )
    Console(highlight=False).print(render_explanation(explanation, location))
    write_explanation(explanation, html=html, json=json, store=location)
    if keep:
        keep_report(explanation, store)
