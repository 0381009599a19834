"""Faults while a plan is served: each call is answered rightly, or by the model's own error."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import torchwise
from live_decisions import make_decision
from torchwise.alerts import heard
from torchwise.compile import CompiledPlan
from torchwise.plan import Plan
from torchwise.runtime.circuit_breaker import FAILURES
from torchwise.runtime.served import dispatcher_of
from torchwise.workload import Example
from torchwise.workload.identity import describe_example

INDUCTOR = Plan(backend="inductor")
SMALL, LARGE = torch.randn(3, 4), torch.randn(7, 4)


@pytest.fixture
def broken_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have Inductor fail on graphs with an input as long as `LARGE`. Its caches would pass the fault by."""
    from torch._functorch import config as functorch
    from torch._inductor import config, graph

    works = graph.GraphLowering.run

    def run(self: Any, *args: Any) -> Any:
        if any(isinstance(arg, torch.Tensor) and arg.shape[:1] == LARGE.shape[:1] for arg in args):
            raise ZeroDivisionError("the compiler has a fault")
        return works(self, *args)

    monkeypatch.setattr(graph.GraphLowering, "run", run)
    torch._dynamo.reset()
    with config.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        yield


def plain(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def break_in_two(x: torch.Tensor) -> torch.Tensor:
    x = x.cos()
    torch._dynamo.graph_break()
    return x.sin() * 2


def apply_plan(model: Callable[..., Any], *inputs: torch.Tensor, plan: Plan = INDUCTOR) -> Any:
    decision = make_decision(model, plan, inputs[0])
    return torchwise.apply(model, replace(decision, inputs=tuple(describe_example(Example((x,))) for x in inputs)))


@pytest.mark.slow
@pytest.mark.parametrize("model", [plain, break_in_two])
@pytest.mark.usefixtures("broken_compiler")
@torch.no_grad()
def test_a_compile_error_on_the_first_call_costs_nobody_an_answer(model: Callable[..., Any]) -> None:
    fast = apply_plan(model, LARGE)
    with heard() as alerts:
        for _ in range(FAILURES + 2):
            torch.testing.assert_close(fast(LARGE), model(LARGE))
    assert fast.statistics.optimized == 0
    assert [alert.kind for alert in alerts] == ["plan_failed"]


@pytest.mark.slow
@pytest.mark.parametrize("model", [plain, pytest.param(break_in_two, marks=pytest.mark.nightly)])
@pytest.mark.usefixtures("broken_compiler")
@torch.no_grad()
def test_a_compile_error_on_a_later_shape_leaves_the_first_one_alone(model: Callable[..., Any]) -> None:
    fast = apply_plan(model, SMALL, LARGE)
    for x in (SMALL, LARGE) * (FAILURES + 1):
        torch.testing.assert_close(fast(x), model(x))
    assert fast.statistics.optimized == FAILURES + 1
    assert sum(fast.statistics.failures.values()) == FAILURES


@pytest.mark.slow
@torch.no_grad()
def test_eight_threads_that_call_at_once_are_all_answered() -> None:
    fast = apply_plan(torch.sin, SMALL, LARGE)
    wrong: list[BaseException] = []
    barrier = threading.Barrier(8)

    def call(seed: int) -> None:
        try:
            barrier.wait()
            for turn in range(50):
                x = SMALL if (seed + turn) % 2 else LARGE
                torch.testing.assert_close(fast(x), torch.sin(x))
        except BaseException as error:  # any error in a thread is the test's result
            wrong.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert fast.statistics.calls > 0


def _answers(fast: Any, x: torch.Tensor, queue: Any) -> None:
    with torch.no_grad():
        queue.put(fast(x).tolist())


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@torch.no_grad()
def test_a_process_that_is_forked_afterwards_is_answered() -> None:
    """A data loader forks its workers so from a program that serves a plan."""
    fast = apply_plan(plain, SMALL)
    expected = fast(SMALL)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_answers, args=(fast, SMALL, queue))
    child.start()
    torch.testing.assert_close(torch.tensor(queue.get(timeout=60)), expected)
    child.join(60)
    assert child.exitcode == 0


@torch.no_grad()
def test_a_plan_that_is_given_up_under_eight_threads_answers_none_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is wrong from some call on: the canary gives it up while others are calling."""

    def plan(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    made = CompiledPlan(INDUCTOR, plan, lambda _args, _kwargs: plan, lambda: None)
    monkeypatch.setattr("torchwise.runtime.served.compile_plan", lambda *_args, **_options: made)
    fast = torchwise.apply(torch.neg, make_decision(torch.neg, INDUCTOR, SMALL), canary=1)
    fast(SMALL)  # compiles, and is not compared
    answers: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: answers.extend(fast(SMALL) for _ in range(20))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 160
    assert all(torch.equal(answer, -SMALL) for answer in answers)
    assert fast.statistics.mismatched >= 1


@torch.no_grad()
def test_a_plan_that_was_closed_just_before_it_compiles_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = torch.nn.Linear(4, 4).eval(), torch.ones(3, 4)
    fast = torchwise.apply(net, make_decision(net, Plan(threads=torch.get_num_threads() + 1), x))
    fast(x)
    dispatcher: Any = dispatcher_of(fast)
    dispatcher.set_frozen(False)  # so that the next call is looked at in full
    compile_plan = dispatcher._plan.compile

    def close_and_compile(*given: Any) -> Any:
        dispatcher.close()  # as another thread may
        return compile_plan(*given)

    monkeypatch.setattr(dispatcher._plan, "compile", close_and_compile)
    assert dispatcher.active_plan is not None
    torch.testing.assert_close(fast(x), net(x))
    assert dispatcher.active_plan is None
    fast(x)
    assert fast.statistics.optimized == 1
