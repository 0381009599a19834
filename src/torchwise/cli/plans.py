"""`torchwise plans`: the decisions for models and machines, and approvals of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli.common import UNCUT, Group, check_writable, find_decided, find_plan, find_study, read_study
from torchwise.cli.options import (
    Store,
    Study,
    complete_number,
    complete_stored_target,
    former_option,
    json_option,
    note_former_name,
)
from torchwise.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchwise.records import Approval
    from torchwise.store.schema import StudySummary

plans = typer.Typer(
    cls=Group,
    help="List, show and share stored decisions, and approve plans.",
    no_args_is_help=True,
)

SCHEMA = "torchwise.plans/1"
FOLDED = ("target", "plan")
MIN_FOLDED = 20
"""Minimum width of folded columns in a table, in characters."""


def _complete_plan(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete eager or the id of a plan of the study before it on the command line."""
    found = {"eager": "as written"}
    with contextlib.suppress(InputError):
        found |= {trial.plan.id: str(trial.plan) for trial in find_study(ctx.params["study"], None).trials}
    return [pair for pair in found.items() if pair[0].startswith(incomplete)]


StoredTarget = Annotated[
    str | None, typer.Option("--target", help="Only those of this target.", autocompletion=complete_stored_target)
]
PlanArgument = Annotated[
    str | None,
    typer.Argument(
        help="Id of a plan that the study tried, or the beginning of the id, or eager.",
        show_default="the decided plan",
        autocompletion=_complete_plan,
    ),
]
Reason = Annotated[str, typer.Option(help="The reason, for other people to read.")]
By = Annotated[str | None, typer.Option(help="Your name.", show_default="the login name")]


@plans.command("list")
def list_plans(
    target: StoredTarget = None,
    max_count: Annotated[int, typer.Option(min=1, help="Maximum number of studies.")] = 50,
    limit: Annotated[int | None, former_option("--limit", "--max-count")] = None,
    store: Store = None,
    json: Annotated[Path | None, json_option("Write the list as JSON (schema torchwise.plans/1)")] = None,
) -> None:
    """List studies with their decisions, newest first."""
    from rich.console import Console

    from torchwise.store import open_storage

    max_count = limit or max_count
    with open_storage(store, existing=True) as storage:
        found = storage.list_studies(target, limit=max_count + 1)
        is_empty = not (found or storage.list_studies(limit=1))
    summaries = found[:max_count]
    if json is not None:
        _write(json, summaries)
    if is_empty:
        typer.echo("The store holds no study yet: torchwise tune TARGET creates one.")
        return
    if not summaries:
        typer.echo(f"The store holds no study of {target}. Other targets: torchwise plans list")
        return
    console = Console()
    if not console.is_terminal:
        console.width = UNCUT  # programs search by line, and would miss a name on two lines
    console.print(_make_table(summaries, console.width))
    if len(found) > max_count:
        typer.echo(f"These are the newest {max_count}. For older ones: --max-count N, --target TARGET.")


@plans.command("show")
def show(
    study: Study,
    json: Annotated[Path | None, json_option("Write the decision as JSON, for Decision.from_json")] = None,
    store: Store = None,
) -> None:
    """Show a decision, or print it as JSON into a pipe or file.

    `torchwise.Decision.from_json` reads that JSON.
    """
    from rich.console import Console

    from torchwise.records.files import write_json
    from torchwise.report import render_decision

    _, decision = find_decided(study, store)
    if json is not None:
        write_json(decision, json)
    elif (console := Console(highlight=False)).is_terminal:
        console.print(render_decision(decision))
        console.print(f"plan {decision.plan.id}: {decision.plan.to_json()}", soft_wrap=True, markup=False)
    else:  # as a program reads it
        typer.echo(decision.to_json())


@plans.command("diff")
def diff(first: Study, second: Study, store: Store = None) -> None:
    """List the differences between two studies and their decisions."""
    from torchwise.records.study_diff import differences

    a, b = find_study(first, store), find_study(second, store)
    typer.echo("\n".join(differences(a, b)) or "The two studies do not differ.")


@plans.command("export")
def export(
    study: Study,
    file: Annotated[Path, typer.Argument(help="File to write, .json.")],
    store: Store = None,
) -> None:
    """Write a study with all its trials to a file.

    It is for another machine or a colleague, who adds it with `torchwise plans import`.
    """
    from torchwise.records.files import write_json

    check_writable(file)
    write_json(find_study(study, store), file)
    typer.echo(f"Wrote {file}.")


@plans.command("import")
def import_(
    file: Annotated[Path, typer.Argument(help="File that `plans export` or `tune --json` wrote.")],
    store: Store = None,
) -> None:
    """Add a study from a file.

    On another machine its decision is stale. Tuning then tries its plan first, and verifies it again.
    """
    from torchwise.store import open_storage

    study = read_study(file)
    with open_storage(store, existing=True) as storage:
        added = storage.import_study(study)
    typer.echo(f"Study {added.id}: {study.workload.target}, {len(study.trials)} trials.")


@plans.command("delete")
def delete(
    study: Annotated[int, typer.Argument(help="Number of a stored study.", autocompletion=complete_number)],
    store: Store = None,
) -> None:
    """Delete a study with all its trials and its decisions."""
    from torchwise.store import open_storage

    with open_storage(store, existing=True) as storage:
        target = storage.get_study(study).workload.target
        storage.delete_study(study)
    typer.echo(f"Deleted study {study} of {target}.")


@plans.command("pin")
def pin(study: Study, plan: PlanArgument = None, reason: Reason = "", by: By = None, store: Store = None) -> None:
    """Let `apply` run only this plan.

    It holds for the study's target, mode and hardware.
    """
    _approve("pinned", study, plan, reason, by, store)


@plans.command("approve")
def approve(study: Study, plan: PlanArgument = None, reason: Reason = "", by: By = None, store: Store = None) -> None:
    """Permit a plan. Once a plan is approved, `apply` runs only approved plans and eager."""
    _approve("approved", study, plan, reason, by, store)


@plans.command("reject")
def reject(study: Study, plan: PlanArgument = None, reason: Reason = "", by: By = None, store: Store = None) -> None:
    """Prevent `apply` from running this plan."""
    _approve("rejected", study, plan, reason, by, store)


@plans.command("withdraw")
def withdraw(study: Study, plan: PlanArgument = None, store: Store = None) -> None:
    """Withdraw the approval, pin or rejection of a plan.

    It applies to the study's target, or else to another target with the same model and inputs.
    """
    from torchwise.store import open_storage
    from torchwise.study.apply_approvals import find_approvals

    found = find_study(study, store)
    with open_storage(store, existing=True) as storage:
        approvals = find_approvals(found, storage)
        chosen = find_plan(plan, found, [approval.plan for approval in approvals])
        approval = next((one for one in approvals if one.plan == chosen), None)
        if approval is not None:
            storage.withdraw_approval(approval.target, approval.mode, approval.hardware, chosen.id)
    if approval is None:
        typer.echo(f"{chosen} ({chosen.id}) has no approval: torchwise plans approvals lists those that exist.")
        return
    scope = _scope(approval.target, approval.mode, approval.hardware)
    typer.echo(f"Withdrawn: {chosen} is no longer {approval.standing} for {scope}.")


@plans.command("approvals")
def list_approvals(target: StoredTarget = None, store: Store = None) -> None:
    """List approved, pinned and rejected plans, newest first."""
    from torchwise.report.facts import when
    from torchwise.store import open_storage

    with open_storage(store, existing=True) as storage:
        found = storage.approvals(target)
    scopes: dict[str, list[Approval]] = {}
    for approval in found:
        scopes.setdefault(_scope(approval.target, approval.mode, approval.hardware), []).append(approval)
    for scope, approvals in scopes.items():
        typer.echo(f"{scope}:")
        for one in approvals:
            because = f": {one.reason}" if one.reason else ""
            typer.echo(f"  {one.standing} {one.plan.id} {one.plan}, by {one.by}, {when(one.at)}{because}")
    if not found:
        typer.echo("There are no approvals: torchwise plans pin, approve or reject STUDY adds one.")


@plans.command("rulings", hidden=True)
def list_rulings(target: StoredTarget = None, store: Store = None) -> None:
    """List approvals, by the former name of the command."""
    note_former_name("torchwise plans rulings", "torchwise plans approvals")
    list_approvals(target, store)


def _make_table(summaries: Sequence[StudySummary], width: int) -> RenderableType:
    """Return a table with a row per study, or paragraphs if it would fold more than targets and plans."""
    from rich.table import Column, Table
    from rich.text import Text

    headings = ("study", "target", "device", "mode", "state", "trials", "created", "plan", "speed-up")
    rows = [tuple(map(str, _cells(row))) for row in summaries]
    longest = {column[0]: max(map(len, column)) for column in zip(headings, *rows, strict=True)}
    widths = [min(length, MIN_FOLDED) if name in FOLDED else length for name, length in longest.items()]
    if sum(widths) + 3 * len(widths) + 1 > width:  # each column has a border and two spaces
        return Text("\n".join(map(_paragraph, summaries)), overflow="fold")
    # A shortened name would be of no use to a command.
    table = Table(*(Column(heading, overflow="fold", no_wrap=heading not in FOLDED) for heading in headings))
    for cells in rows:
        table.add_row(*cells)
    return table


def _cells(row: StudySummary) -> tuple[object, ...]:
    from torchwise.records.format import speedup
    from torchwise.report.facts import when

    created = when(row.created_at)[: len("2026-01-31")]
    return (
        row.id,
        row.target,
        row.device,
        row.mode,
        row.state,
        row.trials,
        created,
        row.decided or "–",
        speedup(row.speedup),
    )


def _paragraph(row: StudySummary) -> str:
    from torchwise.records.format import speedup
    from torchwise.report.facts import when

    plan = f"\n  {row.decided}{f', {speedup(row.speedup)}' if row.speedup else ''}" if row.plan else ""
    trials = f"{row.trials} trial{'s' * (row.trials != 1)}"
    facts = (row.device, row.mode, row.state, trials, when(row.created_at))
    return f"study {row.id}: {row.target}\n  {', '.join(filter(None, facts))}{plan}"


def _write(path: Path, summaries: Sequence[StudySummary]) -> None:
    from torchwise.records import codec
    from torchwise.records.files import write_atomically

    write_atomically(f"{codec.to_json({'schema': SCHEMA, 'studies': summaries})}\n", path)


def _approve(standing: str, study: str, plan: str | None, reason: str, by: str | None, store: str | None) -> None:
    from torchwise.records import Standing
    from torchwise.store import open_storage
    from torchwise.study.apply_approvals import make_approval

    found = find_study(study, store)
    by = _login() if by is None else by
    approval = make_approval(found, find_plan(plan, found), Standing(standing), by=by, reason=reason)
    with open_storage(store, existing=True) as storage:
        storage.store_approval(approval)
    scope = _scope(approval.target, approval.mode, approval.hardware)
    typer.echo(f"{standing.capitalize()}: {approval.plan} ({approval.plan.id}) for {scope}.")


def _scope(target: str, mode: str, hardware: str) -> str:
    return f"{target}, {mode}, on {hardware}"


def _login() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # its errors differ by version and system
        raise InputError("this system has no login name: give your name with --by NAME") from None
