"""The paths of a call through Torchwise, and the bytecodes of each besides the model's own code.

`host_cost.py` runs it in a separate process: python -S benchmarks/host_paths.py
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from bytecodes import count_bytecodes
from dispatch import apply_plan, make_decision

import torchwise
from torchwise.plan import Plan
from torchwise.records import Interval
from torchwise.runtime.bucketing import Padding, apply_buckets, verify_padding
from torchwise.runtime.components import CompileConfig, CompileManager
from torchwise.workload import Example

Paths = dict[str, Callable[[], object]]

COMPILED = Plan(backend="inductor")
WARM_CALLS = 10


class Product(torch.nn.Module):
    """A model whose compiled code calls a library, so that no C++ compiler is needed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mm(self.weight)


def build_paths() -> Paths:
    """Return a call for each path through Torchwise, and one without it."""
    whole, short = torch.ones(4, 2), torch.ones(3, 2)
    example = Example((whole,))
    buckets = pad_to_bucket(Product().eval(), example)
    return {
        "the model alone": partial(Product().eval(), whole),
        "stay with eager": partial(apply_plan(Product().eval(), Plan(), example, "cpu"), whole),
        "compiled plan": partial(apply_plan(Product().eval(), COMPILED, example, "cpu"), whole),
        "bucket, as it came": partial(buckets, whole),
        "bucket, padded": partial(buckets, short),
        "part": partial(CompileManager(find=find_plan).register(Product().eval()), whole),
    }


def pad_to_bucket(model: torch.nn.Module, example: Example) -> Callable[..., object]:
    proof = verify_padding(model, example.args, padding=Padding({"x": 0}), buckets=(len(example.args[0]),))
    return apply_buckets(model, make_decision(model, COMPILED, example, "cpu"), proof)


def find_plan(
    original: Callable[..., object], examples: Sequence[Example], _config: CompileConfig
) -> torchwise.Decision:
    """Decide for compilation at once, with a speed-up, as a part keeps no plan without one."""
    return replace(make_decision(original, COMPILED, examples[0], "cpu"), speedup=Interval(1.9, 2.0, 2.1))


def count_paths(paths: Paths) -> dict[str, int]:
    """Count a call of each path after its warmup."""
    with torch.no_grad():
        for call in paths.values():
            for _ in range(WARM_CALLS):
                call()
        gc.collect()
        gc.disable()  # its callbacks depend on everything before
        try:
            return {name: count_bytecodes(call, leave_out=Product.forward.__code__) for name, call in paths.items()}
        finally:
            gc.enable()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(count_paths(build_paths())))
