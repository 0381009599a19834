"""Code between a user's call and `forward`: it runs under a plan, too, and a change to it is noticed."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from live_decisions import make_decision
from torchwise.plan import Plan
from torchwise.runtime import Dispatcher
from torchwise.runtime.bucketing.padding import Padding, carriers_of
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.module import OptimizedFunction, OptimizedModule
from torchwise.runtime.step import OptimizedStep
from torchwise.runtime.training.forward import PlannedForward, _make_shared_copy
from torchwise.workload import Example
from torchwise.workload.identity import describe_example
from torchwise.workload.train_step import TrainStep

pytestmark = pytest.mark.usefixtures("dynamo_afresh")

X = torch.rand(4, 8)
COMPILED, THREADS = Plan(backend="inductor"), Plan(threads=1)


class Inner(nn.Module):
    scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Inner(), nn.Linear(8, 8)

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.helper(self.head(self.inner(x)))


class OwnCall(Plain):
    def __call__(self, x: torch.Tensor) -> Any:
        return super().__call__(x.clamp(max=1))


class Inherited(OwnCall):
    pass


class NamesItsBase(Plain):
    def __call__(self, x: torch.Tensor) -> Any:
        return nn.Module.__call__(self, x.clamp(max=1))


class OwnCallImpl(Plain):
    def _call_impl(self, x: torch.Tensor) -> Any:
        return super()._call_impl(x.clamp(max=1))


def clamp_inputs(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def call_clamped(self: Any, x: torch.Tensor) -> Any:
        return call(self, x.clamp(max=1))

    return call_clamped


class Decorated(Plain):
    __call__ = clamp_inputs(nn.Module.__call__)


class ByObject(Plain):
    class Call:
        def __get__(self, module: Any, _: type) -> Any:
            return lambda x: nn.Module.__call__(module, x.clamp(max=1))

    __call__ = Call()


class ByProperty(Plain):
    is_clamping = False

    @property
    def forward(self) -> Any:  # type: ignore[override]
        return self.call_clamped if self.is_clamping else self.plain

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return self.helper(self.inner(x))

    def call_clamped(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(x.clamp(max=1))


class LooksUpOtherwise(ByProperty):
    def __getattribute__(self, name: str) -> Any:
        if name == "forward":
            return self.call_clamped if self.is_clamping else self.plain
        return super().__getattribute__(name)


def model_with_call_impl() -> nn.Module:
    model = Plain()
    model._call_impl = lambda x: nn.Module._call_impl(model, x.clamp(max=1))  # type: ignore[method-assign]
    return model


def model_with_call() -> nn.Module:
    model = Plain()
    model.__call__ = lambda x: x * 0  # type: ignore[method-assign]  # which Python never calls
    return model


def make_clamping_model(kind: type[ByProperty]) -> nn.Module:
    model = kind()
    model.is_clamping = True
    return model


MADE: dict[str, Callable[[], nn.Module]] = {
    "__call__": OwnCall,
    "__call__ of a base": Inherited,
    "__call__ without super": NamesItsBase,
    "_call_impl": OwnCallImpl,
    "a decorator": Decorated,
    "a descriptor": ByObject,
    "a property": lambda: make_clamping_model(ByProperty),
    "__getattribute__": lambda: make_clamping_model(LooksUpOtherwise),
    "_call_impl of the instance": model_with_call_impl,
    "__call__ of the instance": model_with_call,
}


def compile_with_eager(call: Callable[..., Any], _plan: Plan) -> Callable[..., Any]:
    """Stand in for a compiler: only Dynamo's tracing can go wrong here."""
    compiled: Callable[..., Any] = torch.compile(call, backend="eager")
    return compiled


def serve(call: Any, plan: Plan, *args: torch.Tensor) -> Any:
    decision = make_decision(call, plan, *args)
    fast: Any = (OptimizedModule if isinstance(call, nn.Module) else OptimizedFunction)(call, decision)
    vars(fast)["_torchwise"] = Dispatcher(call, decision, backend=compile_with_eager)
    with torch.no_grad():
        for _ in range(2):
            fast(*args)
    assert fast.statistics.optimized == 2, dict(fast.statistics.original)
    return fast


def agrees(fast: Any, call: Any, x: torch.Tensor = X) -> bool:
    with torch.no_grad():
        return torch.allclose(fast(x), call(x))


@pytest.mark.parametrize("plan", [COMPILED, THREADS], ids=str)
@pytest.mark.parametrize("kind", MADE)
def test_what_is_between_a_call_and_forward_runs_under_a_plan(kind: str, plan: Plan) -> None:
    model = MADE[kind]().eval()
    fast = serve(model, plan, X)
    assert agrees(fast, model)
    assert agrees(fast, model, X * 255)
    assert fast.statistics.optimized == 4


@pytest.mark.parametrize("kind", [ByProperty, LooksUpOtherwise])
def test_a_forward_that_is_looked_up_anew_each_time_is_so_under_a_plan(kind: type[ByProperty]) -> None:
    fast = serve(model := kind().eval(), THREADS, X * 255)
    model.is_clamping = True
    assert agrees(fast, model, X * 255)
    assert fast.statistics.optimized == 3


class Counting(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __call__(self, x: torch.Tensor) -> Any:
        self.calls += 1
        return super().__call__(x)


def test_a_count_in_a_call_goes_on_as_without_a_plan() -> None:
    fast = serve(model := Counting().eval(), COMPILED, X)
    with torch.no_grad():
        fast(X)
    assert model.calls == 3


def test_what_is_called_itself_is_forward_alone() -> None:
    fast = serve(model := OwnCall().eval(), COMPILED, X)
    with torch.no_grad():
        assert torch.allclose(fast.forward(X * 255), model.forward(X * 255))
        assert not torch.allclose(fast.forward(X * 255), model(X * 255))
    assert dict(fast.statistics.original) == {FallbackReason.FORWARD_CALLED: 2}
    plain = serve(other := Plain().eval(), COMPILED, X)
    with torch.no_grad():
        assert torch.allclose(plain.forward(X), other(X))
    assert plain.statistics.optimized == 3


@pytest.mark.parametrize("kind", [OwnCall, OwnCallImpl])
def test_hooks_of_the_wrapper_are_around_all_of_it(kind: type[nn.Module]) -> None:
    fast = serve(model := kind().eval(), COMPILED, X)
    fast.register_forward_hook(lambda _module, _inputs, output: output * 2)
    with torch.no_grad():
        assert torch.allclose(fast(X * 255), model(X * 255) * 2)
    assert fast.statistics.optimized == 3


def test_a_model_that_pytorch_compiles_itself_answers_itself_from_then_on() -> None:
    fast = serve(model := Plain().eval(), COMPILED, X)
    fast.compile(backend="eager")
    assert agrees(fast, model)
    assert fast.statistics.optimized == 2
    assert agrees(serve(model, COMPILED, X), model)


def return_sevens(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 0 + 7


PATCHES: dict[str, tuple[type, str, Any]] = {
    "forward": (Plain, "forward", return_sevens),
    "__call__": (Plain, "__call__", return_sevens),
    "__call__ as an object": (Plain, "__call__", functools.partialmethod(return_sevens)),
    "_call_impl": (Plain, "_call_impl", return_sevens),
    "forward of a base": (nn.Module, "__call__", return_sevens),
    "a method": (Plain, "helper", return_sevens),
    "a submodule's forward": (Inner, "forward", return_sevens),
    "a submodule's __call__": (Inner, "__call__", return_sevens),
    "PyTorch's own": (nn.Linear, "forward", return_sevens),
    "a property": (Inner, "scale", property(lambda _: 5.0)),
}


@pytest.mark.parametrize("plan", [COMPILED, THREADS, Plan(precision="autocast_bf16", backend="inductor")], ids=str)
@pytest.mark.parametrize("patch", PATCHES)
def test_a_class_that_was_patched_answers_itself_until_the_patch_is_gone(
    patch: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = serve(model := Plain().eval(), plan, X)
    with monkeypatch.context() as patching:
        patching.setattr(*PATCHES[patch])
        assert agrees(fast, model)
        assert fast.statistics.optimized == 2
        assert list(fast.statistics.original) == [FallbackReason.CODE_REPLACED]
    with torch.no_grad():
        fast(X)
    assert fast.statistics.optimized == 3


def test_plain_data_that_a_class_keeps_is_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = serve(model := Plain().eval(), COMPILED, X)
    monkeypatch.setattr(Inner, "scale", 3.0)
    monkeypatch.setattr(Plain, "calls", 1, raising=False)
    assert agrees(fast, model)
    assert fast.statistics.optimized == 3


class Callee:
    def __init__(self) -> None:
        self.model, self.then = Plain().eval(), torch.tanh

    def __call__(self, x: torch.Tensor) -> Any:
        return self.then(self.model(x))

    def method(self, x: torch.Tensor) -> Any:
        return self(x)


def scale_input(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x * scale


def make_closure(model: nn.Module) -> Callable[..., Any]:
    return lambda x: model(x) + 1


def patch_call(callee: Callee, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Callee, "__call__", return_sevens)


def patch_model(_: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Inner, "forward", return_sevens)


OTHERS: dict[str, tuple[Callable[[], Any], Callable[[Any, pytest.MonkeyPatch], None]]] = {
    "an object's __call__": (Callee, patch_call),
    "what an object calls": (Callee, lambda callee, _: vars(callee).update(then=torch.relu)),
    "a model in an object": (Callee, patch_model),
    "a method": (lambda: Callee().method, patch_call),
    "a model that is closed over": (lambda: make_closure(Plain().eval()), patch_model),
    "a model in a partial": (lambda: functools.partial(Plain().eval()), patch_model),
    "a partial": (lambda: functools.partial(scale_input, scale=2.0), lambda call, _: call.keywords.update(scale=3.0)),
    "a function": (
        lambda: types.FunctionType(scale_input.__code__, globals(), "f", (2.0,)),
        lambda call, _: setattr(call, "__code__", (lambda x, scale: x - scale).__code__),
    ),
}


@pytest.mark.parametrize("plan", [COMPILED, THREADS], ids=str)
@pytest.mark.parametrize("kind", OTHERS)
def test_code_behind_what_is_no_module_is_noticed_as_well(
    kind: str, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, change = OTHERS[kind]
    fast = serve(call := make(), plan, X)
    with torch.no_grad():
        before = call(X)
    change(call, monkeypatch)
    assert agrees(fast, call)
    assert not torch.allclose(fast(X), before)
    assert fast.statistics.optimized == 2


@pytest.fixture
def trained() -> TrainStep:
    torch.manual_seed(0)
    model = OwnCall()
    return TrainStep(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_step_is_taken_as_written_once_its_loss_was_patched(
    trained: TrainStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    decision = make_decision(trained, THREADS, X, X)
    step = OptimizedStep(trained, replace(decision, workload=replace(decision.workload, mode="training")))
    with torch.enable_grad():
        for _ in range(3):
            step(X, X)
    monkeypatch.setattr(nn.MSELoss, "forward", lambda _self, x, _target: x.sum() * 0 + 7)
    with torch.enable_grad():
        assert step(X, X) == 7
    assert step.statistics.optimized == 3


def test_a_loop_s_own_call_is_not_made_twice() -> None:
    class Listing(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[int] = []

        def __call__(self, x: torch.Tensor) -> Any:
            self.seen.append(len(x))
            return super().__call__(x)

    model = Listing().train()
    decision = make_decision(_make_shared_copy(model, model.forward, None, "cpu"), THREADS)
    decision = replace(
        decision, inputs=(describe_example(Example((X,))),), workload=replace(decision.workload, mode="training")
    )
    planned = PlannedForward(model, decision)
    for _ in range(4):
        planned.between_steps()
        with torch.enable_grad():
            model(X).sum().backward()
    assert planned.statistics.optimized == 3
    assert len(model.seen) == 4
    planned.close()


def test_a_rule_for_padding_goes_by_what_the_user_calls() -> None:
    class Turned(Plain):
        def __call__(self, more: Any, x: torch.Tensor) -> Any:
            return super().__call__(x)

    class HandsOn(Plain):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    for model, position in ((Turned(), 1), (HandsOn(), 0), (Plain(), 0)):
        [carrier] = carriers_of(model, Padding({"x": 0}, {}))
        assert carrier.position == position
