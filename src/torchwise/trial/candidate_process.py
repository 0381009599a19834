"""Processes that run a candidate: forked before the reference is loaded, or of another interpreter.

Each process has a channel of its own. So nothing that it leaves behind, such as a child, can answer in place of the
next one. Only the keeper, which runs no code of the candidate, says which process it is and how it ended.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch

from torchwise.errors import InternalError, TorchwiseError, format_error
from torchwise.trial import pickling
from torchwise.trial.interpreter_launcher import start_interpreter
from torchwise.trial.worker import end_with_parent
from torchwise.verify.plain_data import describe_testimony
from torchwise.verify.surroundings import Surroundings
from torchwise.verify.witness import LocalWitness

LOAD_LIMIT_S = 600.0
"""Seconds for loading a candidate, which may compile an extension."""
NOT_LOADED = 114
"""Exit code of a process whose candidate cannot be loaded."""
Load = Callable[[], Callable[..., Any]]


class CandidateProcess(Protocol):
    """Where a candidate runs, in one process after another."""

    def start(self) -> Connection:
        """Return the channel of the next process.

        Raises:
            InternalError: there is none.
        """
        ...

    def find_death(self, wait_s: float = 0.0) -> str:
        """Say how the process ended, or return "" if it still runs after so many seconds."""
        ...

    def kill(self) -> None:
        """End the process."""
        ...

    def close(self) -> None:
        """End the process, and all that keeps it."""
        ...


class ForkedProcess:
    """Processes forked from one that holds nothing of the reference. A keeper forks the next one if one dies.

    Args:
        load: loads the candidate, in its own process.
    """

    def __init__(self, load: Load) -> None:
        self._control, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._keeper = context.Process(target=_keep, args=(load, other, self._control, Surroundings()))
        self._keeper.start()
        other.close()
        self._pid, self._death = 0, ""

    def start(self) -> Connection:
        """Return the channel of the next process, as the keeper tells it."""
        try:
            if not self._control.poll(LOAD_LIMIT_S):
                raise InternalError("the keeper of the candidate's process does not answer")
            self._pid, self._death = int(self._control.recv()), ""
            return Connection(recv_handle(self._control))
        except (EOFError, OSError) as error:
            raise InternalError(f"the keeper of the candidate's process is gone: {format_error(error)}") from error

    def find_death(self, wait_s: float = 0.0) -> str:
        """Return the keeper's word on the process's end."""
        try:
            if not self._death and self._control.poll(wait_s):
                self._death = str(self._control.recv())
        except (EOFError, OSError):
            self._death = "and its keeper are gone"
        return self._death

    def kill(self) -> None:
        """End the candidate's process."""
        _kill(self._pid)

    def close(self) -> None:
        """End the keeper, so that it forks no more, and then the candidate's process."""
        self._control.close()
        _kill(self._keeper.pid)
        self._keeper.join(10)
        self.kill()


class InterpreterProcess:
    """Processes of another interpreter, which may have another PyTorch.

    Args:
        load: loads the candidate there.
        python: the interpreter.
    """

    def __init__(self, load: Load, python: str) -> None:
        self._load, self._python = load, python
        self._folder = tempfile.TemporaryDirectory(prefix="torchwise-candidate-")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Connection:
        """Start the interpreter, and tell it what to load."""
        own, other = multiprocessing.Pipe()
        with other, open(os.path.join(self._folder.name, "output"), "ab") as log:
            where = f"{__name__}:serve"
            self._process = start_interpreter(self._python, self._folder.name, where, other.fileno(), log)
        with contextlib.suppress(OSError):  # it has ended already, which shows at the first answer
            own.send_bytes(write_message(self._load))
        return own

    def find_death(self, wait_s: float = 0.0) -> str:
        """Say how the interpreter ended."""
        if self._process is None:
            return "was not started"
        try:
            code = self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return ""
        said = Path(self._folder.name, "output").read_text(encoding="utf-8", errors="replace").strip()
        return _describe_exit(code) + (f": {said.splitlines()[-1][:MAX_ERROR]}" if said and code > 0 else "")

    def kill(self) -> None:
        """End the interpreter."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the interpreter, and forget its output."""
        self.kill()
        self.find_death(10)
        self._folder.cleanup()


def _kill(pid: int | None) -> None:
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _describe_exit(code: int) -> str:
    return f"ended its process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


def _keep(load: Load, control: Connection, other: Connection, before: Surroundings) -> NoReturn:
    """Fork a candidate's process, and another one whenever it dies, until the judge hangs up."""
    other.close()
    end_with_parent()
    judge = os.getppid()
    with contextlib.suppress(OSError):
        while True:
            own, channel = multiprocessing.Pipe()
            pid = os.fork()
            if pid == 0:
                control.close()
                own.close()
                end_with_parent()
                answer_questions(load, channel, before)
            channel.close()
            control.send(pid)
            send_handle(control, own.fileno(), judge)
            own.close()
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            control.send(_describe_exit(code))
            if code == NOT_LOADED:
                break
    os._exit(0)


def serve() -> NoReturn:
    """Answer questions in this process, which is another interpreter's own."""
    channel: Connection = Connection(int(sys.argv[2]))
    end_with_parent()
    before = Surroundings()
    answer_questions(torch.load(io.BytesIO(channel.recv_bytes()), weights_only=False), channel, before)


def answer_questions(load: Load, channel: Connection, before: Surroundings) -> NoReturn:
    """Load the candidate and answer questions, each with its ticket, until the judge hangs up."""
    write, send, read = write_message, channel.send_bytes, channel.recv_bytes
    try:
        witness = LocalWitness(load(), before)
    except BaseException as error:  # loading runs the user's code
        is_known = isinstance(error, TorchwiseError)
        text, kind = (str(error), type(error).__name__) if is_known else (format_error(error), "InputError")
        send(write({"user_error": text, "kind": kind}))
        os._exit(NOT_LOADED)
    send(write({"ready": True}))
    while True:
        try:
            ticket, method, arguments = torch.load(io.BytesIO(read()), weights_only=False)
        except (EOFError, OSError):
            os._exit(0)
        send(write({**_ANSWERS[method](witness, *arguments), "ticket": ticket}))


_ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {
    "adopt": lambda witness, state, takes: {"adopted": witness.adopt(state, takes=takes)},
    "answer": lambda witness, question: describe_testimony(witness.answer(question)),
    "hold": lambda witness, first, second: {"problem": witness.hold(first, second)},
    "collect_noise": lambda witness, question: {"samples": torch.from_numpy(witness.collect_noise(question))},
    "list_replaced": lambda witness: {"names": list(witness.list_replaced())},
    "list_import_changes": lambda witness: {"names": list(witness.list_import_changes())},
}


def write_message(message: Any) -> bytes:
    """Return a message as bytes."""
    buffer = io.BytesIO()
    torch.save(message, buffer, pickle_module=pickling)
    return buffer.getvalue()


class Channel:
    """The judge's end of a channel: each question has a ticket, and an answer with any other one is refused."""

    def __init__(self, process: CandidateProcess) -> None:
        self._process = process
        self._connection = process.start()

    def ask(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> dict[str, Any]:
        """Return the answer, or {"lost": why} if there is none that can be trusted. The channel is of no use then."""
        ticket = secrets.token_hex(16)
        try:
            self._connection.send_bytes(write_message((ticket, method, arguments)))
        except OSError:
            return {"lost": self._process.find_death(DEATH_S) or "reads no more questions"}
        told = self.receive(limit_s)
        if "lost" not in told and told.get("ticket") != ticket:
            return {"lost": "answers before it is asked: a message answers no question, or an earlier one"}
        return told

    def receive(self, limit_s: float) -> dict[str, Any]:
        """Return the next message, or {"lost": why}."""
        until = time.monotonic() + limit_s
        try:
            while not self._connection.poll(min(POLL_S, max(until - time.monotonic(), 0.0))):
                if death := self._process.find_death():  # what it left behind may hold the channel open
                    return {"lost": death}
                if time.monotonic() > until:
                    return {"lost": f"gives no answer within {limit_s:g} s"}
            message = self._connection.recv_bytes()
        except (EOFError, OSError):
            return {"lost": self._process.find_death(DEATH_S) or "has closed its channel"}
        return _read(message)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


POLL_S, DEATH_S = 0.1, 10.0
"""Seconds between two looks at a process that gives no answer, and to wait for the word on its end."""
MAX_ERROR = 500
"""Characters of an unreadable message's error that are told."""


def _read(message: bytes) -> dict[str, Any]:
    try:
        found = torch.load(io.BytesIO(message), weights_only=True)
    except Exception as error:  # bytes of a process that may send anything
        return {"lost": f"answers in a form that cannot be read ({format_error(error)[:MAX_ERROR]})"}
    is_fair = isinstance(found, dict) and "lost" not in found
    return found if is_fair else {"lost": "answers in a form that cannot be read"}
