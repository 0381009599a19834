"""`torchwise zoo`: list the reference workloads, with their parameters and the commands that tune them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchwise.cli.common import write_document
from torchwise.cli.options import json_option

if TYPE_CHECKING:
    from rich.table import Table

    from torchwise.zoo import Entry

SCHEMA = "torchwise.zoo/1"


def _complete_name(incomplete: str) -> list[str]:
    from torchwise.zoo import list_workloads

    names = [entry.name for entry in list_workloads()]
    families = dict.fromkeys(name.partition(".")[0] for name in names)
    return [name for name in (*families, *names) if name.startswith(incomplete)]


def zoo(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A family, or family.operation[@size].", show_default="all of them", autocompletion=_complete_name
        ),
    ] = None,
    json: Annotated[Path | None, json_option("Write the list as JSON")] = None,
) -> None:
    """List the reference workloads, or show one with its sizes.

    It also shows the command that tunes the workload.
    """
    from rich.console import Console
    from rich.text import Text

    from torchwise.zoo import list_workloads
    from torchwise.zoo.catalogue import SIZES
    from torchwise.zoo.registry import DEFAULT_SIZE, load_zoo, parse, select

    selection = (name or "").removeprefix("zoo:")
    entries = (parse(selection)[0],) if "@" in selection else select(selection) if selection else list_workloads()
    console = Console(highlight=False)
    if selection.partition("@")[0] == entries[0].name:
        console.print(Text("\n".join([entries[0].name, entries[0].summary, *notes(entries[0]), ""])))
        console.print(_make_size_table(entries[0]))
        console.print(_list_commands(entries[0], parse(selection)[1]), soft_wrap=True)
    else:
        console.print(_make_table(entries))
        sizes = ", ".join(f"{size} (the default)" if size == DEFAULT_SIZE else size for size in SIZES)
        console.print(f"\nSizes: {sizes}. Details: torchwise zoo NAME. Tune one: torchwise tune zoo:NAME@SIZE")
        for reason in [] if selection else load_zoo().explain_rest():
            console.print(Text(f"{reason[0].upper()}{reason[1:]}"), soft_wrap=True)
    if json is not None:
        write_document(json, SCHEMA, {"workloads": [{**asdict(entry), "family": entry.family} for entry in entries]})


def parameters(entry: Entry) -> str:
    """Return the parameters with their ranges over all sizes, such as "batch 8–512, width 512"."""
    ranges = []
    for parameter in entry.sizes["small"]:
        values = [sizes[parameter] for sizes in entry.sizes.values()]
        low, high = min(values), max(values)
        ranges.append(f"{parameter} {low}" if low == high else f"{parameter} {low}–{high}")
    return ", ".join(ranges)


def notes(entry: Entry) -> list[str]:
    """Return notes on a workload, such as that it is random by design or also meant for training."""
    conditions = {
        "random by design": entry.stochastic,
        "also for training": entry.trains,
        "a whole training step": entry.is_step,
    }
    return [note for note, applies in conditions.items() if applies]


def _make_table(entries: Sequence[Entry]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True)
    table.add_column("description and parameters")
    for entry in entries:
        small_print = "; ".join([parameters(entry), *notes(entry)])
        table.add_row(Text(entry.name), Text.assemble(entry.summary, "\n", (small_print, "dim")))
    return table


def _make_size_table(entry: Entry) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("size")
    shown = list(entry.sizes["small"])
    for parameter in shown:
        table.add_column(parameter, justify="right")
    for size, values in entry.sizes.items():
        table.add_row(size, *(str(values[parameter]) for parameter in shown))
    return table


def _list_commands(entry: Entry, size: str) -> str:
    command = f"torchwise tune zoo:{entry.name}@{size}"
    training = f"{command} --mode training"
    commands = [training] if entry.is_step else [command, training] if entry.trains else [command]
    return "\n".join(["\nTune it:", *(f"  {line}" for line in commands)])
