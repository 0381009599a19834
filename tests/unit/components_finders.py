"""Ways to find a plan for a part without a search, for the tests of parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from live_decisions import make_decision
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Decision, Interval
from torchwise.runtime.components import CompileConfig
from torchwise.workload import Example
from torchwise.workload.identity import describe_example

THREADS = Plan(threads=torch.get_num_threads() + 1)


class Finder:
    """Decides for one plan at once, and remembers the questions."""

    def __init__(self, plan: Plan = THREADS, speedup: float = 2.0) -> None:
        self.plan, self.speedup = plan, speedup
        self.asked: list[tuple[Callable[..., Any], Sequence[Example], CompileConfig]] = []

    def __call__(self, original: Callable[..., Any], examples: Sequence[Example], config: CompileConfig) -> Decision:
        self.asked.append((original, examples, config))
        return replace(
            make_decision(original, self.plan),
            inputs=tuple(describe_example(example) for example in examples),
            speedup=Interval(self.speedup * 0.98, self.speedup, self.speedup * 1.02),
            workload=WorkloadSpec("live:part", mode="training" if config.training else "inference"),
        )


class Failing(Finder):
    """Finds nothing but an error."""

    def __call__(self, original: Callable[..., Any], examples: Sequence[Example], config: CompileConfig) -> Decision:
        super().__call__(original, examples, config)
        raise OSError("no room for a worker")
