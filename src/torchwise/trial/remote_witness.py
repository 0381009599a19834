"""A candidate in a process of its own, which a judge questions without ever running its code.

It holds neither the reference nor its answers. Its messages are read as plain data: tensors, numbers and texts, and no
object that could bring code along.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from torchwise.errors import (
    InputError,
    PlanError,
    TargetError,
    TorchwiseError,
    UnsupportedError,
    WorkloadError,
    format_error,
)
from torchwise.trial.candidate_process import DEATH_S, LOAD_LIMIT_S, CandidateProcess, Channel
from torchwise.verify.plain_data import read_testimony
from torchwise.verify.stochastic import Samples
from torchwise.verify.witness import Question, Testimony
from torchwise.workload.workload import Example

_RAISED = {kind.__name__: kind for kind in (InputError, PlanError, TargetError, UnsupportedError, WorkloadError)}
"""Errors of a load, by the name in a candidate's message, which may hold any name."""


class RemoteWitness:
    """The judge's end. If the candidate's process dies, the next question is put to another one.

    Args:
        process: where the candidate runs.
        limit_s: seconds for each answer, after which the candidate counts as hanging.
    """

    def __init__(self, process: CandidateProcess, limit_s: float) -> None:
        self._process, self._limit_s = process, limit_s
        self._channel: Channel | None = None
        self._adopted: tuple[dict[str, torch.Tensor], bool] | None = None

    def load(self) -> Channel:
        """Wait until the candidate is loaded, and return the channel to it.

        Raises:
            InputError: it cannot be loaded.
        """
        self._channel = channel = Channel(self._process)
        answer = channel.receive(LOAD_LIMIT_S)
        if "ready" not in answer:
            kind = _RAISED.get(str(answer.get("kind")), InputError)
            raise kind(f"the candidate cannot be loaded: {answer.get('user_error') or answer.get('lost')}")
        return channel

    def close(self) -> None:
        """End the candidate's process."""
        if self._channel is not None:
            self._channel.close()
        self._process.close()

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

    def hold(self, first: Example, second: Example | None) -> str:
        """Have the candidate keep an answer while other calls are made, and look at all that it kept."""
        told = self._ask("hold", first, second)
        return str(told.get("problem", told.get("lost", "it gives no answer")))

    def collect_noise(self, question: Question) -> Samples:
        """Return the answers of successive calls as a matrix, or an empty one if there are none."""
        samples = self._ask("collect_noise", question).get("samples")
        return np.asarray(samples.numpy() if isinstance(samples, torch.Tensor) else np.empty((0, 0)))

    def list_replaced(self) -> tuple[str, ...]:
        """List the functions that the candidate has replaced in its process."""
        told = self._ask("list_replaced")
        return tuple(map(str, told.get("names", ("no one knows what: it gives no list",))))

    def list_import_changes(self) -> tuple[str, ...]:
        """List the settings that the candidate changed while it was loaded."""
        return tuple(map(str, self._ask("list_import_changes").get("names", ())))

    def _ask(self, method: str, *arguments: Any) -> dict[str, Any]:
        """Return the answer to a question, or {"lost": why}. The next one is put to a process that is alive."""
        try:
            channel = self._channel or self._revive()
        except TorchwiseError as error:
            self._channel = None
            return {"lost": f"cannot be loaded again: {error}"}
        told = channel.ask(method, arguments, self._limit_s)
        if "lost" in told:
            channel.close()
            self._channel = None
            self._process.kill()
            self._process.find_death(DEATH_S)
        return told

    def _revive(self) -> Channel:
        """Start a process in place of the one that is lost, and give it the weights again."""
        channel = self.load()
        if self._adopted is not None:
            channel.ask("adopt", self._adopted, self._limit_s)
        return channel
