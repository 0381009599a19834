"""`torchwise cache list`, `info`, `clear` and `limit` for the caches of compiled code on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torchwise.cli.common import write_document
from torchwise.cli.options import complete

if TYPE_CHECKING:
    from torchwise.artifact.local_caches import Entry, LocalCache

NAMES = ("inductor", "triton", "torchwise")
MAX_LISTED = 10

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="CACHE", help="inductor, triton or torchwise.", show_default="all", autocompletion=complete(*NAMES)
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def clear(names: Names = None, yes: Yes = False) -> None:
    """Delete the caches on this machine, after a question.

    Programs compile it again. Do this while none runs. Only files below the folders of these caches are deleted, and
    links are not followed. Studies and decisions are kept.
    """
    _remove(names, 0, yes=yes)


def limit(
    size: Annotated[str, typer.Argument(help="Maximum size of each cache, such as 5GB.")],
    names: Names = None,
    yes: Yes = False,
) -> None:
    """Delete the least recently used of the caches on this machine.

    It asks first, and deletes until each cache is within the size, now and not later. See `clear`.
    """
    from torchwise.parsing import to_bytes

    _remove(names, to_bytes(size, "size"), yes=yes)


def show_caches() -> None:
    """Print the name, the size and the folder of each cache."""
    from torchwise.artifact.local_caches import list_caches

    for cache in list_caches():
        typer.echo(f"{cache.name:10} {_describe_size(cache.entries()):>25}  {cache.path}")


def show_cache(name: str, json: Path | None) -> None:
    """Print the contents of one cache, the largest folders first, and write a summary to a file."""
    from torchwise.artifact.local_caches import find_caches

    (cache,) = find_caches([name])
    entries = cache.entries()
    if json:
        _write_json(cache, entries, json)
    typer.echo(f"{cache.name}: {cache.contents}")
    typer.echo(f"Folder: {cache.path}" + ("" if cache.path.is_dir() else ", which does not exist yet"))
    typer.echo(f"Moved by: {cache.variable}")
    typer.echo(f"Size: {_describe_size(entries)}")
    if not entries:
        return
    typer.echo(f"Last used: {_day(entries[-1])}; least recently: {_day(entries[0])}")
    sizes: dict[str, int] = {}
    for entry in entries:
        first = "".join(entry.path.relative_to(cache.path).parts[:1]) or "."
        sizes[first] = sizes.get(first, 0) + entry.size
    for part, size in sorted(sizes.items(), key=lambda pair: -pair[1])[:MAX_LISTED]:
        typer.echo(f"  {size / 2**20:10.1f} MiB  {part}")
    if len(sizes) > MAX_LISTED:
        typer.echo(f"  and {len(sizes) - MAX_LISTED} smaller folders")


def _write_json(cache: LocalCache, entries: tuple[Entry, ...], file: Path) -> None:
    found: dict[str, Any] = {"name": cache.name, "path": str(cache.path)}
    found |= {"variable": cache.variable, "files": sum(len(e.files) for e in entries)}
    found |= {"bytes": sum(e.size for e in entries), "last_used": entries[-1].used if entries else None}
    write_document(file, "torchwise.local-cache/1", found)


def _remove(names: list[str] | None, limit_bytes: int, *, yes: bool) -> None:
    """Name what is deleted, ask, and delete it."""
    from torchwise.artifact.local_caches import find_caches
    from torchwise.errors import InputError

    chosen = [(cache, cache.choose(limit_bytes)) for cache in find_caches(names)]
    for cache, entries in chosen:
        typer.echo(f"{cache.name}: {_describe_size(entries)} in {len(entries)} folders of {cache.path}")
        for entry in entries[:MAX_LISTED]:
            typer.echo(f"  {entry.path}  {entry.size / 2**20:.1f} MiB, used {_day(entry)}")
        if len(entries) > MAX_LISTED:
            typer.echo(f"  and {len(entries) - MAX_LISTED} more folders")
    if not any(entries for _, entries in chosen):
        typer.echo("Nothing to delete.")
        return
    if not yes:
        if not _can_ask():
            raise InputError("nothing is deleted, as nobody can be asked here: --yes deletes without a question")
        typer.confirm("Delete these files?", abort=True)
    freed = sum(cache.remove(entries) for cache, entries in chosen)
    typer.echo(f"Deleted {freed / 2**20:.1f} MiB.")


def _can_ask() -> bool:
    return sys.stdin.isatty()


def _describe_size(entries: tuple[Entry, ...]) -> str:
    files = sum(len(entry.files) for entry in entries)
    return f"{sum(entry.size for entry in entries) / 2**20:.1f} MiB, {files} file{'s' * (files != 1)}"


def _day(entry: Entry) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(entry.used, UTC):%Y-%m-%d %H:%M} UTC"
