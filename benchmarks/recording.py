"""The time that recording a program's calls adds to a call, and the memory that it keeps.

Models of few and of many modules are called with and without a recorder, in alternation. On a CPU the time is that of
one thread's own work. Other programs disturb it less than the wall clock, but they empty the caches. So the first ratio
is that of the quickest tenth of rounds on each side, and the median over pairs of rounds follows, with its quartiles.
Each round begins with calls that are not timed: a recorder that starts has Python forget its caches of classes, and a
program starts one once. Then inputs of many shapes are offered, more than are kept, and the process grows by the
memory of the recording.

It exits with 1 if recording adds 3 % or more to a call of 1 ms or longer, or takes 200 MB or more.

Run it: python benchmarks/recording.py --device cuda
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import statistics
import time
from collections.abc import Callable

import psutil
import torch

from torchwise import environment
from torchwise.runtime.program import CallRecorder

ROUNDS = 151
SECONDS = 0.03
WARM = 10
CALL_S = 0.001
MAX_ADDED = 0.03
MAX_MEMORY = 200e6
OFFERED = 40
"""Shapes of the inputs that are offered, of 20 MB each."""


class Chain(torch.nn.Module):
    """A chain of layers, each a module, that takes a keyword and returns a dict."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x).relu()
        return {"x": x if mask is None else x * mask}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hardware = torch.cuda.get_device_name() if options.device == "cuda" else environment.detect("cpu").cpu
    print(f"{hardware}, torch {torch.__version__}, {ROUNDS} pairs of rounds of {SECONDS} s")
    is_cheap = True
    for layers, width in ((1, 512), (1, 1024), (4, 512), (20, 128), (60, 64)):
        model = Chain(layers, width).to(options.device).eval()
        x = torch.randn(options.rows, width, device=options.device)
        mask = torch.ones(options.rows, 1, device=options.device)
        with torch.no_grad():
            plain, recorded, kept = compare(lambda model=model, x=x, mask=mask: model(x, mask=mask))
        call_s, quiet = quickest(plain), quickest(recorded) / quickest(plain) - 1
        ratios = [one / other - 1 for one, other in zip(recorded, plain, strict=True)]
        low, mid, high = (100 * found for found in statistics.quantiles(ratios, n=4))
        is_cheap &= call_s < CALL_S or quiet < MAX_ADDED
        print(
            f"{layers:4} modules, call {call_s * 1e3:7.3f} ms: recording adds {100 * quiet:5.2f} %, of all rounds "
            f"{mid:.2f} % [{low:.2f}, {high:.2f}], {kept / 1e6:.1f} MB kept"
        )
    grown, kept, kinds = measure_memory(options.device)
    offered = f"inputs of {kinds} shapes, {OFFERED * 20} MB"
    print(f"{offered}: the process grows by {grown / 1e6:.0f} MB, {kept / 1e6:.0f} MB kept")
    return 0 if is_cheap and grown < MAX_MEMORY else 1


def measure_memory(device: str) -> tuple[float, float, int]:
    """Return the bytes by which the process grows while it records large inputs, those kept, and their kinds."""
    model = Chain(1, 1024).to(device).eval()

    def run() -> None:
        with torch.no_grad():
            for number in range(OFFERED):
                model(torch.ones(5000 + number, 1024, device=device))

    run()
    gc.collect()
    before = memory(device)
    with CallRecorder() as recorder:
        run()
    record = recorder.to_record("memory")
    gc.collect()
    return memory(device) - before, recorder.kept_bytes, len(record.modules[0].inputs)


def memory(device: str) -> float:
    """Return the bytes of this process, and on a GPU those of its tensors as well. Freed memory is given back first."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return psutil.Process().memory_info().rss + (torch.cuda.memory_allocated() if device == "cuda" else 0)


def quickest(rounds: list[float]) -> float:
    """Return the mean of the quickest tenth."""
    return statistics.fmean(sorted(rounds)[: max(len(rounds) // 10, 1)])


def compare(call: Callable[[], object]) -> tuple[list[float], list[float], float]:
    """Return the seconds of a call in each pair of rounds, plain and recorded, and the bytes kept."""
    recorder = CallRecorder()
    with recorder:
        calls = max(int(SECONDS / min(time_calls(call, 20) for _ in range(5))), 1)
    plain, recorded_s = [], []
    for number in range(ROUNDS):
        times = {}
        for recorded in (number % 2 == 0, number % 2 == 1):
            if recorded:
                with recorder:
                    time_calls(call, WARM)
                    times[recorded] = time_calls(call, calls)
            else:
                time_calls(call, WARM)
                times[recorded] = time_calls(call, calls)
        plain.append(times[False])
        recorded_s.append(times[True])
    return plain, recorded_s, recorder.kept_bytes


def time_calls(call: Callable[[], object], calls: int) -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    clock = time.perf_counter if torch.cuda.is_initialized() else time.thread_time
    begun = clock()
    for _ in range(calls):
        call()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return (clock() - begun) / calls


if __name__ == "__main__":
    raise SystemExit(main())
