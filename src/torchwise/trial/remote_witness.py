"""A candidate in a process of its own, which a judge questions without ever running its code.

The process is forked before the reference is loaded. So it holds neither the reference nor its answers. Its messages
are read as plain data: tensors, numbers and texts, and no object that could bring code along.
"""

from __future__ import annotations

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
from torchwise.verify.plain_data import MAX_ERROR, describe_testimony, read_testimony
from torchwise.verify.stochastic import Samples
from torchwise.verify.surroundings import Surroundings
from torchwise.verify.witness import LocalWitness, Question, Testimony
from torchwise.workload.workload import Example

Load = Callable[[], Callable[..., Any]]


class RemoteWitness:
    """The judge's end.

    Args:
        load: loads the candidate, in its own process.
        limit_s: seconds for each answer, after which the candidate counts as hanging.

    Raises:
        InputError: the candidate cannot be loaded.
    """

    def __init__(self, load: Load, limit_s: float) -> None:
        self._limit_s = limit_s
        self._connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(load, other, self._connection), daemon=True)
        self._process.start()
        other.close()
        self._is_lost = ""

    def load(self) -> None:
        """Wait until the candidate is loaded.

        Raises:
            InputError: it cannot be loaded.
        """
        answer = self._receive()
        if self._is_lost:
            raise InputError(f"the candidate cannot be loaded: it {self._is_lost}")
        if "user_error" in answer:
            kind = getattr(errors, answer["kind"], InputError)
            raise kind(f"the candidate cannot be loaded: {answer['user_error']}")

    def close(self) -> None:
        """End the candidate's process."""
        self._connection.close()
        if self._process.is_alive() and self._process.pid is not None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(10)

    def adopt(self, state: dict[str, torch.Tensor]) -> bool:
        """Send the reference's weights and buffers."""
        return bool(self._ask("adopt", state).get("adopted", False))

    def answer(self, question: Question) -> Testimony:
        """Have the candidate make the calls of a question. A process that dies or hangs has no answer."""
        told = self._ask("answer", question)
        if self._is_lost:
            return Testimony(None, error=self._is_lost)
        try:
            return read_testimony(told)
        except (KeyError, TypeError, ValueError) as error:
            return Testimony(None, error=f"answers in a form that cannot be read ({format_error(error)})")

    def hold(self, first: Example, second: Example) -> str:
        """Have the candidate keep an answer while other calls are made."""
        return self._is_lost or str(self._ask("hold", first, second).get("problem", self._is_lost))

    def collect_noise(self, example: Example, calls: int, seed: int) -> Samples:
        """Return the answers of successive calls as a matrix, or an empty one if there are none."""
        samples = self._ask("collect_noise", example, calls, seed).get("samples")
        return np.asarray(samples.numpy() if isinstance(samples, torch.Tensor) else np.full((calls, 1), np.nan))

    def list_replaced(self) -> tuple[str, ...]:
        """List the functions that the candidate has replaced in its process."""
        return tuple(map(str, self._ask("list_replaced").get("names", ())))

    def _ask(self, method: str, *arguments: Any) -> dict[str, Any]:
        if self._is_lost:
            return {}
        try:
            self._connection.send_bytes(_write((method, arguments)))
        except OSError:
            self._is_lost = "ended its process"
            return {}
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        """Return the next message, or nothing if the process is lost."""
        try:
            if not self._connection.poll(self._limit_s):
                self._is_lost = f"gives no answer within {self._limit_s:g} s"
                return {}
            message = torch.load(io.BytesIO(self._connection.recv_bytes()), weights_only=True)
        except (EOFError, OSError):
            self._process.join(10)
            code = self._process.exitcode
            is_signal = code is not None and code < 0
            name = signal.Signals(-code).name if is_signal and code is not None else f"exit code {code}"
            self._is_lost = f"ended its process ({name})"
            return {}
        except Exception as error:  # bytes of a process that may send anything
            self._is_lost = f"answers in a form that cannot be read ({format_error(error)[:MAX_ERROR]})"
            return {}
        return message if isinstance(message, dict) else {}


def _serve(load: Load, connection: Connection, other: Connection) -> NoReturn:
    """Load the candidate and answer questions, until the judge hangs up."""
    other.close()
    before = Surroundings()
    write, send = _write, connection.send_bytes
    try:
        witness = LocalWitness(load(), before)
    except TorchwiseError as error:
        send(write({"user_error": str(error), "kind": type(error).__name__}))
        os._exit(1)
    except BaseException as error:  # loading runs the user's code
        send(write({"user_error": format_error(error), "kind": "InputError"}))
        os._exit(1)
    send(write({}))
    while True:
        try:
            method, arguments = torch.load(io.BytesIO(connection.recv_bytes()), weights_only=False)
        except (EOFError, OSError):
            os._exit(0)
        send(write(_ANSWERS[method](witness, *arguments)))


_ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {
    "adopt": lambda witness, state: {"adopted": witness.adopt(state)},
    "answer": lambda witness, question: describe_testimony(witness.answer(question)),
    "hold": lambda witness, first, second: {"problem": witness.hold(first, second)},
    "collect_noise": lambda witness, *given: {"samples": torch.from_numpy(witness.collect_noise(*given))},
    "list_replaced": lambda witness: {"names": list(witness.list_replaced())},
}


def _write(message: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(message, buffer, pickle_module=pickling)
    return buffer.getvalue()
