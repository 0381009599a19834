"""A model that keeps its last calls in a bounded deque. A compiler that never drops the oldest is found out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchwise.records import Outcome
from torchwise.verify import Subject, verify
from torchwise.workload import Example, Workload
from torchwise.workload.module_state import State

pytestmark = pytest.mark.usefixtures("dynamo_afresh")


class Window(nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)
        self.past = deque([torch.zeros(2, 4) for _ in range(length)], maxlen=length)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.past.append(self.project(x))
        return torch.stack(list(self.past)).sum(0)


def never_dropping(model: Window) -> Callable[..., Any]:
    """Answer as a compiler does that appends to a full deque without effect: the oldest item still counts."""

    def call(x: torch.Tensor) -> torch.Tensor:
        oldest = model.past[0]
        answer: torch.Tensor = model(x)
        return answer + oldest

    return call


def verify_call(call: Callable[..., Any], model: nn.Module, **how: Any) -> Any:
    workload = Workload(model, (Example((torch.rand(2, 4),)),))
    return verify(Subject(workload, call, model, stateful=True, **how), extra_draws=0)


@pytest.mark.parametrize("length", [3, 12])
def test_calls_go_on_until_what_they_kept_is_dropped(length: int) -> None:
    model = Window(length).eval()
    assert State.from_call(model).window == length
    verdict = verify_call(never_dropping(model), model)
    assert verdict.outcome is Outcome.FAIL
    assert f"of call {length + 1} " in str(verdict.reason)
    assert verify_call(model, model).outcome is Outcome.PASS


def test_a_deque_without_bounds_has_no_window() -> None:
    model = Window(3)
    model.past = deque(model.past)
    assert State.from_call(model).window == 0
