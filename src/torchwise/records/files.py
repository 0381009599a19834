"""Write records as JSON, and any text, to files that hold either all of it or their old contents."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from torchwise.errors import StorageError
from torchwise.records.codec import Document
from torchwise.records.study import Study

STDOUT = Path("/dev/stdout")
"""Meaning of `--json -`."""
_output = 1
"""The descriptor of standard output, also while it is reserved."""


def write_json(record: Study | Document, path: str | Path) -> Path:
    """Write a record to `path`, and return the path. See `write_atomically`."""
    return write_atomically(record.to_json() + "\n", path)


def write_atomically(text: str, path: str | Path) -> Path:
    """Write text to `path` through a temporary file in the same folder, so that readers never see half a file.

    Raises:
        StorageError: the file cannot be written.
    """
    target = Path(path)
    try:
        if target == STDOUT:
            _print(text)
        elif target.exists() and not target.is_file():  # a pipe or a device, such as /dev/stdout: never to be replaced
            target.write_text(text, encoding="utf-8", errors="replace", newline="\n")
        else:
            _replace(target.resolve(), text)
    except BrokenPipeError:  # the reader stopped reading, which is no fault
        raise
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror or error}") from error
    return target


@contextlib.contextmanager
def reserve_stdout() -> Iterator[None]:
    """Have standard output take JSON alone. Other output of this process and its children goes to standard error."""
    global _output
    with contextlib.suppress(OSError, ValueError):  # it may be closed
        sys.stdout.flush()
    try:
        _output = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed: there is nothing to keep apart
        pass
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        kept, _output = _output, 1
        if kept != 1:
            os.dup2(kept, 1)
            os.close(kept)


def _print(text: str) -> None:
    """Write to this process's standard output itself. Opening `/dev/stdout` would overwrite a file, even with >>."""
    with open(_output, "w", encoding="utf-8", errors="replace", closefd=False) as stream:
        stream.write(text)


def _replace(target: Path, text: str) -> None:
    # Unlike tempfile, a plain open respects the umask, so that others can read the file.
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("x", encoding="utf-8", errors="replace", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
