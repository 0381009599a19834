"""Values that a program sets from call to call: numbers become inputs, and for all else recompiles are bounded."""

from __future__ import annotations

import enum
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import prometheus_client
import pytest
import torch
from torch import nn

import torchwise
from live_decisions import make_decision
from torchwise._torch.dynamo import count_compiled_graphs
from torchwise.alerts import heard
from torchwise.compile import compile_plan
from torchwise.compile.backends import inductor
from torchwise.compile.guards.varying_values import VaryingKind, VaryingValue
from torchwise.compile.recompiles import FIRST_WAIT_S, MAX_PLACES, RecompileLimitError, Recompiles
from torchwise.plan import Plan
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.module import OptimizedFunction, OptimizedModule
from torchwise.workload import Example

pytestmark = pytest.mark.usefixtures("dynamo_afresh", "captured_only")

PLAN = Plan(backend="inductor")
X = torch.linspace(-1.0, 1.0, 12).reshape(3, 4)
SCALE, SHIFT = 1.0, 1


@pytest.fixture
def captured_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Inductor compile nothing, and graphs run as Dynamo captured them."""
    monkeypatch.setattr(inductor, "_backend", lambda _plan, _options: as_captured)


def as_captured(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    return graph.forward


class Kind(enum.Enum):
    A = "a"
    B = "b"


@dataclass
class Config:
    strength: float = 1.0
    step: int = 1000


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.5
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.eps


class Net(nn.Module):
    """Reads numbers wherever a program may keep them, and a few other things."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.strength, self.step, self.power, self.rounds = 1.0, 1000, 2, 1
        self.settings = {"strength": 1.0, "step": 1000}
        self.factors = [1.0, 2.0]
        self.config = Config()
        self.style, self.kind, self.flag = "plain", Kind.A, False
        self.activation: Callable[[torch.Tensor], torch.Tensor] = torch.tanh
        self.seen: list[float] = []
        self.unread: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x) * self.strength + self.step
        x = x * self.settings["strength"] + self.settings["step"]
        x = x * self.factors[0] + self.config.strength * self.config.step
        for _ in range(self.rounds):
            x = torch.relu(x)
        x = x + len(self.style) + len(self.seen)
        x = x * 2 if self.kind is Kind.A else x
        return self.activation(-x if self.flag else x)


class Global(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALE + SHIFT


def apply_plan(model: nn.Module, plan: Plan = PLAN, x: torch.Tensor = X) -> OptimizedModule:
    return OptimizedModule(model, make_decision(model, plan, x))


def set_global(name: str) -> Callable[[Any, int], None]:
    return lambda _, i: globals().__setitem__(name, type(globals()[name])(i + 2))


NUMBERS: dict[str, Callable[[Any, int], object]] = {
    "float": lambda m, i: setattr(m, "strength", 1.5 + i),
    "integer": lambda m, i: setattr(m, "step", 1001 + i),
    "float and integer": lambda m, i: (setattr(m, "step", 1001 + i), setattr(m, "strength", 1.5 + i)),
    "in a submodule": lambda m, i: setattr(m.inner, "eps", 1.5 + i),
    "float in a dict": lambda m, i: m.settings.update(strength=1.5 + i),
    "integer in a dict": lambda m, i: m.settings.update(step=1001 + i),
    "in a list": lambda m, i: m.factors.__setitem__(0, 1.5 + i),
    "float in an object": lambda m, i: setattr(m.config, "strength", 1.5 + i),
    "integer in an object": lambda m, i: setattr(m.config, "step", 1001 + i),
    "object replaced": lambda m, i: setattr(m, "config", Config(1.5 + i, 7 + i)),
    "global float": set_global("SCALE"),
    "global integer": set_global("SHIFT"),
}


@pytest.mark.parametrize("change", NUMBERS.values(), ids=list(NUMBERS))
@torch.no_grad()
def test_a_number_is_compiled_for_once_more_and_then_is_an_input(
    change: Callable[[Any, int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SCALE", "SHIFT"):
        monkeypatch.setitem(globals(), name, globals()[name])
    model = Net().eval() if change not in (NUMBERS["global float"], NUMBERS["global integer"]) else Global()
    fast = apply_plan(model)
    fast(X)
    before = count_compiled_graphs()
    for i in range(20):
        change(model, i)
        torch.testing.assert_close(fast(X), model(X))
    assert count_compiled_graphs() == before + 1
    assert (fast.statistics.optimized, fast.statistics.recompiles) == (21, 1)
    assert fast.statistics.snapshot()["recompiles"] == 1


OTHERS: dict[str, tuple[Callable[[Any, int], object], str]] = {
    "text": (lambda m, i: setattr(m, "style", "x" * i), r"`style` on the model is another string on every call"),
    "number of rounds": (lambda m, i: setattr(m, "rounds", 2 + i), r"`rounds` on the model is another number on every"),
    "function": (
        lambda m, i: setattr(m, "activation", lambda x: x + i),
        r"`activation\S*` on the model is another object on every call",
    ),
    "growing list": (lambda m, i: m.seen.append(i), r"`seen` on the model has another length on every call"),
}


@pytest.mark.parametrize(("change", "reason"), OTHERS.values(), ids=list(OTHERS))
@torch.no_grad()
def test_what_cannot_be_an_input_is_compiled_for_so_often_and_then_named(
    change: Callable[[Any, int], object], reason: str
) -> None:
    fast = apply_plan(model := Net().eval())
    fast(X)
    before = count_compiled_graphs()
    with heard() as alerts:
        for i in range(15):
            change(model, i)
            torch.testing.assert_close(fast(X), model(X))
    assert count_compiled_graphs() == before + 8
    assert fast.statistics.recompiles == 8
    [(counted, times)] = fast.statistics.original.items()
    assert counted == FallbackReason.RECOMPILE_LIMIT
    said = fast.statistics.sentences[counted]
    assert re.match(reason, said)
    assert (times >= 6, fast.statistics.optimized + times) == (True, 16)
    [alert] = alerts
    assert (alert.kind, alert.facts["recompiles"]) == ("recompile_limit", 8)
    assert (alert.facts["reason"], alert.facts["sentence"]) == ("recompile_limit", said)
    assert "it was compiled or captured again 8 times" in alert.message


@torch.no_grad()
def test_what_was_compiled_goes_on_answering_beyond_the_limit() -> None:
    fast = apply_plan(model := Net().eval())
    for i in range(12):
        model.style = "x" * i
        fast(X)
    answered = fast.statistics.optimized
    for style in ("x", "xxx", "x"):
        model.style = style
        torch.testing.assert_close(fast(X), model(X))
    assert fast.statistics.optimized == answered + 3


@torch.no_grad()
def test_pytorchs_own_limit_is_the_plans() -> None:
    fast = apply_plan(model := Net().eval())
    with torch._dynamo.config.patch(recompile_limit=3):
        for i in range(6):
            model.style = "x" * i
            fast(X)
        assert fast.statistics.recompiles == 3
    model.style = "x" * 6
    fast(X)
    assert fast.statistics.recompiles == 4


@torch.no_grad()
def test_values_that_take_turns_are_compiled_for_once_each() -> None:
    fast = apply_plan(model := Net().eval())
    for i in range(20):
        model.flag, model.kind = bool(i % 2), list(Kind)[i // 2 % 2]
        torch.testing.assert_close(fast(X), model(X))
    assert (fast.statistics.optimized, fast.statistics.recompiles) == (20, 3)


@torch.no_grad()
def test_sizes_stay_static_where_numbers_become_inputs() -> None:
    given = [torch.randn(rows, 4) for rows in (2, 3, 5)]
    model = Net().eval()
    decision = make_decision(model, PLAN, X)
    others = [make_decision(model, PLAN, x).inputs[0] for x in given]
    fast = OptimizedModule(model, replace(decision, inputs=tuple(others)))
    seen: list[list[Any]] = []

    def note_sizes(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        seen.append([size for t in inputs if isinstance(t, torch.Tensor) for size in t.shape])
        return graph.forward

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inductor, "_backend", lambda _plan, _options: note_sizes)
        for i in range(4):
            model.strength, model.step = 1.5 + i, 1001 + i
            for x in given:
                torch.testing.assert_close(fast(x), model(x))
    assert all(type(size) is int for sizes in seen for size in sizes)
    assert len(seen) == 6, "one for each kind of call, and once more with numbers as inputs"
    assert fast.statistics.recompiles == 3


def closes_over() -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[float], None]]:
    value = 1.5

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * value

    def give(other: float) -> None:
        nonlocal value
        value = other

    return scale, give


@torch.no_grad()
def test_a_number_that_a_function_closes_over_is_an_input_too() -> None:
    scaled, give = closes_over()
    fast = OptimizedFunction(scaled, make_decision(scaled, PLAN, X))
    for i in range(10):
        give(2.5 + i)
        torch.testing.assert_close(fast(X), X * (2.5 + i))
    assert (fast.statistics.optimized, fast.statistics.recompiles) == (10, 1)


def multiply(x: torch.Tensor, power: int) -> torch.Tensor:
    return x * power


@torch.no_grad()
def test_a_number_that_is_given_is_proven_or_else_the_originals() -> None:
    fast = OptimizedFunction(multiply, make_decision(multiply, PLAN, X, 2))  # type: ignore[arg-type]
    before = count_compiled_graphs()
    for i in range(10):
        torch.testing.assert_close(fast(X, i), X * i)
    assert count_compiled_graphs() == before + 1
    assert (fast.statistics.optimized, fast.statistics.recompiles) == (1, 0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x))) + len(STYLE)


STYLE = "plain"


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for block in self.blocks:
            x = block(x)
        return x


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count_call(self)
        return x + len(STYLE)


@torch.compiler.disable
def count_call(model: Breaks) -> None:
    model.calls += 1


@pytest.mark.parametrize(
    ("kind", "plan"),
    [(Blocks, Plan(backend="inductor", scope="regional")), (Breaks, PLAN)],
    ids=["blocks compiled apart", "after a graph break"],
)
@torch.no_grad()
def test_in_the_midst_of_a_call_the_plan_goes_to_the_end_and_is_given_up(
    kind: Any, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = apply_plan(model := kind().eval(), plan)
    with heard() as alerts:
        for i in range(14):
            monkeypatch.setitem(globals(), "STYLE", "x" * i)
            calls = model.calls
            answer = fast(X)
            assert model.calls == calls + 1, "nothing ran twice"
            torch.testing.assert_close(answer, model(X))
    assert (fast.statistics.optimized, fast.statistics.recompiles) == (10, 9)
    assert [alert.kind for alert in alerts] == ["recompile_limit"]
    [reason] = fast.statistics.sentences.values()
    assert reason.startswith("the global variable `STYLE` is another string on every call")


@torch.no_grad()
def test_a_trial_of_such_a_program_fails_with_the_reason() -> None:
    model = Net().eval()
    made = compile_plan(model, PLAN, Example((X,)), device="cpu", mode="inference")

    def set_style(i: int) -> None:
        model.style = "x" * i
        made.call(X)

    for i in range(9):
        set_style(i)
    with pytest.raises(RecompileLimitError, match="`style` on the model is another string on every call"):
        set_style(9)


@torch.no_grad()
def test_what_a_frozen_plan_refuses_is_no_recompile() -> None:
    fast = apply_plan(model := Net().eval())
    for _ in range(2):
        fast(X)
    torchwise.freeze(fast)
    model.strength = 7.0
    torch.testing.assert_close(fast(X), model(X))
    assert (fast.statistics.recompiles, fast.statistics.compiles) == (0, 0)


@torch.no_grad()
def test_what_is_disabled_for_dynamo_stays_so() -> None:
    fast = apply_plan(Disabled().eval())
    fast(X)
    assert Disabled.compiling == [False]


class Disabled(nn.Module):
    compiling: ClassVar[list[bool]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sin_in_eager(x * 2) + 1


@torch.compiler.disable(recursive=False)  # type: ignore[untyped-decorator]
def sin_in_eager(x: torch.Tensor) -> torch.Tensor:
    Disabled.compiling.append(torch.compiler.is_compiling())
    return x.sin()


@torch.no_grad()
def test_each_is_said_and_scraped(caplog: pytest.LogCaptureFixture) -> None:
    registry = prometheus_client.CollectorRegistry()
    fast = apply_plan(model := Net().eval())
    torchwise.export_metrics(fast, "net", registry)
    fast(X)
    model.step = 1001
    with caplog.at_level(logging.INFO, "torchwise"):
        fast(X)
    assert "compiled again for a call that it has answered before: `step` on the model is now 1001" in caplog.text
    found = registry.get_sample_value("torchwise_recompiles_total", {"model": "net", "plan": str(PLAN)})
    assert found == 1


STYLED = VaryingValue("style", "`style`", VaryingKind.TEXT, "'a'")


def test_one_more_is_permitted_after_a_wait_that_doubles() -> None:
    now = [0.0]
    recompiles = Recompiles(1, clock=lambda: now[0])
    recompiles.again([STYLED], at_start=True)
    for wait in (FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S):
        for late in (0.0, wait - 1):
            now[0] += late
            with pytest.raises(RecompileLimitError):
                recompiles.again([STYLED], at_start=True)
        now[0] += 1.0
        recompiles.again([STYLED], at_start=True)
    assert recompiles.count == 4


def test_every_kind_that_varies_has_words() -> None:
    for kind in VaryingKind:
        recompiles = Recompiles(0)
        with pytest.raises(RecompileLimitError, match=re.escape("`step` ")):
            recompiles.again([VaryingValue("step", "`step`", kind)], at_start=True)


def test_places_that_vary_once_each_are_forgotten_and_the_common_one_is_named() -> None:
    recompiles = Recompiles(1 << 20)
    for i in range(3 * MAX_PLACES):
        entry = VaryingValue(f"sizes[{i}]", f"`sizes[{i}]`", VaryingKind.NUMBER, str(i))
        recompiles.again([entry, *([STYLED] if i > MAX_PLACES else [])], at_start=True)
    assert max(len(recompiles._times), len(recompiles._values)) <= MAX_PLACES
    assert recompiles._error().reason.startswith("`style` is another string")


def test_what_varied_most_often_is_named_with_its_last_values() -> None:
    recompiles = Recompiles(8)
    for i in range(8):
        number = VaryingValue("step", "`step`", VaryingKind.NUMBER, str(i))
        recompiles.again([number, STYLED] if i % 2 else [number], at_start=True)
    with pytest.raises(RecompileLimitError) as raised:
        recompiles.again([], at_start=True)
    assert raised.value.reason.startswith("`step` is another number on every call")
    assert str(raised.value).endswith("(it was compiled or captured again 8 times, its last values are 4, 5, 6, 7)")
