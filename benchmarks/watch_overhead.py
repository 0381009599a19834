"""The cost of `torchwise.watch()`, per call of a compiled model without new compilations, and per compilation.

Calls with and without a watch alternate in one process, in an order that swaps from round to round. The result is the
median of the paired ratios with its 95 % interval. A control times the same calls against themselves, which shows how
far the clock can be trusted. Compilations are timed in the same way, each from a reset compiler. They run once through
Inductor with warm caches, and once up to the captured graph only. There is one thread, so that none waits for another.

Run it: python benchmarks/watch_overhead.py --device cpu --layers 4
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from torchwise.diagnose.trace import watch
from torchwise.environment import detect
from torchwise.records.statistics import Interval, ratio_interval

Timer = Callable[[], float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3000)
    parser.add_argument(
        "--calls", type=int, default=40, help="per block; a round is two blocks, short, so that both meet one machine"
    )
    parser.add_argument("--compilations", type=int, default=31)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = chain(options.layers, options.width).to(options.device).eval()
    x = torch.randn(4, options.width, device=options.device)
    machine = detect(options.device)
    print(f"{machine.gpu or machine.cpu}, torch {torch.__version__}")
    with torch.no_grad():
        calls = steady(torch.compile(model), x, options.calls)
        per_call = calls() / options.calls
        print(f"a call of {options.layers} compiled layers takes {per_call * 1e6:.1f} us")
        show("calls with a watch", race(wrap_in_watch(calls), calls, options.rounds))
        show("calls without, the control", race(calls, calls, options.rounds))
        for backend in ("inductor", "eager"):
            compiles = compile_timer(model, x, backend)
            compiles()
            show(f"compiling, {backend}", race(wrap_in_watch(compiles), compiles, options.compilations))


def chain(layers: int, width: int) -> torch.nn.Module:
    """Return a chain of layers of minimum size: the less work a call has, the more a watch could cost."""
    return torch.nn.Sequential(
        *(part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU()))
    )


def steady(call: Callable[..., object], x: torch.Tensor, calls: int) -> Timer:
    """Time some calls that compile nothing."""
    for _ in range(20):
        call(x)

    def measure_time() -> float:
        for _ in range(10):  # the start and end of a watch used the processor's caches
            call(x)
        synchronize(x)
        start = now(x)
        for _ in range(calls):
            call(x)
        synchronize(x)
        return now(x) - start

    return measure_time


def compile_timer(model: torch.nn.Module, x: torch.Tensor, backend: str) -> Timer:
    """Time a first call, with warm caches of Inductor on disk and a reset compiler."""

    def measure_time() -> float:
        torch._dynamo.reset()
        call = torch.compile(model, backend=backend)
        start = now(x)
        call(x)
        synchronize(x)
        return now(x) - start

    return measure_time


def wrap_in_watch(timer: Timer) -> Timer:
    """Wrap a timer in a watch, whose start and end are not timed."""

    def measure_time() -> float:
        with watch(print=False):
            return timer()

    return measure_time


def race(first: Timer, second: Timer, rounds: int) -> Interval:
    """Return the ratio of first to second, from pairs timed one right after the other."""
    pairs = []
    for number in range(rounds):
        if number % 2:
            after = second()
            pairs.append((first(), after))
        else:
            before = first()
            pairs.append((before, second()))
    return ratio_interval([one for one, _ in pairs], [other for _, other in pairs])


def show(what: str, ratio: Interval) -> None:
    print(f"{what:30} {(ratio.mid - 1) * 100:+6.2f} %  [{(ratio.low - 1) * 100:+.2f}, {(ratio.high - 1) * 100:+.2f}]")


def now(x: torch.Tensor) -> float:
    """Return seconds. On a CPU these are the thread's computing time, so that other programs do not count."""
    return time.perf_counter() if x.is_cuda else time.thread_time()


def synchronize(x: torch.Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
