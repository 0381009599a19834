"""Changes after `apply` that a plan must see, and refusals that copies keep."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import torchwise
from live_decisions import make_decision
from torchwise.errors import InputError, PlanError
from torchwise.plan import Plan
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.module import OptimizedModule

X = torch.randn(4, 8)
PLAN = Plan(threads=1)
SCALE = 1.0


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.table = torch.ones(8)
        self.tables = [torch.ones(8)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x)) * self.table * self.tables[0]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * SCALE


def serve(
    model: nn.Module, plan: Plan = PLAN, refusal: Fallback | None = None, mode: str = "inference"
) -> OptimizedModule:
    decision = make_decision(model, plan, X)
    decision = replace(decision, workload=replace(decision.workload, mode=mode))
    fast = OptimizedModule(model, decision, refusal)
    if mode == "inference":
        with torch.no_grad():
            for _ in range(3):
                fast(X)
    return fast


def agree(fast: Any, model: nn.Module) -> bool:
    with torch.no_grad():
        ours, right = fast(X), model(X)
    return bool((ours - right).norm() <= 0.02 * right.norm())


@pytest.mark.parametrize("again", [copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))], ids=["copy", "pickle"])
def test_a_refused_plan_is_refused_in_a_copy(again: Any) -> None:
    fast = again(serve(Model(), refusal=Fallback(FallbackReason.PLAN_REFUSED, "Ada rejected it")))
    with torch.no_grad():
        fast(X)
    assert (fast.statistics.optimized, dict(fast.statistics.original)) == (0, {FallbackReason.PLAN_REFUSED: 1})
    assert fast.statistics.sentences[FallbackReason.PLAN_REFUSED] == "Ada rejected it"


def test_a_plan_that_was_given_up_is_so_in_a_copy() -> None:
    fast = serve(Model())
    fast._dispatcher.close(Fallback(FallbackReason.CANARY_MISMATCH, "output is off"))
    again = copy.deepcopy(fast)
    with torch.no_grad():
        again(X)
    assert again.statistics.optimized == 0


@pytest.mark.parametrize("change", ["written", "replaced", "in a list"])
def test_a_copy_of_the_weights_follows_plain_tensors(change: str) -> None:
    fast = serve(model := Model().eval(), Plan(precision="bf16"))
    if change == "written":
        model.table.mul_(3)
    elif change == "replaced":
        model.table = torch.full((8,), 3.0)
    else:
        model.tables[0].mul_(3)
    assert agree(fast, model)


@pytest.mark.parametrize("plan", [Plan(precision="bf16"), Plan(backend="inductor", options=(("freezing", True),))])
def test_copied_weights_of_inference_mode_are_never_stale(plan: Plan) -> None:
    with torch.inference_mode():
        fast = serve(model := Model().eval(), plan)
        model.load_state_dict({name: 7 * value for name, value in model.state_dict().items()})
        assert agree(fast, model)


def test_weights_written_while_they_are_copied_are_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchwise.compile import shared_copies

    fast = serve(model := Model().eval(), Plan(precision="bf16"))
    real, written = shared_copies.DerivedWeights._list_buffers, list[bool]()

    def meanwhile(derived: shared_copies.DerivedWeights) -> None:  # as another thread that loads a checkpoint
        if not written:
            written.append(True)
            model.inner.weight.mul_(5)
        real(derived)

    with torch.no_grad():
        model.inner.bias.mul_(3)
        monkeypatch.setattr(shared_copies.DerivedWeights, "_list_buffers", meanwhile)
        fast(X)
    assert written
    assert agree(fast, model)


def test_a_forward_or_class_that_was_replaced_is_the_one_that_answers() -> None:
    fast = serve(model := Model().eval(), Plan(backend="inductor"))
    model.forward = lambda x: x * 0 + 1  # type: ignore[method-assign]
    assert agree(fast, model)


@pytest.mark.parametrize("plan", [PLAN, Plan(precision="bf16"), Plan(memory_format="channels_last")])
def test_a_hook_in_the_place_of_another_runs(plan: Plan) -> None:
    model = Model().eval()
    handle = model.register_forward_hook(lambda _module, _inputs, output: output * 2)
    fast = serve(model, plan)
    assert fast.statistics.optimized == 3
    handle.remove()
    model.register_forward_hook(lambda _module, _inputs, output: output * 3)
    assert agree(fast, model)
    assert dict(fast.statistics.original) == {FallbackReason.HOOKS_CHANGED: 1}


def test_a_scripted_module_is_called_and_its_mode_is_looked_at() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).eval())
    fast = serve(model)
    assert fast.statistics.optimized == 3
    model.train()
    with torch.no_grad():
        fast(X)
    assert fast.statistics.optimized == 3


@pytest.mark.parametrize("plan", [Plan(memory_format="channels_last"), Plan(precision="bf16")])
def test_a_class_that_was_swapped_inside_of_the_model_is_the_one_that_answers(plan: Plan) -> None:
    fast = serve(model := Model().eval(), plan)
    model.inner.__class__ = _Negated
    assert agree(fast, model)


class _Negated(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return -super().forward(x)


def test_hooks_for_all_modules_run_though_they_were_there_before() -> None:
    hook = nn.modules.module.register_module_forward_hook(lambda _module, _inputs, output: output * 2)
    try:
        assert agree(serve(model := Model().eval(), Plan(backend="inductor")), model)
    finally:
        hook.remove()


@pytest.mark.parametrize("before", [True, False])
def test_backward_hooks_of_the_model_run_in_training(before: bool) -> None:
    model, ran = Model().train(), []
    if before:
        model.register_full_backward_hook(lambda *_: ran.append(True))
    fast = serve(model, Plan(backend="inductor"), mode="training")
    fast(X.clone().requires_grad_()).sum().backward()
    ran.clear()
    if not before:
        model.register_full_backward_hook(lambda *_: ran.append(True))
    fast(X.clone().requires_grad_()).sum().backward()
    assert ran


def test_a_hook_runs_though_a_global_number_changed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = serve(model := Scaled().eval(), Plan(backend="inductor"))
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert agree(fast, model)
    model.inner.register_forward_hook(lambda _module, _inputs, output: output * 7)
    assert agree(fast, model)


def test_a_mode_that_counts_operators_sees_those_of_the_model() -> None:
    fast = serve(Model().eval(), Plan(backend="inductor"))
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        fast(X)
    assert counter.get_total_flops() == 2 * 4 * 8 * 8
    assert dict(fast.statistics.original) == {FallbackReason.DISPATCH_MODE_ACTIVE: 1}


def test_the_wrappers_mode_is_the_originals_whichever_is_set() -> None:
    fast = serve(model := Model().eval())
    fast.training = True
    assert model.training
    assert fast.training
    model.eval()
    assert not fast.training
    assert nn.Sequential(fast).train()[0].training
    assert model.training


@pytest.mark.parametrize("given", [None, "decision.json"])
def test_what_is_no_decision_is_refused_with_the_way_out(given: Any) -> None:
    with pytest.raises(InputError, match=r"but must be a Decision or a Study: Decision\.from_json reads"):
        torchwise.apply(Model(), given)


def test_what_is_no_plan_is_refused_with_the_way_out() -> None:
    with pytest.raises(PlanError, match="plan is 'inductor', but must be a Plan, such as"):
        torchwise.tune(Model(), (X,), plans=["inductor"])  # type: ignore[list-item]


class Moves(nn.Linear):
    """Has a tensor that PyTorch does not know of, moves it along, and counts it among its parameters."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.table = [torch.ones(8)]

    def _apply(self, fn: Any, recurse: bool = True) -> Moves:
        self.table = [fn(table) for table in self.table]
        return super()._apply(fn, recurse)

    def parameters(self, recurse: bool = True) -> Any:
        yield from super().parameters(recurse)
        yield from self.table


def test_what_the_models_class_overrides_is_used_through_the_wrapper() -> None:
    fast = serve(model := Moves())
    assert fast.double() is fast
    assert model.table[0].dtype is torch.float64
    assert len(list(fast.parameters())) == 3
    assert len(list(copy.deepcopy(fast).parameters())) == 3
    assert isinstance(pickle.loads(pickle.dumps(fast)), Moves)


def test_a_list_of_modules_stays_one() -> None:
    fast = serve(model := nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    assert (len(fast), fast[1], list(fast)) == (2, model[1], list(model))
    fast[1] = nn.Tanh()
    assert isinstance(model[1], nn.Tanh)
    assert agree(fast, model)
    assert serve(Model()), "what has no length is true"
    with pytest.raises(TypeError):
        len(serve(Model()))


def test_hooks_of_checkpoints_may_be_registered_on_either() -> None:
    fast = serve(model := Model())
    fast.register_state_dict_post_hook(lambda _module, state, _prefix, _metadata: state.update(extra=torch.ones(1)))
    assert "extra" in fast.state_dict()
    assert "extra" in model.state_dict()
    assert "inner.extra" not in nn.Sequential(fast).state_dict()
    seen: list[str] = []
    fast.register_load_state_dict_post_hook(lambda _module, _keys: seen.append("loaded"))
    fast.load_state_dict(Model().state_dict())
    assert seen == ["loaded"]
