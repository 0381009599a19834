"""Clusters of programs in Triton's interpreter, which runs one program after another: each has a thread, and a turn."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from torchwise.compile.programs.gpu import launch

LOCAL = threading.local()
"""The number of a thread's program among all, its place in its cluster, and the cluster."""


class Cluster:
    """Programs that run in turn, each up to the next meeting.

    Args:
        programs: their number.
        first: the number of the first of them.
    """

    def __init__(self, programs: int, first: int = 0) -> None:
        self._first = first
        self._turns = [threading.Semaphore(0) for _ in range(programs)]
        self._stopped, self._running = threading.Semaphore(0), set(range(programs))
        self._errors: list[BaseException] = []

    def run(self, kernel: Any, given: Sequence[torch.Tensor], settings: Mapping[str, Any]) -> None:
        """Run a kernel."""
        for part in range(len(self._turns)):
            threading.Thread(target=self._run_one, args=(part, kernel, given, settings), daemon=True).start()
        order = list(range(len(self._turns)))
        while self._running:
            for part in [one for one in order if one in self._running]:
                self._turns[part].release()
                self._stopped.acquire()
            if order[0] == 0:  # the last one to begin ends first, as the interpreter needs
                order.reverse()
        if self._errors:
            raise self._errors[0]

    def _run_one(self, part: int, kernel: Any, given: Sequence[torch.Tensor], settings: Mapping[str, Any]) -> None:
        self._turns[part].acquire()
        LOCAL.program, LOCAL.part, LOCAL.cluster = self._first + part, part, self
        try:
            kernel[1, 1, 1](*given, **settings)
        except BaseException as error:  # told to the thread of the test
            self._errors.append(error)
        self._running.discard(part)
        self._stopped.release()

    def meet(self) -> None:
        """Wait until all others have come as far."""
        self._stopped.release()
        self._turns[LOCAL.part].acquire()


def run_clusters(patch: pytest.MonkeyPatch) -> list[int]:
    """Have clusters run in Triton's interpreter. Return a list to which the programs of each one are added."""
    from triton.runtime.interpreter import InterpreterBuilder  # after the tests have chosen the interpreter

    found: list[int] = []

    def set_part(self: Any, x: int, y: int, z: int) -> None:
        self.grid_idx = getattr(LOCAL, "program", x), y, z

    def meet(_self: Any, text: str, _constraints: str, values: Sequence[Any], *_: Any) -> Any:
        assert "barrier.cluster" in text
        LOCAL.cluster.meet()
        return Returned(values[0])

    def launch_cluster(
        kernel: Any,
        programs: int,
        grid: tuple[int, int, int],
        given: Sequence[torch.Tensor],
        _constants: Mapping[str, Any],
        settings: Mapping[str, Any],
    ) -> None:
        for number in range(grid[0]):
            found.append(programs)
            Cluster(programs, number * programs).run(kernel, given, settings)

    patch.setattr(InterpreterBuilder, "set_grid_idx", set_part)
    patch.setattr(InterpreterBuilder, "create_inline_asm", meet)
    patch.setattr(launch, "launch_cluster", launch_cluster)
    return found


class Returned:
    """The answer of an operator with one output.

    Args:
        value: the output.
    """

    def __init__(self, value: Any) -> None:
        self._value = value

    def get_result(self, _place: int) -> Any:
        """Return the output."""
        return self._value
