"""`torchwise cache`: a decision and its compiled code in one file, for other processes and equal machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torchwise.artefact import Info

cache = typer.Typer(help="Compiled code in one file: save, load, info.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(help="The artefact, such as model.tw.")]


@cache.command("save")
def save(
    study: Annotated[str, typer.Argument(help="Number of a stored study, `latest`, or a .json file.")],
    file: FileArgument,
    store: Annotated[
        str | None, typer.Option(help="URL or file of the store.", show_default="in the user's data directory")
    ] = None,
) -> None:
    """Compile what a study decided for, and write it to a file with the decision."""
    from torchwise import artefact
    from torchwise.cli.lookup import find_study
    from torchwise.cli.tune import check_writable
    from torchwise.errors import InputError

    check_writable(file)
    found = find_study(study, store)
    if found.decision is None:
        raise InputError(f"study {study} is {found.state}, and has no decision yet: tune it again to go on")
    target = found.workload.target
    if target.startswith("live:"):
        raise InputError(
            f"study {study} is of {target}, a model of a running program: save it there, by torchwise.artefact.save"
        )
    made = artefact.save(file, target, found.decision)
    typer.echo(f"Wrote {file}: {_described(made)}")
    typer.echo(f"SHA-256 {made.sha256}")


@cache.command("load")
def load(
    file: FileArgument,
    trust: Annotated[bool, typer.Option("--trust", help="Take out compiled code, which runs when it is used.")] = False,
    sha256: Annotated[str | None, typer.Option(help="What the file must hash to.")] = None,
) -> None:
    """Put the compiled code of a file where PyTorch looks for it, for every later process of this user."""
    from torchwise import artefact

    decision = artefact.load(file, trust=trust, sha256=sha256)
    typer.echo(f"Loaded {file}: plan {decision.plan}.")
    typer.echo("In the program: from torchwise import artefact")
    typer.echo(f"                torchwise.apply(model, artefact.load({str(file)!r}, trust=True))")


@cache.command("info")
def info(
    file: FileArgument,
    json: Annotated[bool, typer.Option("--json", help="Print manifest and decision as JSON.")] = False,
) -> None:
    """Say what is in a file and whether it is for this machine; nothing in it is run."""
    from torchwise import artefact

    found = artefact.info(file)
    if json:
        typer.echo(found.to_json())
        return
    different = found.manifest.differences()
    typer.echo(f"{file}: {_described(found)}")
    typer.echo(f"Decision: {found.decision.reason}")
    typer.echo(f"Written by torchwise {found.manifest.torchwise} for {found.decision.workload.target}")
    typer.echo(f"For this machine and software: {'no, ' + '; '.join(different) if different else 'yes'}")
    typer.echo(f"SHA-256 {found.sha256}")


def _described(found: Info) -> str:
    manifest = found.manifest
    files, size = len(manifest.members) - 1, found.size / 2**20
    if manifest.warm_s is None:
        return f"plan {found.decision.plan}, which compiles nothing."
    anew = f", {manifest.compiled_anew} graphs compiled anew" if manifest.compiled_anew else ""
    return (
        f"plan {found.decision.plan}, {files} files of compiled code, {size:.1f} MiB. "
        f"The first calls of a process cost {manifest.warm_s:.2f} s with it{anew}, and {manifest.cold_s:.2f} s without."
    )
