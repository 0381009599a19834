"""Check a command's output files before its work starts."""

from __future__ import annotations

from pathlib import Path


def check_writable(file: Path | None) -> None:
    """Refuse a path that cannot be written, before minutes are spent on its contents.

    Raises:
        InputError: its folder does not exist or is not writable, or it is a folder itself.
    """
    if file is None:  # loads nothing, so that `torchwise zoo` is instant
        return
    import os
    import secrets

    from torchwise.errors import InputError
    from torchwise.records.files import STDOUT

    if file == STDOUT:
        return
    if file == Path("-"):
        raise InputError("- cannot be written: only --json can use standard output; give a file")
    if file.is_dir():
        raise InputError(f"{file} is a folder, but must be a file to write to")
    if not file.resolve().parent.is_dir():
        raise InputError(f"{file} cannot be written: there is no folder {file.resolve().parent}; create it first")
    if file.exists() and not file.is_file():  # a pipe or a device
        if not os.access(file, os.W_OK):
            raise InputError(f"{file} cannot be written: permission denied; give another path")
        return
    # Reading permissions is not enough, as file systems may be read-only. The name is like that of a draft of
    # `write_atomically`.
    probe = file.resolve().with_name(f".{file.resolve().name}.{secrets.token_hex(4)}.tmp")
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}; give another path") from None
