"""The contract of a rewrite: a `torchwise.plan.Choice` of field "transforms" with a `stage`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import torch

from torchwise.compile import compile_plan
from torchwise.compile.transforms.function_graphs.record import record
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import CHOICES, Choice, Plan
from torchwise.plan.choice import load_code
from torchwise.testing.models import change_weights
from torchwise.trial.detected_traits import reads_graph
from torchwise.workload import Example

Rewrite = Callable[[Callable[..., Any]], Callable[..., Any]]


class TransformContract:
    """A rewritten model answers as the original does, which stays as it is: its modules, its state and its class.

    Both share their weights, so that changes in place take effect, and the original's `state_dict` has the same names
    and tensors as before. A model that the rewrite is not for is refused with `UnsupportedError`. The detectors of its
    traits find the models that it is for, and no others.
    """

    @pytest.fixture
    def choice(self) -> Choice:
        """Override it: return the choice that declares the rewrite."""
        raise NotImplementedError("define a fixture `choice` that returns the choice of your rewrite")

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        """Override it: return a model that the rewrite is for, in the mode of its workload."""
        raise NotImplementedError("define a fixture `model` that returns a model that your rewrite is for")

    @pytest.fixture
    def inputs(self) -> tuple[Any, ...]:
        """Override it: return inputs of the model, the same each time."""
        raise NotImplementedError("define a fixture `inputs` that returns a tuple of inputs of the model")

    @pytest.fixture
    def unfit(self) -> Callable[..., Any] | None:
        """Return a model that the rewrite is not for, or None if it is for every model."""
        return torch.nn.Identity()

    @pytest.fixture
    def plan(self, choice: Choice) -> Plan:
        """Return the plan with the rewrite. Override it for another backend than the one that the choice requires."""
        return Plan(transforms=(choice.value,), **dict(choice.requires))

    @pytest.fixture
    def rewrite(
        self, choice: Choice, plan: Plan, inputs: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Rewrite]:
        """Compile by the plan, with the choice registered. Code that other tests compiled is forgotten."""
        monkeypatch.setitem(CHOICES, choice.key, choice)
        torch.compiler.reset()
        with torch.no_grad():
            yield make_rewriter(plan, choice, inputs)
        torch.compiler.reset()

    def test_its_choice_declares_a_function_and_its_stage(self, choice: Choice) -> None:
        assert choice.field == "transforms"
        assert choice.summary
        assert choice.stage is not None
        assert choice.realized_by is not None
        assert callable(load_code(choice.realized_by))

    def test_detectors_find_the_models_that_it_is_for(
        self, choice: Choice, model: torch.nn.Module, unfit: Callable[..., Any] | None, inputs: tuple[Any, ...]
    ) -> None:
        for trait, detector in choice.detectors:
            assert trait in choice.required_traits
            detect = load_code(detector)

            def given(call: Callable[..., Any], detect: Callable[..., Any] = detect) -> Any:
                return record(lambda: call(*inputs)) if reads_graph(choice, detect) else call

            assert detect(given(model))
            assert unfit is None or not detect(given(unfit))

    def test_it_answers_as_the_original_does(
        self, rewrite: Rewrite, model: torch.nn.Module, inputs: tuple[Any, ...]
    ) -> None:
        call = rewrite(model)
        for _ in range(2):
            torch.testing.assert_close(call(*inputs), model(*inputs))

    def test_the_original_stays_as_it_is(
        self, rewrite: Rewrite, model: torch.nn.Module, inputs: tuple[Any, ...]
    ) -> None:
        before, answer = list_parts(model), model(*inputs)
        rewrite(model)(*inputs)
        assert list_parts(model) == before
        torch.testing.assert_close(model(*inputs), answer, rtol=0, atol=0)

    def test_its_state_is_untouched(self, rewrite: Rewrite, model: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        state, values = model.state_dict(keep_vars=True), deepcopy(model.state_dict())
        rewrite(model)(*inputs)
        now = model.state_dict(keep_vars=True)
        assert list(now) == list(state)
        assert all(now[name] is tensor for name, tensor in state.items())
        torch.testing.assert_close(dict(model.state_dict()), dict(values), rtol=0, atol=0)

    def test_weights_are_shared(
        self, choice: Choice, rewrite: Rewrite, model: torch.nn.Module, inputs: tuple[Any, ...]
    ) -> None:
        call = rewrite(model)
        call(*inputs)
        change_weights(model)
        if choice.derives_weights:
            with pytest.raises(StalePlanError):
                call(*inputs)
            return
        torch.testing.assert_close(call(*inputs), model(*inputs))

    def test_a_model_that_it_is_not_for_is_refused(
        self, rewrite: Rewrite, unfit: Callable[..., Any] | None, inputs: tuple[Any, ...]
    ) -> None:
        if unfit is None:
            pytest.skip("the rewrite is for every model")
        with pytest.raises(UnsupportedError):
            rewrite(unfit)(*inputs)


def make_rewriter(plan: Plan, choice: Choice, inputs: tuple[Any, ...]) -> Rewrite:
    """Return a function that compiles a model by a plan, for the first device and mode of a choice."""
    device = "cpu" if "cpu" in choice.devices else choice.devices[0]
    return lambda model: compile_plan(model, plan, Example(inputs), device=device, mode=choice.modes[0]).call


def list_parts(model: torch.nn.Module) -> list[tuple[str, int, type]]:
    """List the modules of a model, each with its name, its object and its class."""
    return [(name, id(part), type(part)) for name, part in model.named_modules()]
