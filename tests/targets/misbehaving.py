"""Models that are right and quick on one thread, and misbehave on three: planted faults that need no compiler."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

GOOD, BAD = 1, 3


class Misbehaving(torch.nn.Module):
    """Has its faults at `BAD` threads and, one thread more each, beyond."""

    def __init__(self, *faults: str) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.faults = dict(enumerate(faults, BAD))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        threads = torch.get_num_threads()
        time.sleep(0.0005 if threads == GOOD else 0.01)  # far apart: a busy machine wakes nobody in time
        answer = self.linear(x)
        return getattr(self, self.faults[threads])(answer) if threads in self.faults else answer

    def segfaults(self, answer: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGSEGV)
        return answer

    def exits(self, answer: torch.Tensor) -> torch.Tensor:
        os._exit(7)

    def hangs(self, answer: torch.Tensor) -> torch.Tensor:
        time.sleep(3600)
        return answer

    def raises(self, answer: torch.Tensor) -> torch.Tensor:
        raise ValueError("no answer on three threads")

    def hogs(self, answer: torch.Tensor) -> torch.Tensor:
        self.hoard = []
        while True:
            self.hoard.append(torch.ones(8 * 2**20))  # 32 MiB each, touched

    def allocates(self, answer: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**60) + answer

    def nan(self, answer: torch.Tensor) -> torch.Tensor:
        return answer * float("nan")

    def wrong(self, answer: torch.Tensor) -> torch.Tensor:
        return answer * 1.001

    def wrong_dtype(self, answer: torch.Tensor) -> torch.Tensor:
        return answer.double()

    def interrupts(self, answer: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt


def _make(*faults: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Misbehaving(*faults).eval(), (torch.randn(4, 16),)


def segfaults() -> object:
    return _make("segfaults")


def exits() -> object:
    return _make("exits")


def hangs() -> object:
    return _make("hangs")


def raises() -> object:
    return _make("raises")


def hogs() -> object:
    return _make("hogs")


def allocates() -> object:
    return _make("allocates")


def nan() -> object:
    return _make("nan")


def wrong() -> object:
    return _make("wrong")


def wrong_dtype() -> object:
    return _make("wrong_dtype")


def interrupts() -> object:
    return _make("interrupts")


def several() -> object:
    return _make("wrong", "nan", "segfaults", "raises")


def refuses() -> object:
    """A model whose inputs do not fit it."""
    return torch.nn.Linear(16, 16), (torch.randn(4, 8),)


def dies() -> object:
    """A model that dies by itself, whatever the plan."""

    def call(x: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGSEGV)
        return x

    return call, (torch.randn(4),)


def fail_in_factory() -> object:
    """A factory that raises."""
    raise RuntimeError("no weights here")


class Yields(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Iterator[torch.Tensor]:
        for row in x:
            yield row * 2


def yields() -> tuple[torch.nn.Module, tuple[torch.Tensor]]:
    """Computes nothing before its answer is read."""
    return Yields(), (torch.ones(4, 8),)


async def _later(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def awaits() -> tuple[Callable[..., Any], tuple[torch.Tensor]]:
    """Likewise."""
    return _later, (torch.ones(4, 8),)
