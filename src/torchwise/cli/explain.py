"""`torchwise explain`: why and where a model is slow, and the potential saving of each fix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli.files import check_writable
from torchwise.cli.interrupts import interruptible
from torchwise.cli.options import Device, Mode, Store, Target, json_option
from torchwise.workload.spec import DEFAULT_CALLS

if TYPE_CHECKING:
    from torchwise.records.explanation import Explanation

BUDGET_S = 45.0
"""The same as `torchwise.diagnose.explain.BUDGET_S`, whose import would load the launcher."""


def explain(
    target: Target,
    plan: Annotated[
        str | None, typer.Option(help="Explain this plan, as JSON.", show_default="torch.compile with its defaults")
    ] = None,
    mode: Mode = "inference",
    device: Device = "",
    calls: Annotated[int, typer.Option(help="Calls in each process, for what is saved once.")] = DEFAULT_CALLS,
    budget: Annotated[float, typer.Option(help="Seconds for pricing: no further mend is tried after them.")] = BUDGET_S,
    artifacts: Annotated[
        Path | None, typer.Option(help="Folder for graphs before and after, generated code and guards.")
    ] = None,
    json: Annotated[Path | None, json_option("Write schema torchwise.explanation/1")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page.")] = None,
    keep: Annotated[bool, typer.Option(help="Keep it in the store, where the dashboard finds it.")] = True,
    store: Store = None,
) -> None:
    """Explain where a compiled model's time goes: findings with their price, the six stages, and kernels.

    Exit codes: 0 explained, 1 it cannot be compiled, 2 bad input, 3 the model itself fails, 130 interrupted.
    """
    from rich.console import Console

    from torchwise.diagnose.explain import explain as run
    from torchwise.plan import Plan
    from torchwise.report.explain import render_explanation, write_explanation
    from torchwise.store.location import place_of
    from torchwise.workload.target import check_form

    check_form(target)
    for file in (json, html):
        check_writable(file)
    where = place_of(store) if store else None
    chosen = Plan.from_json(plan) if plan else None
    with interruptible(lambda: "; nothing is kept"), Console(stderr=True).status("starting") as status:
        told = run(
            target,
            plan=chosen,
            mode=mode,
            device=device or None,
            calls=calls,
            budget=budget,
            artifacts=artifacts,
            on_stage=lambda name: status.update(name),
        )
    Console(highlight=False).print(render_explanation(told, where))
    write_explanation(told, html=html, json=json, store=where)
    if keep:
        _keep(told, store)


def _keep(told: Explanation, store: str | None) -> None:
    """Store the explanation. If that fails, it is still shown."""
    from torchwise.errors import StorageError
    from torchwise.store import open_storage

    try:
        with open_storage(store) as storage:
            storage.keep_explanation(told)
    except StorageError as error:
        typer.echo(f"torchwise: this explanation is not kept: {error}", err=True)
