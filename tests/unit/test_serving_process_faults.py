"""Threads and processes around a plan that is served, and the effects of a plan before it failed."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchwise
from live_decisions import make_decision
from torchwise import artifact
from torchwise.artifact import package
from torchwise.artifact.package import Manifest
from torchwise.compile import CompiledPlan
from torchwise.plan import Plan
from torchwise.runtime import dispatch
from torchwise.runtime.input_writes import InputSnapshot
from torchwise.runtime.served import dispatcher_of
from torchwise.runtime.serving import freeze, unfreeze

INDUCTOR = Plan(backend="inductor")
THREADS = Plan(threads=torch.get_num_threads() + 1)
X = torch.randn(3, 4)


def close_dispatcher(dispatcher: dispatch.Dispatcher) -> None:
    dispatcher.close()


def run_out_of_memory(dispatcher: dispatch.Dispatcher) -> None:
    dispatcher._release("the plan")
    dispatcher._circuits.memory.record_success()


def freeze_and_unfreeze(dispatcher: dispatch.Dispatcher) -> None:
    dispatcher.freeze()
    dispatcher.unfreeze()


@pytest.mark.parametrize("event", [close_dispatcher, run_out_of_memory, freeze_and_unfreeze])
def test_eight_threads_are_answered_while_the_plan_is_taken_away(
    event: Callable[[dispatch.Dispatcher], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closed plan must not be called any more. A call that is under way may meet it and is answered, too."""

    def realize(*_args: Any, **_options: Any) -> CompiledPlan:
        alive = [True]

        def plan(x: torch.Tensor) -> torch.Tensor:
            if not alive:
                raise RuntimeError("it was closed")
            return -x

        return CompiledPlan(INDUCTOR, plan, lambda _args, _kwargs: plan, alive.clear)

    monkeypatch.setattr("torchwise.runtime.served.compile_plan", realize)
    fast = torchwise.apply(torch.neg, make_decision(torch.neg, INDUCTOR, X))
    dispatcher = dispatcher_of(fast)
    assert dispatcher is not None
    wrong: list[BaseException] = []
    barrier = threading.Barrier(9)

    @torch.no_grad()
    def call() -> None:
        try:
            barrier.wait()
            for _ in range(300):
                assert torch.equal(fast(X), -X)
        except BaseException as error:  # any error in a thread is the test's result
            wrong.append(error)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    barrier.wait()
    for _ in range(6):  # to collect garbage takes a second each time
        event(dispatcher)
    for thread in threads:
        thread.join()
    assert wrong == []
    assert fast.statistics.calls > 0


def _answer(fast: Any, said: Any) -> None:
    with torch.no_grad():
        said.put(([fast(X).tolist() for _ in range(3)], fast.statistics.optimized, fast.statistics.compiles))


def run_in_fork(fast: Any) -> Any:
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    child = context.Process(target=_answer, args=(fast, said))
    child.start()
    found = said.get(timeout=120)
    child.join(60)
    assert child.exitcode == 0
    return found


@pytest.mark.usefixtures("one_thread")
@torch.no_grad()
def test_a_process_that_is_forked_after_an_artifact_was_loaded_is_answered(tmp_path: Path) -> None:
    net, plan = torch.nn.Linear(4, 4).eval(), Plan(threads=2)
    decision = make_decision(net, plan, X)
    _, data = package.pack(Manifest("1", decision.environment, {}, {}, 1.0, 1.0, 0), decision, {})
    package.put(tmp_path / "model.tw", data)
    fast = torchwise.apply(net, artifact.load(tmp_path / "model.tw"))
    answers, optimized, _ = run_in_fork(fast)
    for answer in answers:
        torch.testing.assert_close(torch.tensor(answer), net(X))
    assert optimized == 3


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@torch.no_grad()
def test_a_process_that_is_forked_after_the_freeze_is_frozen_too() -> None:
    net = torch.nn.Linear(4, 4).eval()
    fast = torchwise.apply(net, make_decision(net, INDUCTOR, X))
    fast(X)
    freeze(fast)
    expected = fast(X)
    answers, optimized, compiles = run_in_fork(fast)
    for answer in answers:
        torch.testing.assert_close(torch.tensor(answer), expected)
    assert (optimized, compiles) == (5, 0)
    unfreeze(fast)


@pytest.mark.slow
@torch.no_grad()
def test_what_was_written_before_a_later_piece_fails_to_compile_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch import config as functorch
    from torch._inductor import config, graph

    works = graph.GraphLowering.run

    def run(self: Any, *args: Any) -> Any:
        if any("tanh" in str(node.target) for node in self.graph.nodes):
            raise ZeroDivisionError("the compiler has a fault")
        return works(self, *args)

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            self.calls += 1
            torch._dynamo.graph_break()
            return x.tanh() + self.calls

    monkeypatch.setattr(graph.GraphLowering, "run", run)
    torch._dynamo.reset()
    net, bare = Counting().eval(), Counting().eval()
    fast = torchwise.apply(net, make_decision(net, INDUCTOR, X))
    with config.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        for _ in range(2):
            ours, theirs = X.clone(), X.clone()
            torch.testing.assert_close(fast(ours), bare(theirs))
            torch.testing.assert_close(ours, theirs)
    assert net.calls == bare.calls == 2
    assert fast.statistics.failures.total() == 2


def test_what_was_written_is_put_back_and_nothing_else() -> None:
    written, read, buffers = torch.zeros(3), torch.zeros(3), torch.nn.BatchNorm1d(2)
    undo = InputSnapshot(buffers, (written,), {"read": read})
    written.add_(1)
    buffers.num_batches_tracked.add_(1)
    before = read._version
    undo()
    assert torch.equal(written, torch.zeros(3))
    assert (buffers.num_batches_tracked, read._version) == (0, before)
    written.add_(1)
    undo()
    assert torch.equal(written, torch.ones(3)), "once alone"


@torch.no_grad()
def test_what_batch_norm_writes_without_counting_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def realize(original: torch.nn.BatchNorm1d, plan: Plan, *_: Any, **__: Any) -> CompiledPlan:
        def call(x: torch.Tensor) -> torch.Tensor:
            torch.nn.functional.batch_norm(x, original.running_mean, original.running_var, training=True)
            raise ZeroDivisionError("a later piece fails")

        return CompiledPlan(plan, call, lambda _args, _kwargs: call, lambda: None)

    monkeypatch.setattr("torchwise.runtime.served.compile_plan", realize)
    net, bare = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    fast = torchwise.apply(net, make_decision(net, THREADS, X))
    torch.testing.assert_close(fast(X), bare(X))
    assert fast.statistics.failures == {"ZeroDivisionError": 1}
    for ours, theirs in zip(net.buffers(), bare.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_what_has_no_count_of_its_writes_is_put_back_where_it_differs() -> None:
    with torch.inference_mode():
        x, y = torch.zeros(3), torch.zeros(3)
        undo = InputSnapshot(None, (x, y), {})
        x.add_(1)
        undo()
        assert torch.equal(x, torch.zeros(3))


def test_what_cannot_be_copied_or_written_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(torch.Tensor):
        def clone(self, *_args: Any, **_options: Any) -> Any:
            raise RuntimeError("hands off")

    x = torch.zeros(3)
    undo = InputSnapshot(None, (x, torch.zeros(2).as_subclass(Odd)), {})
    x.add_(1)
    undo()
    assert torch.equal(x, torch.ones(3))
    undo = InputSnapshot(None, (x,), {})
    x.add_(1).resize_(5)
    undo()
    assert torch.equal(x, torch.ones(3)), "its size, too"
    draws = iter(torch.rand(1) for _ in range(2))
    undo = InputSnapshot(None, (draws,), {})
    next(draws)
    undo()
    assert "cannot be undone" in caplog.text
