"""Real compilations, few and tiny: each costs five to twenty seconds on two cores."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sketches import a_history, an_inspection
from synthetic import TRAITS, a_space
from torch._inductor.codecache import PyCodeCache

from brief import BRIEF
from torchwise._torch.dynamo import count_compiled_graphs
from torchwise.compile import compile_plan
from torchwise.compile.backends.freezing import without_cached_weights
from torchwise.compile.backends.inductor import compile
from torchwise.compile.guards.fast_path import FastPath
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import FailureKind, Outcome, Trial, TrialState
from torchwise.trial import Job, Limits, ProcessLauncher, known_checks, try_plan
from torchwise.workload import Example

pytestmark = pytest.mark.slow

INDUCTOR = Plan(backend="inductor")
TARGETS = Path(__file__).parent.parent / "targets" / "compiled.py"


def try_target(target: str, plan: Plan, *traits: str) -> Trial:
    effort = replace(BRIEF, reproduce_noise=True, noise_s=0.5)
    job = Job("try", WorkloadSpec(target), traits=frozenset({"module", *traits}), effort=effort)
    return try_plan(ProcessLauncher(), job, Trial(0, plan, TrialState.RUNNING), Limits(250, 2**34), lambda stage: None)


@pytest.fixture(scope="module")
def fused() -> Trial:
    return try_target(f"{TARGETS}:fusible", INDUCTOR)


def test_a_compiled_plan_is_proven_and_its_costs_are_told_apart(fused: Trial) -> None:
    assert fused.is_verified, fused.reason
    assert fused.costs is not None
    assert fused.costs.cold_s > 1
    assert fused.costs.cache_bytes > 10_000


def test_the_warm_cost_is_measured_in_a_process_of_its_own(fused: Trial) -> None:
    assert fused.costs is not None
    assert fused.costs.warm_s is not None, fused.reason
    assert fused.costs.warm_s < fused.costs.cold_s


@pytest.mark.nightly
def test_checks_of_instruction_sets_are_made_once_and_count_for_every_trial(
    fused: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fused.is_verified, fused.reason
    assert known_checks._known, "an earlier trial of this process has compiled for the CPU"
    slow = {key: replace(check, cold_s=100.0, warm_s=50.0) for key, check in known_checks._known.items()}
    monkeypatch.setattr(known_checks, "_known", dict(slow))
    trial = try_target(f"{TARGETS}:fusible", INDUCTOR)
    assert trial.costs is not None
    assert trial.costs.warm_s is not None, trial.reason
    checks = round(trial.costs.cold_s // 100)
    assert checks >= 1
    assert trial.costs.warm_s // 50 == checks
    assert known_checks._known == slow, "nothing was checked again"


def test_a_compiler_that_changes_the_answer_is_caught() -> None:
    trial = try_target(f"{TARGETS}:miscompile", INDUCTOR)
    assert trial.verdict is not None
    assert trial.verdict.outcome is Outcome.FAIL
    assert "off by" in trial.reason


def test_a_model_that_is_not_compiled_at_all_is_not_taken_for_a_plan() -> None:
    trial = try_target(f"{TARGETS}:disable_compile", INDUCTOR)
    assert trial.failure is not None
    assert trial.failure.kind is FailureKind.UNSUPPORTED
    assert "nothing was compiled" in trial.reason
    history = a_history(trial, inspection=an_inspection(1.0, traits=TRAITS), calls=100_000_000)
    space = a_space("cpu", effort="thorough")
    known = [plan for plan, _ in space.neighbours(INDUCTOR) if plan.backend == "inductor"]
    assert len(known) > 4
    tried_anew = [plan for plan in known if history.find_refusal(plan) is None]
    assert tried_anew, "its blocks by themselves, or what another transform makes of it, may compile"
    assert all(plan.scope != "whole" or plan.transforms for plan in tried_anew)


def test_noise_is_proven_with_eagers_own_numbers_and_in_distribution() -> None:
    trial = try_target(f"{TARGETS}:dropped", INDUCTOR, "stochastic")
    assert trial.verdict is not None
    assert trial.verdict.outcome is Outcome.PASS, trial.reason
    checks = {check.name for check in trial.verdict.checks}
    assert {"distribution", "independence"} <= checks
    # Up to torch 2.11 compiled dropout draws other numbers than eager's on the CPU even where it is told to draw the
    # same, which is noticed and said.
    assert checks & {"values", "reproduced noise"}
    if torch.__version__ >= "2.13":
        assert "values" in checks


@torch.no_grad()
def test_what_was_compiled_for_one_plan_answers_no_other() -> None:
    """Dynamo tells compiled code apart by backend and module, and not by the values of frozen weights."""
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval(), torch.randn(4, 8)
    frozen, dynamic = INDUCTOR.with_choice("options", ("freezing", True)), INDUCTOR.with_choice("shapes", "dynamic")
    for plan, compiles in ((frozen, 1), (frozen, 1), (INDUCTOR, 1), (dynamic, 1), (frozen, 1), (INDUCTOR, 0)):
        model[0].weight.mul_(-2)
        before = count_compiled_graphs()
        answer = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference").call(x)
        torch.testing.assert_close(answer, model(x))
        assert count_compiled_graphs() - before == compiles, plan


@torch.no_grad()
def test_freezing_really_freezes_and_knows_when_it_is_stale() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    x = torch.randn(4, 8)
    plan = INDUCTOR.with_choice("options", ("freezing", True))
    call = compile_plan(module, plan, Example((x,)), device="cpu", mode="inference").call
    expected = module(x)
    assert torch.allclose(call(x), expected, atol=1e-5)
    module[0].weight.data.mul_(2.0)  # a write that PyTorch's own version counter does not see
    assert torch.allclose(call(x), expected, atol=1e-5), "the weights are constants of the compiled code"
    module[0].weight.mul_(2.0)
    with pytest.raises(StalePlanError, match="weights changed"):
        call(x)


def copies_in_code() -> int:
    """Count the weights that Inductor's modules hold."""
    for _ in range(2):  # modules are let go of when their callers are collected
        gc.collect()
    spaces = [held for held in gc.get_objects() if type(held) is dict and "extern_kernels" in held]
    return sum(name.startswith("_frozen_param") for space in spaces for name in space)


@torch.no_grad()
def test_copies_of_frozen_weights_go_with_their_plan_and_the_model_may_go_before() -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval(), torch.randn(4, 8)
    plan, before = INDUCTOR.with_choice("options", ("freezing", True)), copies_in_code()
    for _ in range(2):
        realized = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference")
        expected = realized.call(x)
        assert copies_in_code() > before
        lean = realized.bypass((x,), {})
        assert torch.equal(lean(x), expected)
        realized.close()
        del realized
        assert torch.equal(lean(x), expected), "another thread may be inside"
        del lean
        assert copies_in_code() == before
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_a_compilation_that_fails_leaves_no_weights_and_touches_no_other_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine, others = types.ModuleType("compiled_alike"), types.ModuleType("compiled_alike")
    mine.__dict__["weight"] = others.__dict__["weight"] = torch.ones(2)
    monkeypatch.setitem(sys.modules, "compiled_alike", others)
    modules = list(PyCodeCache.modules)

    def fails(graph: Any, inputs: Any) -> Any:
        PyCodeCache.modules.append(mine)
        raise torch.OutOfMemoryError("no memory")

    graph = torch.fx.symbolic_trace(torch.nn.Linear(2, 2))
    with pytest.raises(torch.OutOfMemoryError):
        without_cached_weights(fails)(graph, [])
    assert PyCodeCache.modules == modules
    assert sys.modules["compiled_alike"] is others


@torch.no_grad()
def test_many_kinds_of_call_keep_no_more_memory_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchwise.compile.backends.graphs.MAX_BYPASSES", 2)
    model = torch.nn.Linear(8, 8).eval()
    plan = INDUCTOR.with_choice("shapes", "dynamic")
    call = compile_plan(model, plan, Example((torch.randn(2, 8),)), device="cpu", mode="inference").call
    kept = []
    for rows in range(2, 9):
        for _ in range(2):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(call(x), model(x))
        fast_paths = [found for found in gc.get_objects() if type(found) is FastPath]
        kept.append(sum(getattr(found.call_unguarded, "__self__", None) is model for found in fast_paths))
    assert kept[0] < kept[1] == kept[-1]


ELSEWHERE = torch.nn.Linear(4, 4).eval()


class Beside(torch.nn.Module):
    """Takes a weight from a place that a watch covers ("buffer", "attribute"), or from another."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.own = where, torch.nn.Linear(4, 4)
        self.register_buffer("registered", torch.ones(4, 4))
        self.plain, self.listed = torch.ones(4, 4), [torch.nn.Parameter(torch.ones(4, 4))]
        self.__dict__["hidden"] = torch.nn.Linear(4, 4)

    def weight(self) -> torch.Tensor:
        match self.where:
            case "buffer":
                return self.registered
            case "attribute":
                return self.plain
            case "list":
                return self.listed[0]
            case "hidden module":
                return self.hidden.weight
        return ELSEWHERE.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.own(x) @ self.weight()


@torch.no_grad()
@pytest.mark.parametrize(
    ("where", "precision"),
    [
        *((where, "native") for where in ("buffer", "attribute", "list", "hidden module")),
        ("attribute", "bf16"),
        # Refused as a hidden module is, at the same place.
        pytest.param("global module", "native", marks=pytest.mark.nightly),
        pytest.param("hidden module", "bf16", marks=pytest.mark.nightly),
    ],
)
def test_a_weight_that_nobody_watches_is_not_frozen(where: str, precision: str) -> None:
    model, x = Beside(where).eval(), torch.randn(2, 4)
    plan = replace(INDUCTOR.with_choice("options", ("freezing", True)), precision=precision)
    call = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference").call
    if where not in ("buffer", "attribute"):
        for _ in range(2):  # Dynamo has the code by then
            with pytest.raises(UnsupportedError, match=r"freezing would fold in .*, which is no parameter, buffer or"):
                call(x)
        return
    torch.testing.assert_close(call(x), model(x), rtol=0.1, atol=0.1)
    model.weight().mul_(3)
    with pytest.raises(StalePlanError):
        call(x)


@torch.no_grad()
def test_outputs_that_inductor_lays_out_otherwise_lie_as_in_eager() -> None:
    def begin(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Begin a KV cache as Transformers does: an empty tensor, to which the first keys are joined."""
        keys = x.reshape(len(x), 8, 4, 16).transpose(1, 2)
        return x * 2, torch.cat([x.new_empty(0), keys + 1], dim=-2)

    plan = INDUCTOR.with_choice("transforms", "eager_strides")
    small, large = torch.randn(1, 8, 64), torch.randn(2, 8, 64).transpose(0, 1).contiguous().transpose(0, 1)
    realized = compile_plan(begin, plan, Example((small,)), device="cpu", mode="inference")
    before = count_compiled_graphs()
    for x in (small, large):  # whichever comes first, each is laid out as eager lays it out
        answer, expected = realized.call(x), begin(x)
        assert [t.stride() for t in answer] == [t.stride() for t in expected]
        assert all(map(torch.allclose, answer, expected))
    assert count_compiled_graphs() - before == 2


@torch.no_grad()
def test_regional_compiles_equal_blocks_once() -> None:
    torch.manual_seed(0)
    blocks = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(4)]
    module = torch.nn.Sequential(*blocks).eval()
    x = torch.randn(4, 8)
    before = count_compiled_graphs()
    call = compile_plan(module, replace(INDUCTOR, scope="regional"), Example((x,)), device="cpu", mode="inference").call
    assert torch.allclose(call(x), module(x), atol=1e-5)
    assert count_compiled_graphs() - before == 1
    module[1][0].weight.mul_(3.0)
    assert torch.allclose(call(x), module(x), atol=1e-5), "weights are shared with the original"


@torch.no_grad()
def test_dynamic_compiles_once_for_all_sizes_and_static_for_each() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).tanh()

    for shapes, graphs in (("dynamic", 1), ("static", 2)):
        torch.compiler.reset()
        fast = compile_plan(
            call, replace(INDUCTOR, shapes=shapes), Example((torch.randn(4),)), device="cpu", mode="inference"
        )
        before = count_compiled_graphs()
        for size in (40, 50):
            x = torch.randn(size)
            assert torch.allclose(fast.call(x), call(x), atol=1e-6)
        assert count_compiled_graphs() - before == graphs, shapes


def test_an_option_that_this_torch_lacks_is_refused() -> None:
    plan = INDUCTOR.with_choice("options", ("max_autotun", True))
    said = r"option 'max_autotun' does not exist in torch \S+; did you mean max_autotune"
    with pytest.raises(UnsupportedError, match=said):
        compile_plan(torch.tanh, plan, Example((torch.ones(1),)), device="cpu", mode="inference")


@pytest.mark.usefixtures("plainly_compiled")
@torch.no_grad()
def test_more_signatures_than_dynamo_allows_are_all_compiled() -> None:
    """After eight, Dynamo would leave the ninth to eager without a word, and it would count as the plan's."""
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    compiled = compile(function, Plan(backend="inductor"))
    before = count_compiled_graphs()
    for length in range(2, 12):
        x = torch.randn(length)
        torch.testing.assert_close(compiled(x), function(x))
    assert count_compiled_graphs() - before == 10
