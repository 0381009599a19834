"""Inductor and a plug-in's backend keep the contract, and the suite sees one that does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from broken import find_passed
from plugin import a_backend

from torchwise.plan import Choice, Plan
from torchwise.plan.choice import load_choices
from torchwise.testing.backend import BackendContract, make_compiler
from torchwise.workload import pytree


class TestPlugin(BackendContract):
    @pytest.fixture
    def choice(self) -> Choice:
        return a_backend.CHOICE


@pytest.mark.slow
class TestInductor(BackendContract):
    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["backend", "inductor"]


def compile_for_one_call(call: Callable[..., Any], _plan: Plan) -> Callable[..., Any]:
    """Answer each call like the first one, a little off, without gradients, and write to the first input."""
    answers: list[Any] = []

    def answer(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not answers:
            given = call(x.detach(), *args, **kwargs)
            answers.append(pytree.map_tensors(lambda tensor: tensor.detach() + 0.01, given))
            x.data.add_(1)
        return answers[0]

    return answer


def test_a_backend_that_breaks_the_contract_is_seen() -> None:
    choice = Choice("transforms", "broken", a_backend.CHOICE.numerics, 1, "", realized_by=compile_for_one_call)
    found = find_passed(BackendContract(), choice=choice, compile_call=make_compiler(choice), device="cpu")
    assert found == []
