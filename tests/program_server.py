"""Run programs in forks of one process that has loaded torch, as to start each anew takes seconds.

Each line of standard input is an order: words, folder, and files for the standard streams. Its answer is the exit code.
A fork ends as any Python process does, but frees no memory. The words are those of `torchwise`, or a script and its
arguments.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

LIMIT_S = 100


@dataclass(frozen=True)
class Ended:
    """The end of a program: its exit code, or minus the number of a signal, and its output."""

    returncode: int
    stdout: bytes
    stderr: str


class ProgramServer:
    """Runs words in forks of a process of its own."""

    def __enter__(self) -> Self:
        words = [sys.executable, str(Path(__file__).resolve())]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def run(self, folder: Path, words: Sequence[str], given: bytes = b"") -> Ended:
        """Run a script, or `torchwise` with these words if the first of them is that, in a folder."""
        streams = [folder / f".{name}" for name in ("stdin", "stdout", "stderr")]
        streams[0].write_bytes(given)
        order = {"words": list(words), "folder": str(folder), "streams": list(map(str, streams))}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        found = Ended(code, streams[1].read_bytes(), streams[2].read_text(errors="replace"))
        for stream in streams:
            stream.unlink()
        return found


def _answer_orders() -> dict[str, Any]:
    """Fork for each order, and return it in the fork."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            order: dict[str, Any] = json.loads(line)
            return order
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    raise SystemExit


def _run(order: dict[str, Any]) -> NoReturn:
    signal.alarm(LIMIT_S)
    os.chdir(order["folder"])
    for number, name in enumerate(order["streams"]):
        os.dup2(os.open(name, os.O_RDONLY if number == 0 else os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.argv = order["words"]
    sys.path.pop(0)
    code = 0
    try:
        if sys.argv[0] == "torchwise":
            torchwise.cli.main()
        else:
            sys.path.insert(0, order["folder"])
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as error:
        code = error.code  # type: ignore[assignment]
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing ends its forks
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401

    import torchwise.cli
    import torchwise.report.html
    import torchwise.report.recording
    import torchwise.report.terminal
    import torchwise.runtime.program.stored
    import torchwise.runtime.program.tuning
    import torchwise.store

    with contextlib.suppress(torchwise.errors.InputError):
        torchwise.cli.app(["run", "no_program.py"])  # which loads the rest
    _run(_answer_orders())
