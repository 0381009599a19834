"""`torchwise cache`: a decision and its compiled code as one artifact, for other processes and equal machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchwise.cli.common import Group, check_writable, find_decided
from torchwise.cli.local_caches import NAMES, clear, limit, show_cache, show_caches
from torchwise.cli.options import Store, Study, complete, former_option, json_option

if TYPE_CHECKING:
    from torchwise.artifact import Info

cache = typer.Typer(
    cls=Group,
    help="Save and load compiled code, and look after the local caches.",
    no_args_is_help=True,
)

cache.command("clear")(clear)
cache.command("limit")(limit)

PlaceArgument = Annotated[
    str, typer.Argument(help="A file, such as model.tw, or the URL of a folder, such as s3://bucket/models.")
]


@cache.command("save")
def save(
    study: Study,
    place: PlaceArgument,
    store: Store = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            "--max-size",
            metavar="SIZE",
            help="Maximum total size of the artifacts in a folder, such as 10GiB. The least recently used are removed.",
            show_default="none, nothing is removed",
        ),
    ] = None,
    compile_timeout: Annotated[
        float | None,
        typer.Option(help="Seconds that each worker may take, nearly all of it to compile.", show_default="1800"),
    ] = None,
    limit: Annotated[str | None, former_option("--limit", "--max-size")] = None,
) -> None:
    """Compile the plan of a study, and save it with the decision.

    It is saved to a file or a shared folder.
    """
    from torchwise.errors import InputError
    from torchwise.parsing import to_bytes
    from torchwise.plan.workload_spec import LIVE, check_timeout

    size = max_size or limit
    options: dict[str, Any] = {} if size is None else {"limit_bytes": to_bytes(size, "--max-size")}
    if compile_timeout is not None:
        check_timeout(compile_timeout)
        options["limit_s"] = compile_timeout
    found, decision = find_decided(study, store)
    target = found.workload.target
    if target.startswith(LIVE):
        raise InputError(
            f"study {study} is of {target}, a model of a running program: call torchwise.artifact.save in that program"
        )
    # This import loads torch, which takes seconds, so the store is read first.
    from torchwise import artifact
    from torchwise.artifact.remote_files import is_url

    if not is_url(place):
        check_writable(Path(place))
    saved = artifact.save(place, target, decision, **options)
    typer.echo(f"Wrote {_hide_password(place)} for {target}: {_describe_artifact(saved)}")
    typer.echo(f"SHA-256 {saved.sha256}")


@cache.command("load")
def load(
    place: PlaceArgument,
    trust: Annotated[
        bool, typer.Option("--trust", help="Permit loading compiled code, which can run anything.")
    ] = False,
    sha256: Annotated[str | None, typer.Option(help="Expected SHA-256 of the file.")] = None,
) -> None:
    """Put compiled code into PyTorch's caches.

    Every later process of this user finds it there. A file is loaded as a whole. From a folder, the
    artifacts for this machine and its software are loaded.
    """
    from torchwise import artifact
    from torchwise.artifact.remote_files import is_folder
    from torchwise.errors import InputError

    if not is_folder(place):
        decision = artifact.load(place, trust=trust, sha256=sha256)
        typer.echo(f"Loaded {_hide_password(place)}: plan {decision.plan}.")
    else:
        if sha256 is not None:
            raise InputError("--sha256 needs one file, but the argument is a folder: load a file that `list` names")
        for url, decision in artifact.load_all(place, trust=trust).items():
            typer.echo(f"Loaded {url}: {decision.workload.target}, plan {decision.plan}.")
    model = ", model" if is_folder(place) else ""
    typer.echo("In the program:")
    typer.echo("    import torchwise")
    typer.echo("    from torchwise import artifact")
    typer.echo(f"    fast = torchwise.apply(model, artifact.load({_hide_password(place)!r}{model}, trust=True))")


@cache.command("list")
def list_(
    url: Annotated[
        str | None,
        typer.Argument(help="URL of a folder, such as s3://bucket/models.", show_default="the caches on this machine"),
    ] = None,
) -> None:
    """List the artifacts in a folder, or the caches on this machine.

    The last used artifact comes first. Those for this machine are marked. None is loaded.
    """
    if url is None:
        show_caches()
        return
    from torchwise.artifact.remote_files import Folder

    folder = Folder(url)
    folder.place.check()
    entries = folder.entries()
    if not entries:
        typer.echo(
            f"{folder.place.url} holds no artifact: torchwise cache save STUDY {folder.place.url} puts one there."
        )
        return
    for entry in entries:
        used = f"{entry.used:%Y-%m-%d %H:%M} UTC" if entry.used else "gone"
        typer.echo(f"{entry.url}  {entry.size / 2**20:.1f} MiB  used {used}  {entry.device or 'other machines'}")
    size = sum(entry.size for entry in entries) / 2**20
    typer.echo(f"{len(entries)} artifact{'s' * (len(entries) != 1)}, {size:.1f} MiB")


@cache.command("info")
def info(
    file: Annotated[
        str,
        typer.Argument(
            help="The artifact, such as model.tw, or its URL. Or inductor, triton or torchwise.",
            autocompletion=complete(*NAMES),
        ),
    ],
    json: Annotated[Path | None, json_option("Write the manifest and decision as JSON")] = None,
) -> None:
    """Describe an artifact, or a cache on this machine.

    It says whether the artifact is for this machine. Nothing in it is run.
    """
    if file in NAMES and not Path(file).is_file():
        show_cache(file, json)
        return
    from torchwise import artifact
    from torchwise.records.files import write_atomically

    details = artifact.info(file)
    if json:
        write_atomically(f"{details.to_json()}\n", json)
    different = details.list_differences()
    typer.echo(f"{_hide_password(file)}: {_describe_artifact(details)}")
    typer.echo(f"Decision: {details.decision.reason}")
    typer.echo(f"Written by torchwise {details.manifest.torchwise} for {details.decision.workload.target}")
    typer.echo(f"For this machine and software: {'no, ' + '; '.join(different) if different else 'yes'}")
    typer.echo(f"SHA-256 {details.sha256}")


def _hide_password(place: str) -> str:
    from torchwise.artifact.remote_files import hide_password

    return hide_password(place)


def _describe_artifact(info: Info) -> str:
    manifest = info.manifest
    files, size = len(manifest.members) - 1, info.size / 2**20
    plan = info.decision.plan
    if manifest.warm_s is None and not plan.is_traced:
        return f"plan {plan}, which compiles nothing."
    if manifest.warm_s is None:
        how = "functions are rewritten" if plan.backend == "eager" else f"{plan.backend} compiles"
        return (
            f"plan {plan}, and no code: {how} in each process, on its first calls, which took {manifest.cold_s:.2f} s."
        )
    again = f" ({manifest.compiled_anew} graphs still compile)" if manifest.compiled_anew else ""
    return (
        f"plan {plan}, {files} files of compiled code, {size:.1f} MiB. "
        f"The first calls of a process take {manifest.warm_s:.2f} s with it{again}, "
        f"and {manifest.cold_s:.2f} s without."
    )
