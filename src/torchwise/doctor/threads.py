"""What a small model pays for its threads on this machine: timed in the probe's child, told as one line of JSON."""

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
"""Calls in a row on one number of threads: enough that some of them wait, where threads wait for cores."""
LONGEST_S, MIN_ROUNDS = 1.0, 3


@dataclass(frozen=True, slots=True)
class ThreadCost:
    """What a call of a small model took.

    Attributes:
        cores: how the CPUs were shared meanwhile.
        seconds: mean seconds a call by the number of threads, PyTorch's own number first.
    """

    cores: CoreUse
    seconds: dict[int, float]


def time_threads() -> str:
    """Time a small model on PyTorch's own number of threads and on one, in turn; return a `ThreadCost` as JSON."""
    import torch

    default = torch.get_num_threads()
    layers = [torch.nn.Linear(FEATURES, FEATURES) for _ in range(LAYERS)]
    model, x = torch.nn.Sequential(*layers), torch.ones(1, FEATURES)
    spent = dict.fromkeys((default, 1), 0.0)
    rounds, watch, end = 0, CoreWatch(), time.perf_counter() + LONGEST_S
    with torch.no_grad():
        while rounds < MIN_ROUNDS or time.perf_counter() < end:
            rounds += 1
            for threads in spent:
                torch.set_num_threads(threads)
                spent[threads] += _time_calls(lambda: model(x))
    torch.set_num_threads(default)
    seconds = {threads: taken / rounds / CALLS for threads, taken in spent.items()}
    return json.dumps({"cores": asdict(watch.read_use(default)), "seconds": seconds})


def read_cost(text: str) -> ThreadCost:
    """Read what `time_threads` wrote."""
    told = json.loads(text)
    return ThreadCost(CoreUse(**told["cores"]), {int(threads): each for threads, each in told["seconds"].items()})


def _time_calls(call: Callable[[], Any]) -> float:
    call()  # what starts threads anew does not count
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - start
