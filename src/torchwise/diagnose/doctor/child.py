"""Run a command that may hang or crash, and end all of its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a command.

    Attributes:
        code: its exit status, or None if it did not start or exceeded its limit.
        out: its standard output, which may be incomplete.
        error: the reason for its failure, or "".
    """

    code: int | None
    out: str
    error: str


def run(command: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None) -> Ended:
    """Run `command` for at most `limit_s` seconds, in its own session so that its children end with it."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environ,
            start_new_session=True,
        )
    except OSError as error:
        return Ended(None, "", f"{command[0]} does not start: {error.strerror or error}")
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, _ = process.communicate()
        return Ended(None, out, f"it exceeded {limit_s:g} s")
    except BaseException:  # such as Ctrl-C, which does not reach the child
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return Ended(process.returncode, out, _reason(process.returncode, err))


def _reason(code: int, err: str) -> str:
    if code == 0:
        return ""
    if code < 0:
        return f"it was killed by {signal.Signals(-code).name}"
    return find_error_line(err) or f"it exited with status {code}"


def find_error_line(text: str) -> str:
    """Return the most informative line of an error text: the first that mentions an error, or else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    informative = [line for line in lines if "error:" in line.lower() or "not found" in line.lower()]
    return (informative or lines[-1:] or [""])[0][:300]
