"""LSTMs on a CPU: in eager, isolated from the compiler, and compiled, with live and with frozen weights.

Time is that of the thread on one core, so that other programs on the machine matter less:

    python benchmarks/compiled_lstm.py  # 3 minutes on one core
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import torchwise as tw
from torchwise.compile import compile_plan
from torchwise.plan import EAGER, Plan
from torchwise.workload import Example

SIZES = ((1, 32, 64, False), (1, 64, 128, False), (8, 64, 256, True), (16, 128, 512, False))
"""Batch, steps, units, and whether an LSTM reads both ways."""
ROUNDS = 15
PLANS = {
    "isolated": Plan(backend="inductor", transforms=("isolate_rnn",)),
    "compiled": Plan(backend="inductor", transforms=("compiled_lstm",)),
    "compiled, frozen": Plan(backend="inductor", transforms=("compiled_lstm",), options=(("freezing", True),)),
}


class Tagger(nn.Module):
    """Two layers of an LSTM between two linear ones."""

    def __init__(self, units: int, *, is_bidirectional: bool) -> None:
        super().__init__()
        self.first = nn.Linear(32, units)
        self.lstm = nn.LSTM(units, units, 2, batch_first=True, bidirectional=is_bidirectional)
        self.last = nn.Linear(units * (1 + is_bidirectional), 8)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, steps, 32) to (batch, steps, 8)."""
        return torch.tanh(self.last(self.lstm(torch.relu(self.first(x)))[0]))


def time_calls(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median time of each call in this thread, in seconds. The calls alternate."""
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.thread_time()
            call()
            spent[name].append(time.thread_time() - start)
    return {name: statistics.median(times[2:]) for name, times in spent.items()}


def main() -> None:
    """Print a line for each size."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, torchwise {tw.__version__}, CPU, one thread: ms a call")
    for batch, steps, units, is_bidirectional in SIZES:
        torch.manual_seed(0)
        model, x = Tagger(units, is_bidirectional=is_bidirectional).eval(), torch.randn(batch, steps, 32)
        calls: dict[str, Callable[[], object]] = {}
        with torch.no_grad():
            for name, plan in {"eager": EAGER, **PLANS}.items():
                torch.compiler.reset()
                call = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference").call
                torch.testing.assert_close(call(x), model(x))
                calls[name] = lambda call=call, x=x: call(x)  # type: ignore[misc]
            times = time_calls(calls)
        told = ", ".join(f"{name} {seconds * 1e3:.3g}" for name, seconds in times.items())
        print(f"batch {batch}, {steps} steps, {units} units{', both ways' * is_bidirectional}: {told}")


if __name__ == "__main__":
    main()
