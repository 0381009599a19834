"""Code compiled in one process and called in another: right, live to the weights, and refused if it cannot be."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.compile import compile_plan
from torchwise.compile.aot import Code, Loader, Maker, check_possible
from torchwise.compile.guards.global_constants import Constant
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.workload import Example

HERE = Path(__file__).parents[1] / "targets"
INDUCTOR = Plan(backend="inductor")
COMPLEX = Plan(backend="inductor", transforms=("complex_to_real",))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Code]]:
    """Return everything that one other process compiled, by the name of the case."""
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(HERE))
        import ahead_models

        found: dict[str, list[Code]] = ahead_models.compile_in_subprocess(tmp_path_factory.mktemp("ahead"), "cpu")
    return found


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(HERE))
    import ahead_models

    return ahead_models


def load_compiled(models: Any, made: dict[str, list[Code]], name: str) -> tuple[Any, Any, list[Example]]:
    call, inputs = models.build(name)
    plan = models.CASES[name]
    realized = compile_plan(call, plan, inputs[0], device="cpu", mode="inference", backend=Loader(made[name]))
    return call, realized, inputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("module", "function", "complex", "reduced", "shapes", "patches", "points", "library", "laid out"),
        *("rows", "rows apart", "complex rows"),
    ],
)
def test_it_answers_as_the_original_without_compiling(models: Any, made: dict[str, list[Code]], name: str) -> None:
    from torch._dynamo.utils import counters

    call, realized, inputs = load_compiled(models, made, name)
    before = counters["stats"]["unique_graphs"]
    tolerance = 3e-2 if name == "reduced" else 1e-4
    options: dict[str, Any] = {"atol": tolerance, "rtol": tolerance, "check_stride": True}
    with torch.no_grad():
        for example in inputs:
            right = call(*example.args)
            torch.testing.assert_close(realized.call(*example.args), right, **options)
            lean = realized.bypass(example.args, {})
            torch.testing.assert_close(lean(*example.args), right, **options)
    assert counters["stats"]["unique_graphs"] == before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["module", "rows"])
def test_it_reads_the_weights_that_are_there(models: Any, made: dict[str, list[Code]], name: str) -> None:
    call, realized, inputs = load_compiled(models, made, name)
    with torch.no_grad():
        realized.call(*inputs[0].args)
        call.layer.weight.mul_(3)
        torch.testing.assert_close(realized.call(*inputs[0].args), call(*inputs[0].args))
        call.layer.weight = torch.nn.Parameter(torch.ones_like(call.layer.weight))
        torch.testing.assert_close(realized.call(*inputs[0].args), call(*inputs[0].args))


@pytest.mark.slow
def test_what_changed_in_the_module_is_noticed(models: Any, made: dict[str, list[Code]]) -> None:
    call, realized, inputs = load_compiled(models, made, "module")
    with torch.no_grad():
        realized.call(*inputs[0].args)
        call.scale = 5.0
        with pytest.raises(RuntimeError, match="scale"):
            realized.call(*inputs[0].args)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before the first call", "after it"])
@pytest.mark.parametrize("can_skip_guards", [True, False])
def test_a_hook_that_was_registered_since_is_noticed(
    models: Any, made: dict[str, list[Code]], when: str, can_skip_guards: bool
) -> None:
    made = {"module": [replace(code, can_skip_guards=can_skip_guards) for code in made["module"]]}
    call, realized, inputs = load_compiled(models, made, "module")
    with torch.no_grad():
        if when == "after it":
            realized.call(*inputs[0].args)
        call.layer.register_forward_hook(lambda _module, _args, output: output * 3)
        with pytest.raises(UnsupportedError, match="a hook was registered or removed"):
            realized.call(*inputs[0].args)


@pytest.mark.slow
def test_a_global_number_that_changed_is_noticed(
    models: Any, made: dict[str, list[Code]], monkeypatch: pytest.MonkeyPatch
) -> None:
    call, realized, inputs = load_compiled(models, made, "function")
    with torch.no_grad():
        realized.call(*inputs[0].args)
        monkeypatch.setattr(models, "SHIFT", 4.0)
        with pytest.raises(UnsupportedError, match=r"SHIFT is no longer 0\.25"):
            realized.call(*inputs[0].args)
    assert call is models.function


@pytest.mark.slow
def test_a_call_that_nothing_was_compiled_for_raises(models: Any, made: dict[str, list[Code]]) -> None:
    _, realized, _ = load_compiled(models, made, "shapes")
    with torch.no_grad(), pytest.raises(UnsupportedError, match="no code was compiled ahead"):
        realized.call(torch.randn(11, 8))


@pytest.mark.slow
def test_gradients_that_nobody_asks_for_change_nothing(models: Any, made: dict[str, list[Code]]) -> None:
    _, realized, inputs = load_compiled(models, made, "function")
    with torch.no_grad():
        right = realized.call(*inputs[0].args)
    torch.testing.assert_close(realized.call(*inputs[0].args), right)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Plan(backend="inductor", scope="regional"), "compiles parts"),
        (Plan(backend="inductor", scope="rolled"), "compiles parts"),
        (Plan(backend="inductor", transforms=("isolate_rnn",)), "breaks the graph"),
        (Plan(backend="inductor", mode="reduce-overhead"), "CUDA graphs"),
        (Plan(backend="inductor", options=(("freezing", True),)), "frozen"),
    ],
)
def test_plans_that_cannot_be_carried_over_are_refused(plan: Plan, why: str) -> None:
    with pytest.raises(UnsupportedError, match=why):
        check_possible(plan)


def test_a_model_that_depends_on_what_is_not_noticed_is_refused(models: Any) -> None:
    """A list in a global variable is guarded by Dynamo in place, and cannot be written down."""
    maker = Maker()
    given = Example((torch.randn(4),), {})
    realized = compile_plan(models.reads_a_list, INDUCTOR, given, device="cpu", mode="inference", backend=maker)
    with torch.no_grad(), pytest.raises(UnsupportedError, match=r"depends on .*FACTORS"):
        realized.call(*given.args)
    assert not maker.made


def test_a_module_with_hooks_is_refused() -> None:
    module = torch.nn.Linear(2, 2)
    module.register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedError, match="hooks"):
        Maker()(module, INDUCTOR)


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("G['SCALE']", 0.5, Constant("", "SCALE", 0.5)),
        ("G['__import_pack_dot_part'].NAME", "x", Constant("pack.part", "NAME", "x")),
        ("G['FACTORS']", [1], None),
        ("G['FACTORS'][0]", 1, None),
        ("self.scale", 1, None),
        ("G['numbers'].pi", 3.0, Constant("math", "pi", 3.0)),
        ("G['text'].pi", 3.0, None),
        ("G['numbers'].pi.x", 3.0, None),
    ],
)
def test_which_global_variables_are_compared(place: str, value: Any, expected: Constant | None) -> None:
    assert Constant.from_guard(place, value, {"numbers": math, "text": "pi"}) == expected


def test_a_constant_holds_while_it_is_the_same_and_of_the_same_type() -> None:
    assert Constant("", "N", 1).holds({"N": 1})
    assert not Constant("", "N", 1).holds({"N": True})
    assert not Constant("", "N", 1).holds({"N": 2})
    assert not Constant("", "N", 1).holds({})
    assert Constant("math", "pi", math.pi).holds({})
    assert Constant("math", "nan", math.nan).holds({})
    assert not Constant("no.such.module", "pi", 3.0).holds({})
