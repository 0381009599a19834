"""RNNs on a CPU: isolated from the compiler, or compiled with the rest, by Inductor and as row programs.

Time is that of the thread on one core, so that other programs on the machine matter less. Ratios are of eager's time
over a plan's, in rounds in which all take turns: the median, and the range of the middle 80 %. A dash is a plan that
refuses such a model:

    python benchmarks/compiled_rnn.py  # 4 minutes on one core
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import torchwise as tw
from torchwise.compile import compile_plan
from torchwise.errors import UnsupportedError
from torchwise.plan import EAGER, Plan
from torchwise.workload import Example

SIZES = (
    *((kind, 1, steps, 32, False) for kind in (nn.RNN, nn.GRU, nn.LSTM) for steps in (1, 8, 32)),
    *((kind, 8, 1, 128, False) for kind in (nn.RNN, nn.GRU, nn.LSTM)),
    *(
        (nn.LSTM, *size)
        for size in ((1, 32, 64, False), (1, 64, 128, False), (8, 64, 256, True), (16, 128, 512, False))
    ),
)
"""Class, batch, steps, units, and whether it reads both ways."""
ROUNDS = 25
BLOCK_S = 0.002
"""Least time of the calls of one turn."""
COMPILED = Plan(backend="inductor", transforms=("compiled_rnn",))
PLANS = {
    "isolated": Plan(backend="inductor", transforms=("isolate_rnn",)),
    "compiled": COMPILED,
    "compiled, frozen": COMPILED.with_choice("options", ("freezing", True)),
    "row programs": Plan(backend="row_programs"),
}


class Tagger(nn.Module):
    """Two layers of an RNN between two linear ones."""

    def __init__(self, kind: type[nn.RNNBase], units: int, *, is_bidirectional: bool) -> None:
        super().__init__()
        self.first = nn.Linear(32, units)
        self.rnn = kind(units, units, 2, batch_first=True, bidirectional=is_bidirectional)
        self.last = nn.Linear(units * (1 + is_bidirectional), 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, steps, 32) to (batch, steps, 8)."""
        return torch.tanh(self.last(self.rnn(torch.relu(self.first(x)))[0]))


def time_block(call: Callable[[], object], times: int) -> float:
    """Return the seconds of one call of several, in this thread."""
    start = time.thread_time()
    for _ in range(times):
        call()
    return (time.thread_time() - start) / times


def time_calls(calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Return the seconds of each call in each round. The calls take turns."""
    counts = {name: max(1, round(BLOCK_S / max(time_block(call, 3), 1e-6))) for name, call in calls.items()}
    rounds = [{name: time_block(call, counts[name]) for name, call in calls.items()} for _ in range(ROUNDS)]
    return {name: [one[name] for one in rounds[2:]] for name in calls}


def describe_ratio(times: list[float], of: list[float]) -> str:
    """Return how many times as fast as another something is, by rounds."""
    ratios = sorted(other / own for own, other in zip(times, of, strict=True))
    low, *_, high = statistics.quantiles(ratios, n=10)
    return f"{statistics.median(ratios):.2f}× [{low:.2f}, {high:.2f}]"


def main() -> None:
    """Print a table with a row for each size."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, torchwise {tw.__version__}, CPU, one thread\n")
    print(f"| RNN, batch, steps, units | eager | {' | '.join(PLANS)} |")
    print(f"|{'---|' * (2 + len(PLANS))}", flush=True)
    for kind, batch, steps, units, is_bidirectional in SIZES:
        torch.manual_seed(0)
        model, x = Tagger(kind, units, is_bidirectional=is_bidirectional).eval(), torch.randn(batch, steps, 32)
        calls: dict[str, Callable[[], object]] = {}
        with torch.no_grad():
            for name, plan in {"eager": EAGER, **PLANS}.items():
                torch.compiler.reset()
                try:
                    call = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference").call
                    torch.testing.assert_close(call(x), model(x))
                except UnsupportedError:
                    continue
                calls[name] = lambda call=call, x=x: call(x)  # type: ignore[misc]
            times = time_calls(calls)
        cells = [describe_ratio(times[name], times["eager"]) if name in times else "–" for name in PLANS]
        program = f"{kind.__name__}, {batch}, {steps}, {units}{', both ways' * is_bidirectional}"
        print(f"| {program} | {statistics.median(times['eager']) * 1e6:.0f} µs | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
