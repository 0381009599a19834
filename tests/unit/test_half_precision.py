"""A model whose weights have 16 bits is inspected as such, so that no search tries to give it 16 bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from brief import BRIEF
from torchwise.plan import Numerics, PlanSpace, Trait
from torchwise.plan.choice import load_choices
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.trial.inspection import inspect
from torchwise.trial.job import Job

TARGETS = """
import torch

class Net(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4, dtype=dtype)
        self.register_buffer("waves", torch.ones(4))  # float32, as those of rotary positions

    def forward(self, x):
        return self.layer(x) + self.waves.to(x.dtype)

def half():
    return Net(torch.bfloat16), (torch.randn(2, 4).bfloat16(),)

def single():
    return Net(torch.float32), (torch.randn(2, 4),)

def function():
    return torch.sin, (torch.randn(2, 4).half(),)

def whole_numbers():
    return torch.neg, (torch.arange(4),)
"""


@pytest.mark.parametrize(
    ("name", "is_half"), [("half", True), ("single", False), ("function", True), ("whole_numbers", False)]
)
def test_it_is_found_by_the_weights_or_else_by_the_inputs(name: str, is_half: bool, tmp_path: Path) -> None:
    file = tmp_path / "targets.py"
    file.write_text(TARGETS)
    spec = WorkloadSpec(f"{file}:{name}", device="cpu")
    traits = inspect(Job("inspect", spec, effort=BRIEF), lambda _: None).traits
    assert (Trait.HALF in traits) is is_half
    space = PlanSpace("cpu", "inference", traits, Numerics.LOWER_PRECISION)
    assert (space.excludes(load_choices()["precision", "bf16"]) is None) is (name == "single")
    if is_half:
        reasons = {space.excludes(load_choices()["precision", f"autocast_{dtype}"]) for dtype in ("bf16", "fp16")}
        assert None not in reasons
