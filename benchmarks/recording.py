"""The time that recording a program's calls adds to a call, and the memory that it keeps.

Models of few and of many modules are called with and without a recorder, in alternation. The ratio is the median over
pairs of rounds, with its quartiles. On a CPU the time is that of one thread's own work, which other processes disturb
less than the wall clock.

Run it: python benchmarks/recording.py --device cuda
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable

import torch

from torchwise.runtime.program import CallRecorder

ROUNDS = 101
SECONDS = 0.02


class Chain(torch.nn.Module):
    """A chain of layers, each a module, that takes a keyword and returns a dict."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x).relu()
        return {"x": x if mask is None else x * mask}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hardware = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
    print(f"{hardware}, torch {torch.__version__}, {ROUNDS} pairs of rounds of {SECONDS} s")
    for layers, width in ((1, 512), (4, 256), (20, 64), (60, 16)):
        model = Chain(layers, width).to(options.device).eval()
        x = torch.randn(options.rows, width, device=options.device)
        mask = torch.ones(options.rows, 1, device=options.device)
        with torch.no_grad():
            plain, ratios, kept = compare(lambda model=model, x=x, mask=mask: model(x, mask=mask))
        low, mid, high = (100 * (found - 1) for found in statistics.quantiles(ratios, n=4))
        print(
            f"{layers:4} modules, call {plain * 1e3:7.3f} ms: recording adds {mid:5.2f} % [{low:.2f}, {high:.2f}], "
            f"{kept / 1e6:.1f} MB kept"
        )


def compare(call: Callable[[], object]) -> tuple[float, list[float], float]:
    """Return the seconds of a plain call, the ratio of each pair of rounds, and the bytes kept."""
    recorder = CallRecorder()
    with recorder:
        calls = max(int(SECONDS / min(time_calls(call, 20) for _ in range(5))), 1)
    plain, ratios = [], []
    for number in range(ROUNDS):
        times = {}
        for recorded in (number % 2 == 0, number % 2 == 1):
            if recorded:
                with recorder:
                    times[recorded] = time_calls(call, calls)
            else:
                times[recorded] = time_calls(call, calls)
        plain.append(times[False])
        ratios.append(times[True] / times[False])
    return statistics.median(plain), ratios, recorder.kept_bytes


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
    main()
