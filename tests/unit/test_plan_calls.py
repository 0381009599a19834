"""Calls of wrappers that a plan answers: compiled checks take the usual ones, and do the same as Python."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from live_decisions import make_decision
from torchwise.plan import Plan
from torchwise.runtime import OptimizedFunction, OptimizedModule, dispatch
from torchwise.runtime.dispatch import Dispatcher
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.served import dispatcher_of
from torchwise.runtime.sizes_dispatch import SizesDispatcher

pytestmark = pytest.mark.usefixtures("way")
THREADS = Plan(threads=torch.get_num_threads() + 1)
X = torch.ones(2, 3)


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor, factor: float = 1.0) -> torch.Tensor:
        return x * self.weight * factor


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def serve(original: Any, *args: Any) -> Any:
    """Return a wrapper whose next calls are usual: none of the next hundred is timed."""
    kind = OptimizedModule if isinstance(original, torch.nn.Module) else OptimizedFunction
    wrapper = kind(original, make_decision(original, THREADS, *args))
    for _ in range(3):
        wrapper(*args)
    wrapper._dispatcher._latency.every = 100
    wrapper._dispatcher.statistics.optimized = 1
    return wrapper


def count_calls(call: Callable[[], Any]) -> int:
    """Return how often Python runs the dispatcher's `__call__` in a call."""
    code, found = Dispatcher.__call__.__code__, list[int]()
    sys.setprofile(lambda frame, event, _: found.append(1) if frame.f_code is code and event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return len(found)


@pytest.mark.parametrize("original", [Scale(), lambda x: x * 2])
def test_a_usual_call_is_answered_by_the_plan_and_counted(original: Any, way: str) -> None:
    wrapper = serve(original, X)
    assert torch.equal(wrapper(X), X * 2)
    assert wrapper._dispatcher.statistics.optimized == 2
    assert count_calls(lambda: wrapper(X)) == (way == "python")
    assert wrapper._dispatcher.statistics.optimized == 3
    assert wrapper._dispatcher.statistics.calls == 3


def test_arguments_by_name_are_handed_on(way: str) -> None:
    original = Scale()
    wrapper = OptimizedModule(original, make_decision(original, THREADS, X))
    for _ in range(3):
        assert torch.equal(wrapper(X, factor=3.0), X * 6), "the original answers, as this was not verified"
    assert wrapper._dispatcher.statistics.optimized == 0
    wrapper = serve(original, X)
    assert torch.equal(wrapper(x=X), X * 2)
    assert wrapper._dispatcher.statistics.optimized == 1


OTHERS: dict[str, tuple[Callable[[], Any], FallbackReason]] = {
    "gradients": (torch.enable_grad, FallbackReason.GRADIENTS_ENABLED),
    "autocast": (lambda: torch.autocast("cpu"), FallbackReason.AUTOCAST_ENABLED),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_in_another_state_the_original_answers(kind: str, way: str) -> None:
    wrapper = serve(Scale(), X)
    enter, reason = OTHERS[kind]
    with enter():
        answer = wrapper(X)
    assert answer.requires_grad == (kind == "gradients")
    assert wrapper._dispatcher.statistics.reasons == {reason: 1}
    wrapper(X)
    assert wrapper._dispatcher.statistics.optimized == 2


def test_after_a_change_of_the_model_the_original_answers(way: str) -> None:
    original = Scale().eval()
    wrapper = serve(original, X)
    original.train()
    wrapper(X)
    assert wrapper._dispatcher.statistics.reasons == {FallbackReason.TRAINING_MODE_CHANGED: 1}
    original.eval()
    assert count_calls(lambda: wrapper(X)) == (way == "python")
    wrapper._dispatcher.close()
    wrapper(X)
    assert wrapper._dispatcher.statistics.reasons[FallbackReason.CLOSED] == 1


def test_other_inputs_come_to_python_and_back(way: str) -> None:
    wrapper = serve(Scale(), X)
    assert count_calls(lambda: wrapper(torch.ones(5, 3))) == 1
    assert count_calls(lambda: wrapper(X)) == (way == "python")
    assert wrapper._dispatcher.statistics.reasons == {FallbackReason.INPUTS_NOT_VERIFIED: 1}


def test_hooks_of_the_wrapper_run(way: str) -> None:
    wrapper, seen = serve(Scale(), X), list[str]()
    handle = wrapper.register_forward_hook(lambda *_: seen.append("after"))
    wrapper(X)
    assert seen == ["after"]
    handle.remove()
    assert count_calls(lambda: wrapper(X)) == (way == "python")
    assert seen == ["after"]


def test_a_call_that_is_due_is_timed(way: str) -> None:
    wrapper = serve(Scale(), X)
    served = wrapper._dispatcher
    served._latency.every = 4
    before = sum(served.statistics.latency.counts)
    assert count_calls(lambda: [wrapper(X) for _ in range(3)]) == (3 if way == "python" else 0)
    assert sum(served.statistics.latency.counts) == before
    assert count_calls(lambda: wrapper(X)) == 1
    assert sum(served.statistics.latency.counts) == before + 1
    assert served.statistics.optimized == 5


def test_a_plan_that_was_refused_meanwhile_answers_no_more(way: str) -> None:
    wrapper = serve(Scale(), X)
    wrapper._dispatcher._refusal = dispatch.UNREADABLE
    assert torch.equal(wrapper(X), X * 2)
    assert wrapper._dispatcher.statistics.reasons == {dispatch.UNREADABLE.reason: 1}


class Doubled(Dispatcher):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) * 2


def test_a_dispatcher_with_a_call_of_its_own_is_called(way: str) -> None:
    original = Scale()
    wrapper = OptimizedModule._wrap(Doubled(original, make_decision(original, THREADS, X)))
    for _ in range(3):
        assert torch.equal(wrapper(X), X * 4)
    wrapper._dispatcher._latency.every = 100
    assert torch.equal(wrapper(X), X * 4)


def test_two_plans_for_different_sizes_answer(way: str) -> None:
    original = Scale()
    decisions = [make_decision(original, THREADS, torch.ones(rows, 3)) for rows in (2, 4)]
    wrapper = OptimizedModule._wrap(SizesDispatcher(original, *decisions))
    for rows in (2, 4, 2, 4):
        assert torch.equal(wrapper(torch.ones(rows, 3)), torch.ones(rows, 3) * 2)
    assert wrapper._dispatcher.statistics.optimized == 4


def fail(error: BaseException) -> Callable[..., Any]:
    def plan(*_: Any, **__: Any) -> Any:
        raise error

    return plan


def replace_plan(wrapper: Any, call: Callable[..., Any]) -> None:
    served = dispatcher_of(wrapper)
    assert isinstance(served, Dispatcher)
    assert served._last is not None
    served._last = (served._last[0], call)


def test_an_error_of_the_plan_is_counted_and_the_original_answers(way: str, caplog: pytest.LogCaptureFixture) -> None:
    wrapper = serve(Scale(), X)
    replace_plan(wrapper, fail(ValueError("of the plan")))
    assert torch.equal(wrapper(X), X * 2)
    statistics = wrapper._dispatcher.statistics
    assert statistics.failures == {"ValueError": 1}
    assert statistics.optimized == 1
    assert "the original answers" in caplog.text
    assert "of the plan" in caplog.text, "with its traceback"


class Held:
    """Stands for memory that a failing plan holds in a local variable."""


def test_what_a_failing_plan_holds_is_freed_at_once(way: str) -> None:
    wrapper, held = serve(Scale(), X), list[Any]()

    def plan(*_: Any) -> Any:
        memory = Held()
        held.append(weakref.ref(memory))
        raise ValueError("of the plan")

    replace_plan(wrapper, plan)
    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            wrapper(X)
        assert held[1]() is None, "there is no circle; the first error is in the log, which the test keeps"
    finally:
        gc.enable()


def test_an_error_of_the_original_is_raised_in_the_context_of_the_plan_s(way: str) -> None:
    original = Scale()
    wrapper = serve(original, X)
    replace_plan(wrapper, fail(ValueError("of the plan")))
    wrapper._dispatcher._answer_instead = fail(KeyError("of the original"))
    with pytest.raises(KeyError, match="of the original") as raised:
        wrapper(X)
    assert isinstance(raised.value.__context__, ValueError)
    assert sys.exc_info() == (None, None, None)
    assert wrapper._dispatcher.statistics.failures == {}


def test_an_interrupt_goes_through(way: str) -> None:
    wrapper = serve(Scale(), X)
    replace_plan(wrapper, fail(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        wrapper(X)
    assert wrapper._dispatcher.statistics.failures == {}


def test_an_interrupt_while_a_call_is_recognized_goes_through(way: str) -> None:
    wrapper = serve(Scale(), X)
    served = wrapper._dispatcher
    interrupts = [KeyboardInterrupt()]

    def recognize(*_: Any) -> bool:
        if interrupts:
            raise interrupts.pop()
        return True

    served._last = (recognize, served._last[1])
    with pytest.raises(KeyboardInterrupt):
        wrapper(X)


def test_an_input_that_cannot_be_described_is_the_original_s(way: str) -> None:
    wrapper = serve(Scale(), X)
    served = wrapper._dispatcher
    served._last = (fail(ValueError("of the recognizer")), served._last[1])
    assert torch.equal(wrapper(X), X * 2)
    assert served.statistics.reasons == {dispatch.UNREADABLE.reason: 1}


def test_a_plan_that_takes_its_own_place_is_kept_until_it_has_answered(way: str) -> None:
    wrapper = serve(Scale(), X)

    def forget(*args: Any) -> Any:
        wrapper._dispatcher._last = None
        del forgotten[:]
        return args[0] * 7

    forgotten = [forget]
    replace_plan(wrapper, forget)
    del forget
    assert torch.equal(wrapper(X), X * 7)
