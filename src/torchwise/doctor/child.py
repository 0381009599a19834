"""Run a command that may hang or crash, and end everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended.

    Attributes:
        code: its exit status; None where it did not start or ran past its limit.
        out: its standard output, up to where it came.
        error: why it counts as failed, or "".
    """

    code: int | None
    out: str
    error: str


def run(command: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None) -> Ended:
    """Run `command` for at most `limit_s` seconds, in a session of its own so that its children end with it."""
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
        return Ended(None, out, f"it ran past {limit_s:g} s")
    except BaseException:  # such as Ctrl-C, which the child does not hear of
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    return Ended(process.returncode, out, _reason(process.returncode, err))


def _reason(code: int, err: str) -> str:
    if code == 0:
        return ""
    if code < 0:
        return f"it died of {signal.Signals(-code).name}"
    return telling_line(err) or f"it exited with status {code}"


def telling_line(text: str) -> str:
    """Return the line of an error text that says most: the first that speaks of an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line.lower() or "not found" in line.lower()]
    return (telling or lines[-1:] or [""])[0][:300]
