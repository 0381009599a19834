"""The contract of a backend: the function behind a `torchwise.plan.Choice` of field "backend"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from torchwise.compile.compiled_plan import compile_plan
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import Choice, Plan
from torchwise.plan.choice import load_code
from torchwise.testing.models import MAX_ROWS, add_and_scale, add_to, change_weights, make_net, make_rows
from torchwise.workload import Example

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


class BackendContract:
    """A backend takes a callable and a plan, and returns a callable with the same signature and the same answers.

    That holds for modules and functions, keyword arguments, nested outputs, inputs of any size and several threads.
    Weights that are changed in place take effect, or the plan is stale if the choice freezes weights. The model's own
    exceptions come through. Inputs stay as they are, and so do answers when the next call comes. A call with a side
    effect has it, or is refused with `UnsupportedError`. If the choice is for training, gradients reach the inputs and
    the weights.
    """

    @pytest.fixture
    def choice(self) -> Choice:
        """Override it: return the choice that declares the backend."""
        raise NotImplementedError("define a fixture `choice` that returns the choice of your backend")

    @pytest.fixture
    def device(self, choice: Choice) -> str:
        """Return the device to test on: the CPU, if the choice is for it."""
        return "cpu" if "cpu" in choice.devices else choice.devices[0]

    @pytest.fixture
    def compile_call(self, choice: Choice) -> Iterator[Compile]:
        """Compile by the backend and a plan of nothing else. Code that other tests compiled is forgotten."""
        torch.compiler.reset()
        yield make_compiler(choice)
        torch.compiler.reset()

    def test_its_choice_declares_a_function(self, choice: Choice) -> None:
        assert choice.field == "backend"
        assert choice.summary
        assert choice.realized_by is not None
        assert callable(load_code(choice.realized_by))

    def test_a_module_answers_as_in_eager(self, compile_call: Compile, device: str) -> None:
        model, x = make_net(device), make_rows(4, device)
        with torch.no_grad():
            call = compile_call(model)
            torch.testing.assert_close(call(x), model(x))
            torch.testing.assert_close(call(x=x, scale=3.0), model(x=x, scale=3.0))

    def test_a_function_answers_as_in_eager(self, compile_call: Compile, device: str) -> None:
        x, y = make_rows(4, device), make_rows(4, device, seed=2)
        with torch.no_grad():
            call = compile_call(add_and_scale)
            torch.testing.assert_close(call(x, y), add_and_scale(x, y))
            torch.testing.assert_close(call(x, y=y, scale=0.5), add_and_scale(x, y=y, scale=0.5))

    def test_weights_changed_in_place_take_effect(self, choice: Choice, compile_call: Compile, device: str) -> None:
        model, x = make_net(device), make_rows(4, device)
        if choice.freezes_weights:
            assert_stale_with_other_weights(model, Plan(backend=choice.value), x)
            return
        with torch.no_grad():
            call = compile_call(model)
            call(x)
            change_weights(model)
            torch.testing.assert_close(call(x), model(x))

    def test_weights_of_functions_and_methods_take_effect(
        self, choice: Choice, compile_call: Compile, device: str
    ) -> None:
        x = make_rows(4, device)
        for is_method in (False, True):
            model = make_net(device)
            plain: Callable[..., Any] = model.forward if is_method else _enclose(model)
            with torch.no_grad():
                try:
                    call = compile_as_served(choice, plain, x) if choice.freezes_weights else compile_call(plain)
                    call(x)
                except UnsupportedError:
                    assert choice.freezes_weights, "only frozen weights are a reason to refuse it"
                    continue
                change_weights(model)
                torch.testing.assert_close(call(x), plain(x))

    def test_inputs_of_another_size_are_answered(self, compile_call: Compile, device: str) -> None:
        model = make_net(device)
        with torch.no_grad():
            call = compile_call(model)
            for rows in (4, 6, 1, 4):
                x = make_rows(rows, device)
                torch.testing.assert_close(call(x), model(x))

    def test_the_model_s_own_exception_comes_through(self, compile_call: Compile, device: str) -> None:
        with torch.no_grad():
            call = compile_call(make_net(device))
            call(make_rows(4, device))
            with pytest.raises(ValueError, match="too many rows for this model"):
                call(make_rows(MAX_ROWS + 1, device))

    def test_inputs_stay_as_they_are(self, compile_call: Compile, device: str) -> None:
        x, y = make_rows(4, device), make_rows(4, device, seed=2)
        with torch.no_grad():
            call = compile_call(add_and_scale)
            for _ in range(2):
                call(x, y)
        assert torch.equal(x, make_rows(4, device))
        assert torch.equal(y, make_rows(4, device, seed=2))

    def test_answers_stay_when_the_next_call_comes(self, compile_call: Compile, device: str) -> None:
        x, y = make_rows(4, device), make_rows(4, device, seed=2)
        with torch.no_grad():
            call = compile_call(add_and_scale)
            first = call(x, y)
            call(y, y)
            torch.testing.assert_close(first, add_and_scale(x, y))

    def test_threads_get_their_own_answers(self, compile_call: Compile, device: str) -> None:
        inputs = [make_rows(4, device, seed) for seed in range(4)]
        call = torch.no_grad()(compile_call(add_and_scale))
        call(inputs[0], inputs[1])
        with ThreadPoolExecutor(len(inputs)) as threads:
            found = list(threads.map(lambda x: [call(x, inputs[1]) for _ in range(10)], inputs))
        torch.testing.assert_close(found, [[add_and_scale(x, inputs[1])] * 10 for x in inputs])

    def test_a_side_effect_happens_or_is_refused(self, compile_call: Compile, device: str) -> None:
        x = make_rows(4, device)
        with torch.no_grad():
            try:
                compile_call(add_to)(x)
            except UnsupportedError:
                return
        torch.testing.assert_close(x, make_rows(4, device) + 1)

    def test_gradients_flow(self, choice: Choice, compile_call: Compile, device: str) -> None:
        if "training" not in choice.modes:
            pytest.skip("the choice is not for training")
        model = make_net(device)
        assert_same_gradients(compile_call(model), model, make_rows(4, device))


def _enclose(model: torch.nn.Module) -> Callable[..., Any]:
    """Return a function that calls a module in its closure."""
    return lambda x: model(x)


def make_compiler(choice: Choice) -> Compile:
    """Return a function that compiles by a backend and a plan of nothing else."""
    assert choice.realized_by is not None
    backend, plan = load_code(choice.realized_by), Plan(backend=choice.value)
    return lambda call: backend(call, plan)


def compile_as_served(choice: Choice, call: Callable[..., Any], x: torch.Tensor) -> Callable[..., Any]:
    """Compile by a plan of nothing but the backend, with its checks for changes."""
    return compile_plan(call, Plan(backend=choice.value), Example((x,)), device=x.device.type, mode="inference").call


def assert_stale_with_other_weights(model: torch.nn.Module, plan: Plan, x: torch.Tensor) -> None:
    """Assert that a plan answers until the weights change, and is stale from then on."""
    with torch.no_grad():
        call = compile_plan(model, plan, Example((x,)), device=x.device.type, mode="inference").call
        torch.testing.assert_close(call(x), model(x))
        change_weights(model)
        with pytest.raises(StalePlanError, match="the weights changed"):
            call(x)


def assert_same_gradients(call: Callable[..., Any], model: torch.nn.Module, x: torch.Tensor) -> None:
    """Assert that a callable has the gradients of a model with regard to its input and its weights."""
    found = []
    for one in (call, model):
        given = x.clone().requires_grad_()
        output = one(given)["first"]
        assert output.requires_grad, "the output is cut off from its inputs"
        found.append(torch.autograd.grad(output.square().sum(), (given, *model.parameters()), allow_unused=True))
    assert all(gradient is not None for gradient in found[0]), "a weight is cut off from the output"
    torch.testing.assert_close(*found)
