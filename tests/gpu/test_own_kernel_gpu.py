"""The Triton kernel of the example answers as the model does, compiled and captured as well."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from torchwise.compile import compile_plan
from torchwise.plan import CHOICES, Plan
from torchwise.plan.choice import load_choices
from torchwise.workload import Example

pytestmark = pytest.mark.gpu

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_kernel.py"
PLANS = (
    Plan(transforms=("rms_norm_kernel",)),
    Plan(transforms=("rms_norm_kernel",), capture="call"),
    Plan(transforms=("rms_norm_kernel",), backend="inductor"),
    Plan(transforms=("rms_norm_kernel",), backend="inductor", capture="call"),
)


@pytest.fixture
def example() -> Iterator[ModuleType]:
    load_choices()
    before = dict(CHOICES)
    spec = importlib.util.spec_from_file_location("own_kernel_on_gpu", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.no_grad():
        yield module
    CHOICES.clear()
    CHOICES.update(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 100, 512, 4096])
def test_the_kernel_answers_as_the_module_does(example: ModuleType, width: int, dtype: torch.dtype) -> None:
    norm = example.RMSNorm(width).to("cuda", dtype)
    for rows in (torch.randn(33, width), torch.randn(2, 3, width), torch.randn(width, 33).T):
        x = rows.to("cuda", dtype)
        torch.testing.assert_close(example.run_kernel(norm, x), norm(x))


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_a_plan_with_the_kernel_answers_as_the_model_does(example: ModuleType, plan: Plan) -> None:
    model, args = example.make("cuda")
    plan = replace(plan)  # made anew, now that the kernel is registered, with the digest of its file
    compiled = compile_plan(model, plan, Example(args), device="cuda", mode="inference")
    try:
        for _ in range(4):
            torch.testing.assert_close(compiled.call(*args), model(*args))
    finally:
        compiled.close()
