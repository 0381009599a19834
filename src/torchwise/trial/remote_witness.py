"""A candidate in a process of its own, which a judge questions without ever running its code.

The process is forked before the reference is loaded. So it holds neither the reference nor its answers. Its messages
are read as plain data: tensors, numbers and texts, and no object that could bring code along.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np
import torch

from torchwise import errors
from torchwise.errors import InputError, TorchwiseError, format_error
from torchwise.trial import pickling
from torchwise.trial.worker import end_with_parent
from torchwise.verify.plain_data import MAX_ERROR, describe_testimony, read_testimony
from torchwise.verify.stochastic import Samples
from torchwise.verify.surroundings import Surroundings
from torchwise.verify.witness import LocalWitness, Question, Testimony
from torchwise.workload.workload import Example

LOAD_LIMIT_S = 600.0
"""Seconds for loading a candidate, which may compile an extension."""
HUNG_UP, NOT_LOADED = 113, 114
"""Exit codes of the candidate's process: the judge has hung up, and the candidate cannot be loaded."""
Load = Callable[[], Callable[..., Any]]


class RemoteWitness:
    """The judge's end.

    A keeper process is forked at once, and forks the candidate's own process. If that one dies, the keeper says so and
    forks another one. So every question is put to a candidate that is alive.

    Args:
        load: loads the candidate, in its own process.
        limit_s: seconds for each answer, after which the candidate counts as hanging.
    """

    def __init__(self, load: Load, limit_s: float) -> None:
        self._limit_s = limit_s
        self._connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._keeper = context.Process(target=_keep, args=(load, other, self._connection, Surroundings()))
        self._keeper.start()
        other.close()
        self._pid = 0
        self._adopted: tuple[dict[str, torch.Tensor], bool] | None = None

    def load(self) -> None:
        """Wait until the candidate is loaded.

        Raises:
            InputError: it cannot be loaded.
        """
        answer = self._receive(LOAD_LIMIT_S)
        if "pid" in answer:
            self._pid = int(answer["pid"])
            return
        kind = getattr(errors, str(answer.get("kind")), InputError)
        raise kind(f"the candidate cannot be loaded: {answer.get('user_error') or answer.get('lost')}")

    def close(self) -> None:
        """End the candidate's process, and its keeper."""
        self._connection.close()
        for pid in (self._keeper.pid, self._pid):
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._keeper.join(10)

    def adopt(self, state: dict[str, torch.Tensor], *, takes: bool = True) -> bool:
        """Send the reference's weights and buffers."""
        self._adopted = state, takes
        return bool(self._ask("adopt", state, takes).get("adopted", False))

    def answer(self, question: Question) -> Testimony:
        """Have the candidate make the calls of a question. A process that dies or hangs has no answer."""
        told = self._ask("answer", question)
        if "lost" in told:
            return Testimony(None, error=str(told["lost"]))
        try:
            return read_testimony(told)
        except (KeyError, TypeError, ValueError) as error:
            return Testimony(None, error=f"answers in a form that cannot be read ({format_error(error)})")

    def hold(self, first: Example, second: Example) -> str:
        """Have the candidate keep an answer while other calls are made."""
        told = self._ask("hold", first, second)
        return str(told.get("problem", told.get("lost", "it gives no answer")))

    def collect_noise(self, question: Question) -> Samples:
        """Return the answers of successive calls as a matrix, or an empty one if there are none."""
        samples = self._ask("collect_noise", question).get("samples")
        return np.asarray(samples.numpy() if isinstance(samples, torch.Tensor) else np.empty((0, 0)))

    def list_replaced(self) -> tuple[str, ...]:
        """List the functions that the candidate has replaced in its process."""
        return tuple(map(str, self._ask("list_replaced").get("names", ())))

    def _ask(self, method: str, *arguments: Any) -> dict[str, Any]:
        """Return the answer to a question, or {"lost": why} if the process died or hangs. The next one is alive."""
        try:
            self._connection.send_bytes(_write((method, arguments)))
            told = self._receive(self._limit_s)
        except OSError:
            return {"lost": "and its keeper are gone"}
        if "hangs" in told:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._receive(LOAD_LIMIT_S)  # the keeper's word on its death
        if "hangs" in told or "died" in told:
            self._revive()
            return {"lost": told.get("hangs") or told["died"]}
        return told

    def _revive(self) -> None:
        """Wait for the process in place of the one that died, and give it the weights again."""
        ready = self._receive(LOAD_LIMIT_S)
        self._pid = int(ready.get("pid", 0))
        if self._adopted is not None and self._pid:
            self._connection.send_bytes(_write(("adopt", self._adopted)))
            self._receive(self._limit_s)

    def _receive(self, limit_s: float) -> dict[str, Any]:
        """Return the next message, or {"hangs": …} if there is none in time, or {"lost": …} if it cannot be read."""
        try:
            if not self._connection.poll(limit_s):
                return {"hangs": f"gives no answer within {limit_s:g} s"}
            message = torch.load(io.BytesIO(self._connection.recv_bytes()), weights_only=True)
        except Exception as error:  # bytes of a process that may send anything
            return {"lost": f"answers in a form that cannot be read ({format_error(error)[:MAX_ERROR]})"}
        return message if isinstance(message, dict) else {"lost": "answers in a form that cannot be read"}


def _keep(load: Load, connection: Connection, other: Connection, before: Surroundings) -> NoReturn:
    """Fork a candidate's process, and another one whenever it dies, until the judge hangs up."""
    other.close()
    end_with_parent()
    while True:
        pid = os.fork()
        if pid == 0:
            end_with_parent()
            _serve(load, connection, before)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code in (HUNG_UP, NOT_LOADED):
            os._exit(0)
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        try:
            connection.send_bytes(_write({"died": f"ended its process ({name})"}))
        except OSError:
            os._exit(0)


def _serve(load: Load, connection: Connection, before: Surroundings) -> NoReturn:
    """Load the candidate and answer questions, until the judge hangs up."""
    write, send, read = _write, connection.send_bytes, connection.recv_bytes
    try:
        witness = LocalWitness(load(), before)
    except BaseException as error:  # loading runs the user's code
        is_known = isinstance(error, TorchwiseError)
        text, kind = (str(error), type(error).__name__) if is_known else (format_error(error), "InputError")
        send(write({"user_error": text, "kind": kind}))
        os._exit(NOT_LOADED)
    send(write({"pid": os.getpid()}))
    while True:
        try:
            method, arguments = torch.load(io.BytesIO(read()), weights_only=False)
        except (EOFError, OSError):
            os._exit(HUNG_UP)
        send(write(_ANSWERS[method](witness, *arguments)))


_ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {
    "adopt": lambda witness, state, takes: {"adopted": witness.adopt(state, takes=takes)},
    "answer": lambda witness, question: describe_testimony(witness.answer(question)),
    "hold": lambda witness, first, second: {"problem": witness.hold(first, second)},
    "collect_noise": lambda witness, question: {"samples": torch.from_numpy(witness.collect_noise(question))},
    "list_replaced": lambda witness: {"names": list(witness.list_replaced())},
}


def _write(message: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(message, buffer, pickle_module=pickling)
    return buffer.getvalue()
