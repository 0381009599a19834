"""Measure how threads slow a small model down, in the probe's child process, as one line of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torchwise.measure.cores import CoreWatch
from torchwise.records import CoreUse

LAYERS, FEATURES = 7, 256
CALLS = 10
"""Consecutive calls with one number of threads: enough for some of them to wait, if threads wait for cores."""
MAX_S, MIN_ROUNDS = 1.0, 3


@dataclass(frozen=True, slots=True)
class ThreadCost:
    """The timings of a small model.

    Attributes:
        cores: the use of the CPUs during the timings.
        seconds: mean seconds per call by number of threads, PyTorch's own number first.
    """

    cores: CoreUse
    seconds: dict[int, float]


def time_threads() -> str:
    """Time a small model with PyTorch's own number of threads and with one, in turn, as a `ThreadCost` in JSON."""
    import torch

    default = torch.get_num_threads()
    layers = [torch.nn.Linear(FEATURES, FEATURES) for _ in range(LAYERS)]
    model, x = torch.nn.Sequential(*layers), torch.ones(1, FEATURES)
    totals = dict.fromkeys((default, 1), 0.0)
    rounds, watch, end = 0, CoreWatch(), time.perf_counter() + MAX_S
    with torch.no_grad():
        while rounds < MIN_ROUNDS or time.perf_counter() < end:
            rounds += 1
            for threads in totals:
                torch.set_num_threads(threads)
                totals[threads] += _time_calls(lambda: model(x))
    torch.set_num_threads(default)
    seconds = {threads: total / rounds / CALLS for threads, total in totals.items()}
    return json.dumps({"cores": asdict(watch.read_use(default)), "seconds": seconds})


def read_cost(text: str) -> ThreadCost:
    """Read the output of `time_threads`."""
    data = json.loads(text)
    return ThreadCost(CoreUse(**data["cores"]), {int(threads): each for threads, each in data["seconds"].items()})


def _time_calls(call: Callable[[], Any]) -> float:
    call()  # the start of new threads does not count
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - start
