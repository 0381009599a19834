"""The backend for `torch.compile`: its use of a decision, and of graphs that have none, with nothing compiled."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from dynamo_graphs import decision_for
from torchwise._torch import dynamo
from torchwise.alerts import OnceLog
from torchwise.errors import InputError
from torchwise.plan import EAGER, Plan
from torchwise.records import Decision
from torchwise.runtime.dynamo import backend as entry
from torchwise.runtime.dynamo import graph_backend
from torchwise.runtime.dynamo.decide import Options
from torchwise.runtime.dynamo.graph import Captured

THREADS = Plan(threads=torch.get_num_threads() + 1)


class Bench:
    """Decides by itself, and keeps the requests."""

    def __init__(self) -> None:
        self.plan = EAGER
        self.captured: list[Captured] = []
        self.asked: list[Options] = []
        self.inductor = 0
        self.error: Exception | None = None

    def decide(self, captured: Captured, asked: Options) -> Decision:
        self.captured.append(captured)
        self.asked.append(asked)
        if self.error:
            raise self.error
        return decision_for(captured, self.plan)

    def compile(self, module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.inductor += 1
        return module.forward


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    bench = Bench()
    module = importlib.import_module("torchwise.runtime.dynamo.graph_backend")
    monkeypatch.setattr(module, "decide", bench.decide)
    monkeypatch.setattr(module, "_logged", OnceLog())
    monkeypatch.setattr(dynamo, "compile_graph", bench.compile)
    torch._dynamo.reset()
    yield bench
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"efort": "quick"}, "options has 'efort', but the backend torchwise has effort, calls"),
        ({"effort": "much"}, "effort is 'much', but must be one of"),
        ({"calls": 0}, "calls is 0"),
        ({"allow": "anything"}, "allow is 'anything'"),
        ({"budget": -1}, "budget is -1"),
        ({"budget": float("nan")}, "budget is nan"),
        ({"budget": True}, "budget is True"),
        ({"compile_timeout": 0}, "compile_timeout is 0"),
        ({"store": "somewhere"}, "store is 'somewhere'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], said: str, bench: Bench) -> None:
    with pytest.raises(InputError, match=said):
        Options.read(options, None)
    with pytest.raises(BackendCompilerFailed, match=said):
        torch.compile(torch.sin, backend=entry, options=options)(torch.ones(2))


def test_a_mode_is_refused(bench: Bench) -> None:
    with pytest.raises(BackendCompilerFailed, match="mode is 'max-autotune', but the backend torchwise measures"):
        torch.compile(torch.sin, backend=entry, mode="max-autotune")(torch.ones(2))


def test_options_reach_the_decision(bench: Bench) -> None:
    options = {"effort": "standard", "calls": 7, "allow": "exact", "store": "a.db", "budget": 3}
    torch.compile(torch.sin, backend=entry, options=options)(torch.ones(2))
    torch._dynamo.reset()
    torch.compile(torch.sin, backend=entry)(torch.ones(2))
    assert bench.asked == [Options("standard", 7, "exact", "a.db", 3), Options()]
    assert bench.asked[1].allow == "same-precision"


def test_each_graph_of_a_broken_model_is_decided(bench: Bench) -> None:
    def break_graph(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    x = torch.rand(3)
    assert torch.equal(torch.compile(break_graph, backend=entry)(x), x.sin().cos())
    codes = [captured.graph.code for captured in bench.captured]
    assert len(codes) == 2
    assert "sin" in codes[0]
    assert "cos" in codes[1]


def test_a_new_shape_is_decided_anew_and_many_shapes_once(bench: Bench) -> None:
    f = torch.compile(lambda x: x * x.shape[0], backend=entry)
    for n in (3, 4, 5, 6):
        assert torch.equal(f(torch.ones(n)), torch.full((n,), float(n)))
    first, second = bench.captured
    assert not first.dynamic
    assert second.dynamic
    assert second.example.args[0] == 4
    assert type(second.example.args[0]) is int


def test_a_symbol_is_not_fixed_by_looking_at_it(bench: Bench) -> None:
    f = torch.compile(lambda x: x + 1, backend=entry, dynamic=True, fullgraph=True)
    for n in (3, 4, 5):
        f(torch.ones(n))
    assert [captured.dynamic for captured in bench.captured] == [True]


@pytest.mark.parametrize("under", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_plan_with_more_than_a_compiler_is_dispatched(under: Any, bench: Bench, monkeypatch: Any) -> None:
    bench.plan = THREADS
    seen: list[tuple[int, bool]] = []
    forward = Captured.from_graph

    def state() -> tuple[int, bool]:
        return torch.get_num_threads(), torch.is_grad_enabled()

    def record_state(module: torch.fx.GraphModule, inputs: Any) -> Captured:
        captured = forward(module, inputs)
        run = captured.graph._forward
        captured.graph._forward = lambda *a: (seen.append(state()), run(*a))[1]
        return captured

    monkeypatch.setattr(Captured, "from_graph", record_state)
    f = torch.compile(lambda x: x.sin() + 1, backend=entry)
    x = torch.rand(4)
    with under():
        for _ in range(3):
            assert torch.equal(f(x), x.sin() + 1)
    assert seen == [(THREADS.threads, False)] * 3  # gradients are needed nowhere, and plans are quicker without


def test_training_by_a_dispatched_plan_has_eagers_gradients(bench: Bench) -> None:
    bench.plan = THREADS
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    x = torch.rand(2, 4)
    expected = torch.autograd.grad(model(x).sum(), list(model.parameters()))
    found = torch.autograd.grad(torch.compile(model, backend=entry)(x).sum(), list(model.parameters()))
    assert [c.mode for c in bench.captured] == ["training"]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("under", [torch.no_grad, torch.inference_mode])
def test_grad_mode_makes_two_graphs_of_one(under: Any, bench: Bench) -> None:
    model = torch.nn.Linear(4, 4)
    f = torch.compile(model, backend=entry)
    f(torch.ones(1, 4))
    with under():
        assert not f(torch.ones(1, 4)).requires_grad
    assert [captured.mode for captured in bench.captured] == ["training", "inference"]


def test_weights_that_change_are_seen(bench: Bench) -> None:
    bench.plan = THREADS
    model = torch.nn.Linear(4, 4)
    f = torch.compile(model, backend=entry)
    with torch.no_grad():
        f(torch.ones(1, 4))
        model.weight.zero_()
        assert torch.equal(f(torch.ones(1, 4)), model.bias[None])
        model.weight = torch.nn.Parameter(torch.eye(4))
        assert torch.equal(f(torch.ones(1, 4)), model.bias[None] + 1)


def test_writes_to_inputs_and_batch_norms_statistics_happen_once(bench: Bench) -> None:
    bench.plan = THREADS
    model, x = torch.nn.BatchNorm1d(3), torch.rand(5, 3)
    f = torch.compile(model, backend=entry)
    f(x)
    f(x)
    assert model.num_batches_tracked == 2
    x = torch.zeros(2)
    torch.compile(lambda x: x.add_(1), backend=entry)(x)
    assert torch.equal(x, torch.ones(2))


def test_a_plan_that_fails_when_called_is_answered_by_the_graph(bench: Bench, caplog: Any) -> None:
    bench.plan = Plan(capture="call")  # which needs a GPU
    f = torch.compile(lambda x: x.sin(), backend=entry)
    x = torch.rand(3)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "torchwise"):
        assert torch.equal(f(x), x.sin())
    assert "failed, the original answers" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("the store burnt down"), InputError("cannot be pickled")])
def test_whatever_fails_while_deciding_leaves_the_graph_to_inductor(
    error: Exception, bench: Bench, caplog: Any
) -> None:
    bench.error = error
    x = torch.rand(3)
    with caplog.at_level(logging.WARNING, "torchwise"):
        for call in (torch.sin, torch.cos):
            assert torch.equal(torch.compile(call, backend=entry)(x), call(x))
    assert bench.inductor == 2
    assert caplog.text.count(str(error)) == 1


def test_an_interruption_is_the_users(bench: Bench) -> None:
    bench.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        torch.compile(torch.sin, backend=entry)(torch.ones(2))


def test_what_inductor_cannot_compile_runs_as_it_is(bench: Bench, monkeypatch: Any, caplog: Any) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("no compiler")

    bench.error = RuntimeError("no decision")
    monkeypatch.setattr(dynamo, "compile_graph", fails)
    x = torch.rand(3)
    with caplog.at_level(logging.WARNING, "torchwise"):
        assert torch.equal(torch.compile(torch.sin, backend=entry)(x), x.sin())
    assert "runs as it was captured" in caplog.text


def test_a_decided_plan_that_does_not_compile_leaves_the_graph_to_inductor(bench: Bench) -> None:
    bench.plan = Plan(backend="inductor", options=(("an_option_of_no_version", True),))
    assert torch.equal(torch.compile(torch.sin, backend=entry)(torch.ones(3)), torch.ones(3).sin())
    assert bench.inductor == 1


class Tagged(torch.Tensor):
    """A subclass, whose behaviour a worker would not have."""


def _switches(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * 2
    return y + 1


def _casts(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


UNSENDABLE: list[tuple[str, Callable[..., Any], Any]] = [
    ("another graph", lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False), None),
    ("enables autocast inside", _casts, None),
    ("only this process has", lambda x: x + torch.as_tensor(np.ones(2)), None),
    ("on no device", lambda: torch.ones(2), ()),
    ("on meta", torch.sin, (torch.ones(2, 2, device="meta"),)),
    ("gradients on or off", _switches, None),
    ("a Tagged", torch.sin, (torch.ones(2, 2).as_subclass(Tagged),)),
]


@pytest.mark.parametrize(("reason", "call", "args"), UNSENDABLE, ids=[row[0] for row in UNSENDABLE])
def test_what_a_worker_could_not_run_alike_is_not_measured(
    reason: str, call: Callable[..., Any], args: Any, bench: Bench, caplog: Any
) -> None:
    args = (torch.ones(2, 2),) if args is None else args
    with caplog.at_level(logging.WARNING, "torchwise"):
        result = torch.compile(call, backend=entry)(*args)
    assert result.device.type == "meta" or torch.equal(result, call(*args))
    assert not bench.captured
    assert bench.inductor == 1
    assert reason in caplog.text


def test_nothing_is_tuned_where_other_ranks_would_wait(bench: Bench, monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with caplog.at_level(logging.WARNING, "torchwise"):
        torch.compile(torch.sin, backend=entry)(torch.ones(3))
    assert "other ranks would wait" in caplog.text
    assert bench.inductor == 1


@pytest.mark.parametrize(
    ("plan", "alone"),
    [
        (Plan(backend="inductor"), True),
        (Plan(backend="inductor", shapes="dynamic"), True),
        (Plan(backend="inductor", transforms=("complex_to_real",), scope="rolled"), True),
        (Plan(backend="inductor", mode="max-autotune-no-cudagraphs"), True),
        (Plan(backend="inductor", mode="reduce-overhead"), False),
        (Plan(backend="inductor", capture="call"), False),
        (Plan(backend="inductor", threads=3), False),
        (Plan(backend="inductor", precision="bf16"), False),
        (Plan(backend="inductor", options=(("freezing", True),)), False),
        (Plan(backend="inductor", transforms=("isolate_rnn",)), False),
        (THREADS, False),
    ],
    ids=str,
)
def test_only_what_is_nothing_but_inductor_goes_past_the_dispatcher(plan: Plan, alone: bool) -> None:
    assert graph_backend.compiles_alone(plan) is alone
