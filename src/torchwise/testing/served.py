"""The contract of a served callable: what takes the place of a model or a function in a program."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchwise.plan import Plan
from torchwise.runtime import Fallback, FallbackReason, Statistics, unwrap
from torchwise.runtime.served import Served, dispatcher_of
from torchwise.testing.models import MAX_ROWS, Net, change_weights, make_net, make_rows

ROWS = 4
"""Number of rows of the inputs that the plan is verified for, as `make_rows(ROWS)` returns them."""

Serve = Callable[[Callable[..., Any], Plan], Any]


def compute_tanh(x: torch.Tensor) -> torch.Tensor:
    """Compute as a function without weights, which can be pickled."""
    if x.shape[0] > MAX_ROWS:
        raise ValueError("too many rows for this model")
    return torch.tanh(x) * 2


class CanRunContract:
    """What answers behind a wrapper says beforehand who would answer a call, then does so, and can be closed.

    `can_run` names the reason under which the call is counted, or None if a plan may answer. It counts nothing itself.
    After `close`, the original answers every call for the reason that was given, in copies as well.
    """

    CLOSED = Fallback(FallbackReason.CLOSED, "the contract closed it")

    @pytest.fixture
    def served(self) -> Served:
        """Override it: return what answers, by a plan that compiles nothing."""
        raise NotImplementedError("define a fixture `served` that returns a Served")

    @pytest.fixture
    def verified(self) -> tuple[Any, ...]:
        """Return positional arguments that the plan was verified for."""
        return (make_rows(ROWS),)

    @pytest.fixture
    def others(self) -> tuple[Any, ...]:
        """Return positional arguments that it was not verified for."""
        return (make_rows(MAX_ROWS),)

    def test_the_plan_answers_if_it_can_run(self, served: Served, verified: tuple[Any, ...]) -> None:
        for calls in range(3):
            assert ask_and_call(served, verified) is None
            assert count_calls(served) == (calls + 1, 0)

    def test_the_reason_of_can_run_is_the_one_that_is_counted(self, served: Served, others: tuple[Any, ...]) -> None:
        fallback = ask_and_call(served, others)
        assert fallback is not None
        assert (list(served.statistics.original), served.statistics.optimized) == ([fallback.reason], 0)

    def test_closed_it_runs_no_more(self, served: Served, verified: tuple[Any, ...]) -> None:
        ask_and_call(served, verified)
        served.close(self.CLOSED)
        assert ask_and_call(served, verified) == served.refusal == self.CLOSED
        assert count_calls(served) == (1, 1)

    def test_the_recipe_makes_it_again_with_what_was_closed(self, served: Served, verified: tuple[Any, ...]) -> None:
        for refusal in (None, self.CLOSED):
            make, parts = served.get_recipe()
            other = make(*parts)
            assert ask_and_call(other, verified) == other.refusal == refusal
            assert sum(count_calls(other)) == 1, "it counts its own calls"
            served.close(self.CLOSED)


class ServedContract:
    """A served callable is a drop-in for the original: the same answers and the same exceptions.

    The plan answers calls with inputs that it was verified for. The original answers all others, and each is counted
    with its reason (`torchwise.runtime.Statistics`). It also answers if the plan fails, which never fails a call, and
    after the plan was closed. A copy and a pickle serve as well. `torchwise.unwrap` returns the original.
    """

    @pytest.fixture
    def serve(self) -> Serve:
        """Override it: return a function from an original and a plan, verified for `make_rows(ROWS)`, to a wrapper."""
        raise NotImplementedError("define a fixture `serve` that returns a function from an original and a plan")

    @pytest.fixture
    def original(self) -> Callable[..., Any]:
        """Return a function to serve."""
        return compute_tanh

    @pytest.fixture
    def plan(self) -> Plan:
        """Return a plan that compiles nothing."""
        return Plan(threads=torch.get_num_threads() + 1)

    @pytest.fixture
    def fast(self, serve: Serve, original: Callable[..., Any], plan: Plan) -> Any:
        """Return the original, served by the plan."""
        return serve(original, plan)

    def test_the_plan_answers_inputs_that_it_was_verified_for(self, fast: Any, original: Callable[..., Any]) -> None:
        assert_same_answers(fast, original, ROWS)
        assert count_calls(fast) == (1, 0)

    def test_the_original_answers_other_inputs(self, fast: Any, original: Callable[..., Any]) -> None:
        assert_same_answers(fast, original, MAX_ROWS)
        assert count_calls(fast) == (0, 1)

    @torch.no_grad()
    def test_the_original_s_exceptions_come_through(self, fast: Any) -> None:
        with pytest.raises(ValueError, match="too many rows for this model"):
            fast(make_rows(MAX_ROWS + 1))

    def test_a_plan_that_fails_fails_no_call(self, serve: Serve, original: Callable[..., Any]) -> None:
        fast = serve(original, Plan(backend="nonesuch"))
        for calls in (1, 2):
            assert_same_answers(fast, original, ROWS)
            assert count_calls(fast) == (0, calls)

    @pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda fast: pickle.loads(pickle.dumps(fast))])
    def test_a_copy_serves_as_well(
        self, fast: Any, original: Callable[..., Any], make_copy: Callable[[Any], Any]
    ) -> None:
        assert_same_answers(fast, original, ROWS)
        other = make_copy(fast)
        assert_same_answers(other, original, ROWS)
        assert_same_answers(other, original, MAX_ROWS)
        assert count_calls(other) == (1, 1), "it counts its own calls"

    def test_unwrap_returns_the_original(self, fast: Any, original: Callable[..., Any]) -> None:
        assert fast is not original
        assert unwrap(fast) is original

    def test_the_original_answers_after_close(self, fast: Any, original: Callable[..., Any]) -> None:
        assert_same_answers(fast, original, ROWS)
        self.close(fast)
        assert_same_answers(fast, original, ROWS)
        assert count_calls(fast) == (1, 1)

    def close(self, fast: Any) -> None:
        """Close the plan, and free its memory. Override it for a wrapper that no `Served` answers for."""
        dispatcher = dispatcher_of(fast)
        assert dispatcher is not None
        dispatcher.close()


class ServedModuleContract(ServedContract):
    """A served module is also the original to whoever looks at it.

    Its class, its mode and its weights are the original's. Its `state_dict` has no prefixes, and loads into the
    original and back. `train()` and `eval()` switch both, and in another mode than the verified one the original
    answers. Weights that are changed in place take effect.
    """

    @pytest.fixture
    def original(self) -> Net:
        """Return a module to serve, in evaluation mode."""
        return make_net()

    def test_it_has_the_original_s_class_and_weights(self, fast: Any, original: Net) -> None:
        assert isinstance(fast, Net)
        assert [id(tensor) for tensor in fast.parameters()] == [id(tensor) for tensor in original.parameters()]

    def test_its_state_has_no_prefixes(self, fast: Any, original: Net) -> None:
        assert list(fast.state_dict()) == list(original.state_dict()) == ["inner.weight", "inner.bias"]
        fast.load_state_dict({name: torch.ones_like(value) for name, value in original.state_dict().items()})
        assert torch.equal(original.inner.weight, torch.ones(4, 4))

    def test_a_mode_is_that_of_both(self, fast: Any, original: Net) -> None:
        fast.train()
        assert original.training
        assert original.inner.training
        assert_same_answers(fast, original, ROWS)
        assert count_calls(fast) == (0, 1)
        original.eval()
        assert not fast.training
        assert_same_answers(fast, original, ROWS)
        assert count_calls(fast) == (1, 1)

    def test_weights_changed_in_place_take_effect(self, fast: Any, original: Net) -> None:
        assert_same_answers(fast, original, ROWS)
        change_weights(fast)
        assert_same_answers(fast, original, ROWS)


@torch.no_grad()
def assert_same_answers(fast: Any, original: Callable[..., Any], rows: int) -> None:
    """Assert that both answer alike."""
    x = make_rows(rows)
    torch.testing.assert_close(fast(x), original(x))


@torch.no_grad()
def ask_and_call(served: Served, args: tuple[Any, ...]) -> Fallback | None:
    """Return what `can_run` says of a call, and call."""
    before = count_calls(served)
    fallback = served.can_run(args, {})
    assert count_calls(served) == before, "a question is no call"
    with torch.set_grad_enabled(served.is_step):
        served(*args)
    return fallback


def count_calls(fast: Any) -> tuple[int, int]:
    """Return the numbers of calls that the plan and the original answered."""
    statistics: Statistics = fast.statistics
    return statistics.optimized, sum(statistics.original.values())
