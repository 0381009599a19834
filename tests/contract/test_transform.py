"""Rewrites of Torchwise's own and of a plug-in keep the contract, and the suite sees one that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from broken import find_passed
from plugin import a_backend, a_transform

from torchwise.plan import CHOICES, Choice, Plan, Stage
from torchwise.plan.choice import load_choices
from torchwise.testing.models import Net, make_rows
from torchwise.testing.transform import TransformContract, make_rewriter


class TestPlugin(TransformContract):
    @pytest.fixture
    def choice(self) -> Choice:
        return a_transform.CHOICE

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(), torch.nn.Linear(4, 4)).eval()

    @pytest.fixture
    def inputs(self) -> tuple[Any, ...]:
        return (make_rows(3),)


class OfInductor(TransformContract):
    """A rewrite for Inductor, with a backend in its place that compiles no code."""

    @pytest.fixture
    def plan(self, choice: Choice, monkeypatch: pytest.MonkeyPatch) -> Plan:
        monkeypatch.setitem(CHOICES, a_backend.CHOICE.key, a_backend.CHOICE)
        return Plan(transforms=(choice.value,), backend="interpreted")


class TestPatchMatmul(OfInductor):
    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["transforms", "patch_matmul"]

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(3, 5, 4, stride=4), torch.nn.ReLU()).eval()

    @pytest.fixture
    def inputs(self) -> tuple[Any, ...]:
        return (torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8),)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = torch.nn.GRU(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x.tanh())[0])


class TestIsolateRnn(OfInductor):
    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["transforms", "isolate_rnn"]

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        return Recurrent().eval()

    @pytest.fixture
    def inputs(self) -> tuple[Any, ...]:
        return (make_rows(3),)


class Masked(torch.nn.Module):
    """Sums the rows that are positive, selected by default, and masked in the form with static shapes."""

    def __init__(self, inner: torch.nn.Linear, *, selects: bool) -> None:
        super().__init__()
        self.inner, self.selects = inner, selects

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = x[:, 0] > 0
        if self.selects:
            return self.inner(x[kept]).sum(0)
        return (self.inner(x) * kept[:, None]).sum(0)

    def static_form(self) -> torch.nn.Module:
        return Masked(self.inner, selects=False).train(self.training) if self.selects else self


class TestStaticForm(TransformContract):
    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["transforms", "static_form"]

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        return Masked(torch.nn.Linear(4, 3), selects=True).eval()

    @pytest.fixture
    def inputs(self) -> tuple[Any, ...]:
        return (make_rows(5),)


class Twice(torch.nn.Module):
    """Takes any model, changes its weights and its parts, and keeps weights of its own."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.own = Net()
        for parameter in model.parameters():
            parameter.data = parameter.data + 1
        model.more = torch.nn.Linear(1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(x)["first"]


def test_a_rewrite_that_breaks_the_contract_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: dict[str, Any] = {"summary": "", "required_traits": (), "stage": Stage.FORM}
    choice = replace(a_transform.CHOICE, value="broken", realized_by=lambda m: (Twice(m), lambda f: f), **changes)
    monkeypatch.setitem(CHOICES, choice.key, choice)
    inputs = (make_rows(3),)
    rewriter = make_rewriter(Plan(transforms=("broken",)), choice, inputs)
    given = {"choice": choice, "model": torch.nn.Linear(4, 4), "unfit": torch.nn.Identity(), "inputs": inputs}
    assert find_passed(TransformContract(), rewrite=rewriter, **given) == []
