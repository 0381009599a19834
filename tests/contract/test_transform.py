"""Rewrites of Torchwise's own and of a plug-in keep the contract, and the suite sees one that does not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from broken import run_suite
from plugin import a_backend, a_transform

from torchwise.plan import CHOICES, Choice, Plan, Stage
from torchwise.plan.choice import load_choices
from torchwise.testing.models import make_rows
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
        plan = Plan(transforms=(choice.value,), backend="interpreted")  # of a backend that is known it would be refused
        monkeypatch.setitem(CHOICES, a_backend.CHOICE.key, a_backend.CHOICE)
        return plan


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


class TestCompiledRNN(OfInductor):
    @pytest.fixture(params=[torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
    def kind(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["transforms", "compiled_rnn"]

    @pytest.fixture
    def model(self, kind: type[torch.nn.RNNBase]) -> torch.nn.Module:
        return kind(4, 4, num_layers=2).eval()

    @pytest.fixture
    def inputs(self) -> tuple[Any, ...]:
        return (make_rows(3)[None],)


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


class Attending(torch.nn.Module):
    """Writes attention out, with keys and values that pairs of queries share if it is asked to."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.times, self.all = times, torch.nn.Linear(4, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.all(x).reshape(1, 1, -1, 12).chunk(3, dim=-1)
        if self.times > 1:
            q, k, v = q.expand(1, 2, -1, 4), *(one.repeat_interleave(self.times, dim=1) for one in (k, v))
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return (q @ k.mT).softmax(-1) @ v


class TestFusedAttention(TransformContract):
    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["transforms", "fused_attention"]

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        return Attending().eval()

    @pytest.fixture
    def unfit(self) -> Iterator[torch.nn.Module]:
        with torch._inductor.config.patch(force_disable_caches=True):  # code in a cache is not rewritten again
            yield torch.nn.Linear(4, 4)

    @pytest.fixture
    def inputs(self) -> tuple[Any, ...]:
        return (make_rows(16),)


class TestGroupedKeys(TestFusedAttention):
    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["transforms", "grouped_keys"]

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        return Attending(times=2).eval()


class Gated(torch.nn.Module):
    """Multiplies one input by two weights."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = torch.nn.Linear(4, 6), torch.nn.Linear(4, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(self.gate(x)) * self.up(x)


class TestJoinedProducts(TestFusedAttention):
    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["transforms", "joined_products"]

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        return Gated().eval()


class TestProductsOfFewRows(TestFusedAttention):
    """On a CPU, PyTorch answers in the kernel's place."""

    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["transforms", "products_of_few_rows"]

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, 1 << 16), torch.nn.Tanh()).eval()

    @pytest.fixture
    def inputs(self) -> tuple[Any, ...]:
        return (make_rows(1),)


def copy_weights(model: Any) -> Any:
    return a_transform.drop_dropout(copy.deepcopy(model))


def change_parts(model: Any) -> Any:
    model.add_module("more", torch.nn.Identity())
    return a_transform.drop_dropout(model)


def replace_weights(model: Any) -> Any:
    rewritten = a_transform.drop_dropout(model)
    model[0].weight = torch.nn.Parameter(model[0].weight.detach().clone())
    return rewritten


def double_answers(model: Any) -> Any:
    return a_transform.drop_dropout(model)[0], lambda inner: lambda x: inner(x) * 2


def take_any(model: Any) -> Any:
    return model, lambda inner: inner


FAULTS: dict[Callable[[Any], Any], set[str]] = {
    copy_weights: {"weights_are_shared"},
    change_parts: {"the_original_stays_as_it_is"},
    replace_weights: {"its_state_is_untouched", "weights_are_shared"},
    double_answers: {"it_answers_as_the_original_does", "weights_are_shared"},
    take_any: {"a_model_that_it_is_not_for_is_refused"},
}


@pytest.mark.parametrize(("fault", "seen"), FAULTS.items())
def test_a_rewrite_that_breaks_the_contract_is_seen(
    fault: Callable[[Any], Any], seen: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = replace(a_transform.CHOICE, value="broken", realized_by=fault, stage=Stage.FORM)
    monkeypatch.setitem(CHOICES, choice.key, choice)
    model, inputs = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout()).eval(), (make_rows(3),)
    rewriter = make_rewriter(Plan(transforms=("broken",)), choice, inputs)
    given = {"choice": choice, "model": model, "unfit": torch.nn.Identity(), "inputs": inputs}
    found = run_suite(TransformContract(), rewrite=rewriter, **given)
    assert {name for name, passed in found.items() if not passed} == seen
