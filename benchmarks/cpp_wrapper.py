"""How long does a CPU spend between two operators in compiled code, and how much does C++ around the kernels save?

The programs are chains of small products and ReLUs, on one thread. They do so little work that the timings are those of
the surrounding code. Times are medians of alternating blocks. The saving is divided by the number of operators that
eager runs. This quotient bounds the choice `cpp_wrapper` on a CPU (`torchwise.study.history.BETWEEN_S`).

Run it: python benchmarks/cpp_wrapper.py
"""

from __future__ import annotations

import functools
import statistics
from typing import Any

import torch

from torchwise import environment
from torchwise.measure.clock import Clock
from torchwise.trial.inspection import _trace_operators

BLOCKS, CALLS, LENGTHS = 40, 50, (5, 20, 60)


def main() -> None:
    torch.set_num_threads(1)
    here = environment.detect("cpu")
    print(f"{here.cpu}, torch {here.torch}, one thread; microseconds per call\n")
    print("| operators | eager | compiled, Python | compiled, C++ | saved per operator |")
    print("|---|---|---|---|---|")
    x, weight = torch.randn(4, 16), torch.randn(16, 16) / 4
    with torch.no_grad():
        for length in LENGTHS:
            call = functools.partial(chain, length=length)
            _, operators = _trace_operators(lambda call=call: call(x, weight))
            python, cpp = (torch.compile(call, options={"cpp_wrapper": wrapped}) for wrapped in (False, True))
            eager_us, python_us, cpp_us = time_calls([call, python, cpp], x, weight)
            saved = (python_us - cpp_us) / (operators or 1)
            print(f"| {operators} | {eager_us:.1f} | {python_us:.1f} | {cpp_us:.1f} | {saved:.2f} |")


def chain(x: torch.Tensor, weight: torch.Tensor, length: int) -> torch.Tensor:
    for _ in range(length):
        x = torch.relu(x @ weight)
    return x


def time_calls(calls: list[Any], x: torch.Tensor, weight: torch.Tensor) -> list[float]:
    """Return the microseconds per call of each, as medians of alternating blocks."""
    clock = Clock("cpu")
    blocks = [functools.partial(repeat_call, call, x, weight) for call in calls]
    for block in blocks:
        block()
    rounds = [[clock.once(block) for block in blocks] for _ in range(BLOCKS)]
    return [statistics.median(seconds) / CALLS * 1e6 for seconds in zip(*rounds, strict=True)]


def repeat_call(call: Any, x: torch.Tensor, weight: torch.Tensor) -> None:
    for _ in range(CALLS):
        call(x, weight)


if __name__ == "__main__":
    main()
