from __future__ import annotations

import copy
import gc
import io
import json
import logging
import pickle
import threading
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch

import torchwise
from live_decisions import make_decision
from torchwise.alerts import heard
from torchwise.compile import CompiledPlan
from torchwise.errors import InputError, StalePlanError
from torchwise.plan import EAGER, Plan
from torchwise.runtime import OptimizedFunction, OptimizedModule, circuit_breaker, served, unwrap
from torchwise.runtime.circuit_breaker import FAILURES, MEMORY_WAIT_S
from torchwise.runtime.dispatch import Dispatcher
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.served import dispatcher_of
from torchwise.runtime.serving import freeze
from torchwise.runtime.statistics import MIN_CALLS
from torchwise.workload import Example
from torchwise.workload.identity import describe_example

pytestmark = pytest.mark.usefixtures("way")  # calls are taken in Python, and by compiled checks
THREADS = Plan(threads=torch.get_num_threads() + 1)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.note = "mine"

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.norm(self.inner(x)) * scale

    def greet(self) -> str:
        return f"hello from {self.note}"


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


X = torch.randn(3, 4)


def apply_plan(net: torch.nn.Module, plan: Plan = THREADS) -> OptimizedModule:
    fast = torchwise.apply(net, make_decision(net, plan, X))
    assert isinstance(fast, OptimizedModule)
    return fast


@torch.no_grad()
def test_it_answers_by_the_plan_where_that_was_proven(net: Net) -> None:
    fast = apply_plan(net)
    assert torch.equal(fast(X), net(X))
    assert fast.statistics.optimized == 1
    assert not fast.statistics.original


@torch.no_grad()
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda fast: fast(torch.randn(5, 4)), FallbackReason.INPUTS_NOT_VERIFIED),
        (lambda fast: fast(X, scale=2.0), FallbackReason.INPUTS_NOT_VERIFIED),
        (lambda fast: fast.train()(X), FallbackReason.TRAINING_MODE_CHANGED),
        (lambda fast: torch.enable_grad()(fast)(X), FallbackReason.GRADIENTS_ENABLED),
        (lambda fast: torch.autocast("cpu", torch.bfloat16)(fast)(X), FallbackReason.AUTOCAST_ENABLED),
    ],
)
def test_whatever_was_not_proven_is_answered_by_the_original_and_counted(
    net: Net, call: object, reason: FallbackReason
) -> None:
    fast = apply_plan(net)
    call(fast)  # type: ignore[operator]
    assert fast.statistics.optimized == 0
    assert fast.statistics.original == {reason: 1}
    assert list(fast.statistics.sentences) == [reason]


def test_gradients_flow_where_the_caller_wants_them(net: Net) -> None:
    fast = apply_plan(net)
    fast(X).sum().backward()
    assert net.inner.weight.grad is not None


class Fault:
    """Stands in for a realised plan: raises as long as it is told to, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
        self.error: BaseException | None = error
        self.tried = self.realized = self.closed = 0
        self.now = 0.0
        monkeypatch.setattr("torchwise.runtime.served.compile_plan", self.realize)
        monkeypatch.setattr(
            circuit_breaker.CircuitBreaker.__init__,
            "__defaults__",
            (*circuit_breaker.CircuitBreaker.__init__.__defaults__[:2], self.clock),
        )

    def clock(self) -> float:
        return self.now

    def realize(self, original: Any, plan: Plan, *_: Any, **__: Any) -> CompiledPlan:
        self.realized += 1

        def call(*args: Any) -> Any:
            self.tried += 1
            if self.error is not None:
                raise self.error
            return original(*args)

        def close() -> None:
            self.closed += 1

        return CompiledPlan(plan, call, lambda _args, _kwargs: call, close)


@torch.no_grad()
def test_a_plan_that_fails_is_answered_by_the_original_and_logged_once(
    net: Net, caplog: pytest.LogCaptureFixture
) -> None:
    fast = apply_plan(net, Plan(backend="nonesuch"))
    with caplog.at_level(logging.WARNING, "torchwise"):
        for _ in range(FAILURES + 2):
            assert torch.equal(fast(X), net(X))
    assert sum(fast.statistics.original.values()) == FAILURES + 2
    assert fast.statistics.failures == {"UnsupportedError": FAILURES}
    assert sum("failed, the original answers" in r.message for r in caplog.records) == 1


@torch.no_grad()
def test_a_signature_on_which_the_plan_fails_is_left_alone_for_a_time_and_tried_again(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, other = Fault(monkeypatch, RuntimeError("broken")), torch.randn(5, 4)
    decision = replace(
        make_decision(net, THREADS, X), inputs=tuple(describe_example(Example((x,))) for x in (X, other))
    )
    fast = torchwise.apply(net, decision)
    with heard() as alerts:
        for _ in range(FAILURES + 2):
            assert torch.equal(fast(X), net(X))
    assert fault.tried == FAILURES
    [alert] = alerts
    assert (alert.kind, alert.facts["failure"], alert.facts["wait_s"]) == ("plan_failed", "RuntimeError", 60.0)
    assert (
        alert.message
        == f"plan {THREADS} failed again (RuntimeError): calls of that signature go to the original for 60 s"
    )
    fault.error = None
    fast(other)
    assert fast.statistics.optimized == 1, "another signature is another matter"
    fast(X)
    assert fault.tried == FAILURES + 1
    fault.now += 60.0
    for _ in range(3):
        assert torch.equal(fast(X), net(X))
    assert fast.statistics.optimized == 4
    fault.error = RuntimeError("broken again")
    for _ in range(FAILURES + 1):
        assert torch.equal(fast(X), net(X))
    assert fast.statistics.opened == 2, "a success had closed it"


@torch.no_grad()
def test_out_of_memory_frees_what_the_plan_holds_and_the_original_answers(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    fault.error, memory = None, torch.OutOfMemoryError("CUDA out of memory")
    fast, emptied = apply_plan(net), []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(fault.closed))
    fast(X)
    fault.error = memory
    with heard() as alerts:
        assert torch.equal(fast(X), net(X))
    assert (fault.closed, emptied) == (1, [1]), "closed, and only then given back"
    assert [alert.kind for alert in alerts] == ["out_of_memory"]
    fault.error = None
    fast(X)
    assert fast.statistics.optimized == 1, "once is enough: nothing is tried while memory is short"
    fault.now += MEMORY_WAIT_S
    fast(X)
    fast(X)
    assert (fast.statistics.optimized, fault.realized) == (3, 2)


@torch.no_grad()
def test_too_many_calls_for_the_original_are_said_once(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = apply_plan(net)
    with heard() as alerts:
        for _ in range(MIN_CALLS - 100):
            fast(X)
        for _ in range(200):
            fast(torch.randn(5, 4))
    [alert] = alerts
    assert alert.kind == "fallback_rate"
    assert alert.facts["rate"] == pytest.approx(0.1)
    assert "not verified on inputs of this shape" in alert.message


@torch.no_grad()
def test_a_callback_that_fails_keeps_nobody_from_an_answer(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    Fault(monkeypatch, RuntimeError("broken"))
    heard_of: list[str] = []
    removers = [torchwise.on_alert(lambda _: 1 / 0), torchwise.on_alert(lambda alert: heard_of.append(alert.kind))]
    fast = apply_plan(net)
    for _ in range(FAILURES):
        assert torch.equal(fast(X), net(X))
    assert heard_of == ["plan_failed"]
    for remove in (*removers, *removers):
        remove()


def test_a_callback_that_is_no_function_is_refused_when_it_is_given() -> None:
    with pytest.raises(InputError, match="callback is 3, but must be a function that takes an Alert"):
        torchwise.on_alert(3)  # type: ignore[arg-type]


@torch.no_grad()
def test_a_frozen_plan_answers_what_it_answered_before_and_compiles_nothing_more(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault, other = Fault(monkeypatch, RuntimeError("broken")), torch.randn(5, 4)
    fault.error = None
    decision = replace(
        make_decision(net, THREADS, X), inputs=tuple(describe_example(Example((x,))) for x in (X, other))
    )
    fast = torchwise.apply(net, decision)
    fast(X)
    freeze(fast)
    fast(X)
    assert torch.equal(fast(other), net(other))
    assert (fault.tried, fast.statistics.optimized, fast.statistics.original) == (2, 2, {FallbackReason.FROZEN: 1})
    fault.error = RuntimeError("broken")
    for _ in range(FAILURES):
        fast(X)
    fault.error, fault.now = None, 60.0
    fast(X)
    assert fast.statistics.optimized == 3, "what it answered before is tried again"


class Touchy:
    """An object that cannot even be looked at."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("hands off")


class Unhashable(str):
    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True


@torch.no_grad()
@pytest.mark.parametrize("kind", [Touchy, Unhashable])
def test_an_input_that_cannot_be_looked_at_is_the_originals_also_after_others(kind: type) -> None:
    odd = kind()

    def first(x: Any, *_: Any) -> Any:
        return x

    fast = torchwise.apply(first, make_decision(first, THREADS, X))
    fast(X)
    assert fast(odd) is odd
    assert fast(X, odd) is X


@torch.no_grad()
def test_many_calls_that_run_out_of_memory_at_once_are_one_event(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Fault(monkeypatch, torch.OutOfMemoryError("CUDA out of memory"))
    fast, held = apply_plan(net), []

    def empty() -> None:
        held.append(fast._dispatcher._circuits.memory.record_failure())  # as another thread's call would

    monkeypatch.setattr(torch.cuda, "empty_cache", empty)
    with heard() as alerts:
        fast(X)
    assert (held, len(alerts), fast.statistics.opened) == ([False], 1, 1)
    assert fast._dispatcher._circuits.memory.wait_s == MEMORY_WAIT_S
    assert fault.closed == 1


@torch.no_grad()
def test_what_a_call_had_computed_is_freed_before_the_original_runs(
    net: Net, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Fault(monkeypatch, RuntimeError("unused"))
    alive: list[bool] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        large = x * 2
        reference = weakref.ref(large)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(reference() is not None))
        raise torch.OutOfMemoryError("CUDA out of memory")

    made = CompiledPlan(THREADS, call, lambda _args, _kwargs: call, lambda: None)
    monkeypatch.setattr("torchwise.runtime.served.compile_plan", lambda *_args, **_options: made)
    apply_plan(net)(X)
    assert alive == [False]
    assert "in call" in caplog.text, "the log says where"


class Cycle:
    """Held by itself, and so until it is collected. Then it lets go of the object behind it."""

    def __init__(self, behind: Any) -> None:
        self.own = self
        weakref.finalize(self, [behind].clear)


@torch.no_grad()
@pytest.mark.parametrize("calls", [1, 2], ids=["first call", "later"])
def test_what_a_plan_held_in_cycles_is_freed_before_the_original_runs(
    net: Net, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    Fault(monkeypatch, RuntimeError("unused"))
    alive: list[bool] = []

    def make_cyclic_plan(*_args: Any, **_options: Any) -> CompiledPlan:
        inner = Cycle(None)
        outer, reference = Cycle(inner), weakref.ref(inner)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: alive.append(reference() is not None))

        def call(x: torch.Tensor, _code: Any = outer) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory")

        return CompiledPlan(THREADS, call if calls == 1 else net, lambda _args, _kwargs: call, lambda: None)

    monkeypatch.setattr("torchwise.runtime.served.compile_plan", make_cyclic_plan)
    fast = apply_plan(net)
    gc.disable()
    try:
        for _ in range(calls):
            fast(X)
    finally:
        gc.enable()
    assert alive == [False]


@torch.no_grad()
def test_where_no_shorter_way_is_found_the_call_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)

    made = CompiledPlan(THREADS, add, lambda _args, _kwargs: 1 / 0, lambda: None)  # type: ignore[arg-type,return-value]
    monkeypatch.setattr("torchwise.runtime.served.compile_plan", lambda *_args, **_options: made)
    fast, x = torchwise.apply(add, make_decision(add, THREADS, X)), torch.zeros_like(X)
    for turn in (1, 2):
        fast(x)
        assert torch.equal(x, torch.full_like(X, turn))
    assert fast.statistics.optimized == 2


def test_replicas_for_several_devices_are_the_originals(net: Net) -> None:
    fast = apply_plan(net)
    before = list(net.state_dict())
    replica = fast._replicate_for_data_parallel()
    assert type(replica) is Net
    assert list(net.state_dict()) == before
    assert not getattr(net, "_is_replica", False)


class CopiedInItsOwnWay(Net):
    def __deepcopy__(self, memo: dict[int, Any]) -> CopiedInItsOwnWay:
        return CopiedInItsOwnWay().eval()


def test_a_deep_copy_is_optimised_whatever_way_the_original_is_copied_in() -> None:
    model = CopiedInItsOwnWay().eval()
    twin = copy.deepcopy(torchwise.apply(model, make_decision(model, THREADS, X)))
    assert issubclass(type(twin), OptimizedModule)
    assert type(unwrap(twin)) is CopiedInItsOwnWay


def test_only_what_was_optimised_can_be_frozen(net: Net) -> None:
    with pytest.raises(InputError, match="it is of type Net, and Torchwise did not make it"):
        freeze(net)


def test_the_counts_are_plain_data(net: Net) -> None:
    fast = apply_plan(net)
    with torch.no_grad():
        fast(X)
        fast(torch.randn(5, 4))
    counts = fast.statistics.snapshot()
    assert json.loads(json.dumps(counts)) == counts
    assert (counts["calls"], counts["optimized"], counts["fallback_rate"]) == (2, 1, 0.5)


@torch.no_grad()
def test_an_error_of_the_models_own_is_the_callers(net: Net) -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("not this one")

    fast = torchwise.apply(picky, make_decision(picky, THREADS, X))
    with pytest.raises(ValueError, match="not this one"):
        fast(X)


@torch.no_grad()
def test_staying_with_eager_calls_the_original_as_a_call_of_it_would(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = apply_plan(net, EAGER)
    expected = net(X)
    fast(X)
    net._compiled_call_impl = lambda x: x + 1  # as `net.compile()` sets it
    assert torch.equal(fast(X), X + 1)
    net._compiled_call_impl = None
    assert torch.equal(fast(X), expected)
    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.Module, "__call__", lambda self, x: x + 2)  # as torch.fx does while it traces
        assert torch.equal(fast(X), X + 2)
    monkeypatch.setattr(Net, "__call__", lambda self, x: x + 3, raising=False)
    assert torch.equal(fast(X), X + 3)
    assert fast.statistics.stayed == 5


def test_a_decision_for_eager_runs_the_original(net: Net) -> None:
    fast = apply_plan(net, EAGER)
    assert torch.equal(fast(X), net(X))
    assert fast.statistics.optimized == 0


def test_checkpoints_carry_no_prefix_and_load_both_ways(net: Net) -> None:
    fast = apply_plan(net)
    assert list(fast.state_dict()) == list(net.state_dict())
    other = Net()
    other.load_state_dict(fast.state_dict())
    fast.load_state_dict({k: v + 1 if v.is_floating_point() else v for k, v in other.state_dict().items()})
    assert torch.equal(net.inner.weight, other.inner.weight + 1)
    buffer = io.BytesIO()
    torch.save(fast.state_dict(), buffer)


def test_it_looks_like_the_original(net: Net) -> None:
    fast = apply_plan(net)
    assert fast.greet() == "hello from mine"
    fast.note = "yours"
    assert net.note == "yours"
    assert dict(fast.named_parameters()).keys() == dict(net.named_parameters()).keys()
    assert [p is q for p, q in zip(fast.parameters(), net.parameters(), strict=True)] == [True] * 4
    assert fast.inner is net.inner
    assert [name for name, _ in fast.named_modules()] == [name for name, _ in net.named_modules()]
    assert not fast.training
    fast.train()
    assert net.training
    assert net.norm.training
    fast.to(torch.float64)
    assert net.inner.weight.dtype is torch.float64
    fast.inner = torch.nn.Linear(4, 4)
    assert net.inner is fast.inner
    del fast.note
    assert not hasattr(net, "note")


def test_hooks_run_once(net: Net) -> None:
    seen = []
    fast = apply_plan(net)
    fast.register_forward_hook(lambda *_: seen.append("wrapper"))
    net.register_forward_hook(lambda *_: seen.append("original"))
    with torch.no_grad():
        fast(X)
    assert sorted(seen) == ["original", "wrapper"]


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
@pytest.mark.parametrize("plan", [THREADS, EAGER], ids=["planned", "eager"])
def test_a_hook_that_is_registered_after_calls_runs_until_it_is_removed(net: Net, register: str, plan: Plan) -> None:
    seen = []
    fast = apply_plan(net, plan)
    fast(X)
    fast(X)
    handle = getattr(fast, register)(lambda *_: seen.append("wrapper"))
    for _ in range(2):
        fast(X.clone().requires_grad_()).sum().backward()
    handle.remove()
    fast(X.clone().requires_grad_()).sum().backward()
    assert seen == ["wrapper"] * 2


@torch.no_grad()
def test_a_hook_survives_another_dispatcher_and_its_handle_a_copy(net: Net) -> None:
    seen = []
    fast = apply_plan(net, EAGER)
    handle = fast.register_forward_hook(lambda *_: seen.append("before"))
    gone = weakref.ref(dispatcher_of(fast))
    fast.__dict__["_torchwise"] = Dispatcher(net, fast.decision)  # as a plan that was searched for beside is put there
    gc.collect()
    assert gone() is None
    fast.register_forward_hook(lambda *_: seen.append("after"))
    fast(X)
    assert seen == ["before", "after"]
    copied = copy.deepcopy({"model": fast, "handle": handle})
    copied["model"](X)
    copied["handle"].remove()
    copied["model"](X)
    assert seen == ["before", "after", "before", "after", "after"]


def note_arguments(module: torch.nn.Module, *given: Any) -> None:
    SEEN.append(len(given))


SEEN: list[int] = []


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_hooks_of_every_kind_come_along_with_copies(net: Net, copier: Any) -> None:
    fast = apply_plan(net, EAGER)
    fast.register_forward_hook(note_arguments, with_kwargs=True)
    fast.register_forward_pre_hook(note_arguments)
    fast.register_full_backward_hook(note_arguments)
    other = copier(fast)
    SEEN.clear()
    other(X.clone().requires_grad_()).sum().backward()
    assert SEEN == [1, 3, 2]


@torch.no_grad()
def test_calls_that_stay_with_eager_are_counted_apart_from_those_after_a_close(net: Net) -> None:
    fast = apply_plan(net, EAGER)
    for _ in range(2):
        fast(X)
    dispatcher = dispatcher_of(fast)
    assert dispatcher is not None
    dispatcher.close(Fallback(FallbackReason.CLOSED, "it is over"))
    fast(X)
    assert fast.statistics.original == {FallbackReason.EAGER_DECISION: 2, FallbackReason.CLOSED: 1}
    assert fast.statistics.sentences[FallbackReason.CLOSED] == "it is over"
    assert fast.statistics.calls == 3
    assert fast.statistics.fallback_rate == pytest.approx(1 / 3), "what was decided for is no fallback"
    snapshot = fast.statistics.snapshot()
    assert snapshot["original"] == {"eager_decision": 2, "closed": 1}
    assert snapshot["original_sentences"] == {
        "eager_decision": "the decision is to stay with eager",
        "closed": "it is over",
    }


@torch.no_grad()
@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_independent_and_keep_the_plan(net: Net, copier: object) -> None:
    fast = apply_plan(net)
    other = copier(fast)  # type: ignore[operator]
    other.inner.weight.zero_()
    assert float(net.inner.weight.abs().sum()) > 0
    assert other.decision == fast.decision
    other(X)
    assert other.statistics.optimized == 1


def test_unwrap_gives_the_original_back(net: Net) -> None:
    assert unwrap(apply_plan(net)) is net
    assert unwrap(torch.tanh) is torch.tanh
    assert unwrap(torchwise.apply(torch.tanh, make_decision(torch.tanh, THREADS, X))) is torch.tanh
    assert unwrap(torchwise.apply(apply_plan(net), make_decision(net, EAGER, X))) is net


def test_a_function_keeps_its_name() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        """Twice."""
        return x * 2

    fast = torchwise.apply(double, make_decision(double, THREADS, X))
    assert isinstance(fast, OptimizedFunction)
    assert (fast.__name__, fast.__doc__) == ("double", "Twice.")  # type: ignore[attr-defined]
    assert torch.equal(fast(X), X * 2)
    assert fast.statistics.optimized == 1


def test_a_stale_decision_is_never_trusted(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    from dataclasses import replace

    decision = make_decision(net, THREADS, X)
    elsewhere = replace(decision, environment=replace(decision.environment, torch="1.0"))
    for stale, said in ((elsewhere, "torch: 1.0 there"), (replace(decision, structure="x"), "structure of weights")):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "torchwise"):
            fast = torchwise.apply(net, stale)
        assert said in caplog.text
        with torch.no_grad():
            assert torch.equal(fast(X), net(X))
        assert fast.statistics.optimized == 0
        with pytest.raises(StalePlanError, match="tune again"):
            torchwise.apply(net, stale, strict=True)


def test_a_model_in_another_mode_makes_the_decision_stale(net: Net) -> None:
    decision = make_decision(net, THREADS, X)
    with pytest.raises(StalePlanError):
        torchwise.apply(net.train(), decision, strict=True)


@torch.no_grad()
def test_dynamic_plans_take_every_size_of_the_same_rank(net: Net) -> None:
    dispatcher = apply_plan(net, Plan(backend="inductor", shapes="dynamic"))._dispatcher
    assert dispatcher._find_unverified((torch.randn(7, 4),), {}) is None
    assert dispatcher._find_unverified((torch.randn(7, 4, 1),), {}) is not None
    assert dispatcher._find_unverified((torch.randn(7, 4).double(),), {}) is not None


@torch.no_grad()
def test_a_hook_registered_later_is_not_passed_over(net: Net) -> None:
    fast = apply_plan(net)
    fast(X)
    seen = []
    net.register_forward_hook(lambda *_: seen.append("original"))
    fast(X)
    assert seen == ["original"]
    assert FallbackReason.HOOKS_CHANGED in fast.statistics.original


def test_a_captured_function_is_not_trusted_with_gradients_it_may_close_over() -> None:
    weight = torch.nn.Parameter(torch.ones(4))

    def call(x: torch.Tensor) -> torch.Tensor:
        return x * weight

    fast = torchwise.apply(call, make_decision(call, Plan(capture="call"), X))
    fast(X).sum().backward()
    assert weight.grad is not None
    assert FallbackReason.GRADIENTS_ENABLED in fast.statistics.original


@torch.no_grad()
def test_the_callers_own_errors_do_not_count_against_the_plan(net: Net) -> None:
    def picky(x: torch.Tensor) -> torch.Tensor:
        if float(x.sum()) == 0:
            raise ValueError("all zeros")
        return x

    fast = torchwise.apply(picky, make_decision(picky, THREADS, X))
    for _ in range(FAILURES + 1):
        with pytest.raises(ValueError, match="all zeros"):
            fast(torch.zeros_like(X))
    fast(X)
    assert fast.statistics.optimized == 1


def test_a_copy_of_a_stale_wrapper_is_stale(net: Net) -> None:
    from dataclasses import replace

    fast = torchwise.apply(net, replace(make_decision(net, THREADS, X), structure="another"))
    with torch.no_grad():
        copy.deepcopy(fast)(X)
        other = pickle.loads(pickle.dumps(fast))
        other(X)
    assert other.statistics.optimized == 0


@torch.no_grad()
def test_unproven_inputs_are_said_once_however_many_there_are(net: Net, caplog: pytest.LogCaptureFixture) -> None:
    fast = apply_plan(net)
    with caplog.at_level(logging.WARNING, "torchwise"):
        for rows in range(4, 30):
            fast(torch.randn(rows, 4))
    assert len(caplog.records) == 1
    assert list(fast.statistics.original.values()) == [26]


def plan_of(call: object, *examples: tuple[torch.Tensor, ...], **changes: object) -> object:
    """Apply a compiled plan as verified on each of the examples."""
    decision = make_decision(call, Plan(backend="inductor"), *examples[0])
    inputs = tuple(describe_example(Example(example)) for example in examples)
    return torchwise.apply(call, replace(decision, inputs=inputs, **changes), strict=True)  # type: ignore[arg-type]


def pair(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q * 2 + k


@pytest.mark.usefixtures("plainly_compiled")
def test_one_tensor_given_twice_is_not_two_tensors() -> None:
    x, y = torch.ones(3), torch.full((3,), 10.0)
    fast = plan_of(pair, (x, y))
    with torch.no_grad():
        for args in ((x, x), (x, y), (y, y), (x, y)):
            assert torch.equal(fast(*args), pair(*args))  # type: ignore[operator]


RECURSIVE: list[object] = []


def recursive(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] == 1 else RECURSIVE[0](x[:1]) + x.sum()  # type: ignore[operator]


@pytest.mark.usefixtures("plainly_compiled")
def test_a_model_that_calls_itself_optimised_is_answered() -> None:
    x = torch.ones(2)
    RECURSIVE[:] = [plan_of(recursive, (x,), (x[:1],))]
    answers = []

    def ask() -> None:
        with torch.no_grad():
            answers.extend(RECURSIVE[0](x) for _ in range(3))  # type: ignore[operator]

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(120)
    assert [answer.tolist() for answer in answers] == [[4.0]] * 3


def pops(given: dict[str, torch.Tensor]) -> torch.Tensor:
    extra = given.pop("extra", None)
    return given["x"] * 1.0 if extra is None else given["x"] + extra


@pytest.mark.usefixtures("plainly_compiled")
def test_a_call_that_changes_its_own_dict_is_answered_for_what_it_was_given() -> None:
    x = torch.ones(3)
    both = {"x": x, "extra": x}
    fast = plan_of(pops, ({"x": x},), (dict(both),))  # type: ignore[arg-type]
    with torch.no_grad():
        for _ in range(3):
            assert fast(dict(both)).tolist() == [2.0] * 3  # type: ignore[operator]
            assert fast({"x": x}).tolist() == [1.0] * 3  # type: ignore[operator]


@pytest.mark.usefixtures("plainly_compiled")
def test_hooks_registered_after_another_change_are_run(net: Net) -> None:
    fast = plan_of(net, (X,))
    with torch.no_grad():
        for change in (
            lambda: setattr(net.norm, "eps", 0.5),
            lambda: net.inner.register_forward_hook(lambda _m, _i, out: out + 100),
            lambda: torch.nn.modules.module.register_module_forward_hook(lambda _m, _i, out: out * 3),
        ):
            fast(X)  # type: ignore[operator]
            undo = change()
            assert torch.allclose(fast(X), net(X), atol=1e-4)  # type: ignore[operator]
        undo.remove()


def test_inputs_that_cannot_be_described_and_function_transforms_go_to_the_original() -> None:
    fast = plan_of(pair, (X, X.clone()))
    with torch.no_grad():
        answer = torch.vmap(lambda q: fast(q, X))(torch.stack([X, X]))  # type: ignore[operator]
        assert torch.equal(answer[0], pair(X, X))
        eye = torch.eye(3).to_sparse_csr()
        assert torch.equal((fast(eye, eye)).to_dense(), 3 * torch.eye(3))  # type: ignore[operator]
    assert fast.statistics.optimized == 0  # type: ignore[attr-defined]
    assert FallbackReason.PLAN_FAILED not in fast.statistics.original  # type: ignore[attr-defined]


@torch.no_grad()
@pytest.mark.parametrize("kind", [torch.nn.Module, None])
@pytest.mark.parametrize("borrow", [True, False])
def test_outputs_are_borrowed_only_on_request(
    net: Net, monkeypatch: pytest.MonkeyPatch, kind: type | None, borrow: bool
) -> None:
    asked: list[bool] = []
    real = served.compile_plan

    def realize(*args: Any, borrow: bool, **kwargs: Any) -> object:
        asked.append(borrow)
        return real(*args, **kwargs)

    monkeypatch.setattr("torchwise.runtime.served.compile_plan", realize)
    model = net if kind else torch.sin
    options = {"borrow": True} if borrow else {}
    fast = torchwise.apply(model, make_decision(model, THREADS, X), **options)
    for one in (fast, pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast)):
        one(X)
    assert asked == [borrow] * 3
