"""The time that a decision to stay with eager adds to a call, by the checks in C++ and in Python, in nanoseconds.

A module and a function that do nothing are called alone and applied, in turns. Each figure is the quickest of some
blocks, as other programs only add to it, and the median of some rounds, with the least and the largest.

Run it on one core: taskset -c 0 python benchmarks/eager_calls.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import torchwise
from torchwise import environment
from torchwise._torch import native

WAYS = {"in C++": "1", "in Python": "0"}
"""Values of TORCHWISE_NATIVE."""
ROUNDS, BLOCKS, CALLS = 7, 9, 100_000
X = torch.ones(2)


class Nothing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def return_input(x: torch.Tensor) -> torch.Tensor:
    return x


def main() -> None:
    if len(sys.argv) > 1:
        measure()
        return
    here = environment.detect("cpu")
    print(
        f"{here.cpu}, torch {here.torch}, Python {sys.version.split()[0]}, ns a call, the middle round [least, largest]"
    )
    for way, value in WAYS.items():  # in processes of their own, as a class is taken by the checks once
        print(way, flush=True)
        subprocess.run([sys.executable, __file__, "-"], env={**os.environ, "TORCHWISE_NATIVE": value}, check=True)


def measure() -> None:
    """Print the times of a module and a function, alone and applied."""
    if not native.is_off() and native.load_checks() is None:
        raise SystemExit("there are no compiled checks on this machine: torchwise doctor says why")
    for name, call in {"module": Nothing().eval(), "function": return_input}.items():
        applied = apply_eager(call)
        rounds = [(time_call(call), time_call(applied)) for _ in range(ROUNDS)]
        added = sorted(other - one for one, other in rounds)
        alone, both = (statistics.median(column) for column in zip(*rounds, strict=True))
        middle = statistics.median(added)
        print(
            f"  {name:9} alone {alone:5.0f}  applied {both:5.0f}  added {middle:5.0f} [{added[0]:.0f}, {added[-1]:.0f}]"
        )


def apply_eager(call: Any) -> Callable[..., Any]:
    """Return a callable as it is applied after a search that stays with eager."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder, "study.db"))
        study = torchwise.tune(call, (X,), plans=[], effort="quick", store=store, progress=False)
    applied: Callable[..., Any] = torchwise.apply(call, study)
    assert torch.equal(applied(X), X)  # which notes that it stays with eager
    assert study.decision.plan.is_eager
    return applied


def time_call(call: Callable[..., Any]) -> float:
    """Return the nanoseconds of a call."""
    return min(timeit.repeat(lambda: call(X), number=CALLS, repeat=BLOCKS)) / CALLS * 1e9


if __name__ == "__main__":
    main()
