"""The time per call of a small model while another program holds one core: eager, torch.compile's modes and Torchwise.

A process that computes all the time is bound to one core. Meanwhile Torchwise tunes a multi-layer perceptron at batch 1
with effort quick. Then all ways are timed in turn, in blocks of calls. A block counts by its mean, as a program pays
for every call. If only some calls wait, a median would show only one kind of call.

Run it: python benchmarks/contended_threads.py [results.json]
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agreement import computing

import torchwise as tw
from torchwise import environment
from torchwise.measure.quality import CoreWatch

LAYERS, FEATURES, CALLS = 7, 256, 20
RESAMPLES = 2000
MODES = ("default", "max-autotune-no-cudagraphs")
Way = Callable[[torch.Tensor], Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("json", nargs="?", type=Path)
    parser.add_argument("--budget", type=float, default=180, help="seconds of search")
    parser.add_argument("--seconds", type=float, default=120, help="of timing")
    parser.add_argument("--quiet", action="store_true", help="hold no core: for comparison")
    options = parser.parse_args()
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(FEATURES, FEATURES), torch.nn.ReLU())]
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(1, FEATURES)
    with computing(0 if options.quiet else 1, [max(os.sched_getaffinity(0))]), torch.no_grad():
        decision = decide(model, x, options.budget)
        variants: dict[str, Way] = {"eager": model, "eager, 1 thread": limit_to_one_thread(model)}
        for mode in MODES:  # `compile` marks the model it is given
            variants[f"torch.compile {mode}"] = torch.compile(copy.deepcopy(model), mode=mode)
        variants["torchwise"] = tw.apply(model, decision)
        watch = CoreWatch()
        samples = time_in_turn(variants, x, options.seconds)
        cores = watch.read_use(torch.get_num_threads())
    here = environment.detect("cpu")
    print(f"{here.hardware}, torch {here.torch}, Python {here.python}, {time.strftime('%Y-%m-%d', time.gmtime())}")
    print(f"{cores.others or 0:.1f} of {cores.cpus} cores were used by other programs; load {os.getloadavg()[0]:.1f}\n")
    print(f"Torchwise: {decision.reason}\n\n{table(samples)}")
    if options.json:
        found = {"hardware": here.hardware, "torch": here.torch, "plan": str(decision.plan), "samples_s": samples}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def decide(model: torch.nn.Module, x: torch.Tensor, budget: float) -> Any:
    """Return Torchwise's decision, from a new store."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/studies.db"
        return tw.tune(model, (x,), calls=10_000_000, effort="quick", budget=budget, store=store).decision


def limit_to_one_thread(model: Way) -> Way:
    """Wrap the model to use one thread for its own calls, as a user would write it."""

    def call(x: torch.Tensor) -> Any:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return model(x)
        finally:
            torch.set_num_threads(before)

    return call


def time_in_turn(variants: dict[str, Way], x: torch.Tensor, seconds: float) -> dict[str, list[float]]:
    """Return the mean seconds per call of each block, by way. Each round has one block per way, in random order."""
    for variant in variants.values():
        for _ in range(3):
            variant(x)
    samples: dict[str, list[float]] = {name: [] for name in variants}
    end, order = time.perf_counter() + seconds, random.Random(0)
    while time.perf_counter() < end:
        # In random order, as threads of the previous variant may still spin.
        for name, variant in order.sample(list(variants.items()), len(variants)):
            start = time.perf_counter()
            for _ in range(CALLS):
                variant(x)
            samples[name].append((time.perf_counter() - start) / CALLS)
    return samples


def table(samples: dict[str, list[float]]) -> str:
    """Return a line for each way: mean, median and spread of its blocks, and eager's mean relative to its own."""
    rounds = len(samples["eager"])
    lines = [f"{'way':40} {'mean ms':>9} {'median ms':>10}  {'10 % to 90 % ms':>18}  eager's mean over it"]
    draws = np.random.default_rng(0).integers(0, rounds, (RESAMPLES, rounds))
    eager = np.asarray(samples["eager"])
    for name, seconds in samples.items():
        own = np.asarray(seconds)
        low, high = np.quantile(eager[draws].mean(1) / own[draws].mean(1), (0.025, 0.975))
        ten, middle, ninety = np.quantile(own, (0.1, 0.5, 0.9)) * 1e3
        ratio = f"{eager.mean() / own.mean():.3g} [{low:.3g}, {high:.3g}]"
        lines.append(f"{name:40} {own.mean() * 1e3:9.3f} {middle:10.3f}  {f'{ten:.3f} to {ninety:.3f}':>18}  {ratio}")
    return "\n".join([*lines, f"\n{rounds} rounds of {CALLS} calls each; intervals: bootstrap over rounds, 95 %"])


if __name__ == "__main__":
    main()
