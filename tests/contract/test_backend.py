"""Inductor and a plug-in's backend keep the contract, and the suite sees one that does not."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from broken import run_suite
from plugin import a_backend

from torchwise.plan import Choice
from torchwise.plan.choice import load_choices
from torchwise.testing.backend import BackendContract, make_compiler
from torchwise.testing.models import add_to
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


class TestOpenVINO(BackendContract):
    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["backend", "openvino"]


class TestRowPrograms(BackendContract):
    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["backend", "row_programs"]


@pytest.mark.nightly  # test_exported_backends has one answer of it, and OpenVINO is given exported graphs, too
class TestOnnxRuntime(BackendContract):
    @pytest.fixture
    def choice(self) -> Choice:
        return load_choices()["backend", "onnxruntime"]


def ignore_scale(call: Any) -> Any:
    return lambda *args, scale=None, **kwargs: call(*args, **kwargs)


def answer_like_the_first(call: Any) -> Any:
    answers: list[Any] = []
    return lambda *args, **kwargs: (answers or answers.append(call(*args, **kwargs)) or answers)[0]


def answer_always(call: Any) -> Any:
    def answer(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(ValueError):
            return call(*args, **kwargs)

    return answer


def write_to_inputs(call: Any) -> Any:
    return lambda *args, **kwargs: (call(*args, **kwargs), *(tensor.data.add_(1e-6) for tensor in args))[0]


def answer_without_gradients(call: Any) -> Any:
    return lambda *args, **kwargs: pytree.map_tensors(torch.Tensor.detach, call(*args, **kwargs))


def answer_in_the_same_memory(call: Any) -> Any:
    memory: dict[Any, Any] = {}

    def answer(*args: Any, **kwargs: Any) -> Any:
        found = call(*args, **kwargs)
        tensors = pytree.tensors(found)
        if torch.is_grad_enabled():
            return found
        kept = memory.setdefault(tuple(one.shape for one in tensors), found)
        for own, new in zip(pytree.tensors(kept), tensors, strict=True):
            own.copy_(new)
        return kept

    return answer


def leave_side_effects_out(call: Any) -> Any:
    return lambda *args, **kwargs: call(*(arg.clone() if call is add_to else arg for arg in args), **kwargs)


FAULTS: dict[Callable[[Any], Any], set[str]] = {
    copy.deepcopy: {
        *("weights_changed_in_place_take_effect", "weights_of_functions_and_methods_take_effect"),
        "gradients_flow",
    },
    ignore_scale: {"a_module_answers_as_in_eager", "a_function_answers_as_in_eager"},
    answer_like_the_first: {
        *("a_module_answers_as_in_eager", "a_function_answers_as_in_eager", "weights_changed_in_place_take_effect"),
        *("inputs_of_another_size_are_answered", "the_model_s_own_exception_comes_through"),
        *("weights_of_functions_and_methods_take_effect", "threads_get_their_own_answers"),
    },
    answer_always: {"the_model_s_own_exception_comes_through"},
    write_to_inputs: {"inputs_stay_as_they_are", "threads_get_their_own_answers"},
    answer_in_the_same_memory: {"answers_stay_when_the_next_call_comes", "threads_get_their_own_answers"},
    leave_side_effects_out: {"a_side_effect_happens_or_is_refused"},
    answer_without_gradients: {"gradients_flow"},
}


@pytest.mark.parametrize(("fault", "seen"), FAULTS.items())
def test_a_backend_that_breaks_the_contract_is_seen(fault: Callable[[Any], Any], seen: set[str]) -> None:
    choice = replace(a_backend.CHOICE, realized_by=lambda call, _plan: fault(call))
    found = run_suite(BackendContract(), choice=choice, compile_call=make_compiler(choice), device="cpu")
    assert {name for name, passed in found.items() if not passed} == seen
