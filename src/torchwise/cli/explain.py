"""`torchwise explain`: why a model is slow, where, and what each mend would save."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchwise.workload.spec import DEFAULT_CALLS

BUDGET_S = 45.0
"""As `torchwise.diagnose.explain.BUDGET_S`, which cannot be read here without loading the launcher."""


def explain(
    target: Annotated[
        str,
        typer.Argument(
            help="zoo:family.name[@size], a model of timm:, torchvision:, hf: or diffusers:, package.module:factory or "
            "path/file.py:factory"
        ),
    ],
    plan: Annotated[
        str | None, typer.Option(help="Explain this plan, as JSON.", show_default="torch.compile with its defaults")
    ] = None,
    mode: Annotated[str, typer.Option(help="inference or training (with a backward pass).")] = "inference",
    device: Annotated[str, typer.Option(help="cpu or cuda.", show_default="cuda where there is one")] = "",
    calls: Annotated[int, typer.Option(help="Calls in each process, for what is saved once.")] = DEFAULT_CALLS,
    budget: Annotated[float, typer.Option(help="Seconds for pricing: no further mend is tried after them.")] = BUDGET_S,
    artefacts: Annotated[
        Path | None, typer.Option(help="Folder for graphs before and after, generated code and guards.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write schema torchwise.explanation/1.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained page.")] = None,
) -> None:
    """Explain where a compiled model's time goes: findings with their price, the six stages, and kernels.

    Exit codes: 0 explained, 1 it cannot be compiled, 2 bad input, 3 the model itself fails, 130 interrupted.
    """
    from rich.console import Console

    from torchwise.cli.tune import check_writable
    from torchwise.diagnose.explain import explain as run
    from torchwise.plan import Plan
    from torchwise.report.explain import render_explanation, write_explanation
    from torchwise.workload.target import check_form

    check_form(target)
    for file in (json, html):
        check_writable(file)
    chosen = Plan.from_json(plan) if plan else None
    console = Console(highlight=False)
    try:
        with Console(stderr=True).status("starting") as status:
            told = run(
                target,
                plan=chosen,
                mode=mode,
                device=device or None,
                calls=calls,
                budget=budget,
                artefacts=artefacts,
                on_stage=lambda name: status.update(name),
            )
    except KeyboardInterrupt:  # caught here, as Typer would end without a word
        typer.echo("torchwise: interrupted; nothing is kept", err=True)
        raise typer.Exit(130) from None
    console.print(render_explanation(told))
    write_explanation(told, html=html, json=json)
