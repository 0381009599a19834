"""The cost of background tuning to a program under steady load: stalls, and the 99th percentile of its calls.

One thread calls a model at a steady rate. Each call is timed from its due time. There are three phases. The first is
without tuning. In the second, `torchwise.optimize(background=True)` searches in another process and swaps its plan in.
The third is with the plan. All answers are compared with the original's. PyTorch gets one thread less than there are
cores, which leaves one core to the search.

Run it: python benchmarks/background_stall.py zoo:spinlock.operator@small --device cpu --period-ms 10
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import torchwise
from torchwise import environment
from torchwise.workload import target


class Load:
    """Calls at a steady rate, timed in seconds from each call's due time to its answer."""

    def __init__(self, call: Callable[[], Any], right: torch.Tensor, period_s: float, device: str) -> None:
        self._call, self._right, self._period_s, self._device = call, right, period_s, device
        self.worst = 0.0

    def run(self, until: Callable[[float, int], bool]) -> list[float]:
        """Call until `until` returns true for the seconds and calls so far, and return the seconds of each call."""
        taken: list[float] = []
        start = time.perf_counter()
        due = start
        while not until(time.perf_counter() - start, len(taken)):
            due += self._period_s
            if (wait := due - time.perf_counter()) > 0:
                time.sleep(wait)
            else:
                due = time.perf_counter()  # count a delay once, and not again for later calls
            answer = self._call()
            if self._device == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - due)
            self.worst = max(self.worst, _error(answer, self._right))
        return taken


def _error(answer: Any, right: torch.Tensor) -> float:
    found = torch.utils._pytree.tree_leaves(answer)[0]
    return float((found - right).abs().max() / right.abs().max())


def summarize_times(taken: list[float]) -> dict[str, float]:
    """Return a distribution in milliseconds."""
    ordered = sorted(taken)
    at = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    found = {name: ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3 for name, share in at.items()}
    return {**found, "max": ordered[-1] * 1e3, "calls": float(len(ordered))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--period-ms", type=float, default=10.0)
    parser.add_argument("--alone-s", type=float, default=30.0, help="seconds without a search, before and after")
    parser.add_argument("--effort", default="quick")
    parser.add_argument("--limit-s", type=float, default=600.0, help="seconds after which the search is given up")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) - 1, 1))
    workload = target.load(options.target, device=options.device, seed=0)
    example = workload.examples[0]
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        right = torch.utils._pytree.tree_leaves(workload.call(*example.args, **dict(example.kwargs)))[0].clone()
        served: list[Any] = [workload.call]
        period_s = options.period_ms / 1e3
        load = Load(lambda: served[0](*example.args, **dict(example.kwargs)), right, period_s, options.device)
        alone = load.run(lambda seconds, _: seconds > options.alone_s)
        begun = time.perf_counter()
        served[0] = fast = torchwise.optimize(
            workload.call,
            example.args,
            dict(example.kwargs),
            background=True,
            effort=options.effort,
            calls=10**9,
            store=f"{folder}/store.db",
            device=options.device,
        )
        asked_s = time.perf_counter() - begun
        searching = load.run(lambda seconds, _: fast.background.state != "searching" or seconds > options.limit_s)
        fast.background.stop()
        after = load.run(lambda seconds, _: seconds > options.alone_s)
    found = {
        "target": options.target,
        "period_ms": options.period_ms,
        "effort": options.effort,
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "environment": str(environment.detect(options.device)),
        "threads": torch.get_num_threads(),
        "seconds until optimize returned": round(asked_s, 2),
        "ms per call": {
            "alone": summarize_times(alone),
            "searching": summarize_times(searching),
            "after": summarize_times(after),
        },
        "added stall ms": summarize_times(searching)["max"] - summarize_times(alone)["max"],
        "p99 over p99 alone": summarize_times(searching)["p99"] / summarize_times(alone)["p99"],
        "plan": str(fast.decision.plan),
        "answered by the plan": fast.statistics.optimized,
        "answered by the original": sum(fast.statistics.original.values()),
        "failures": dict(fast.statistics.failures),
        "largest relative difference": load.worst,
        "news": [f"{news.kind}: {news.text}" for news in fast.background.news],
    }
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
