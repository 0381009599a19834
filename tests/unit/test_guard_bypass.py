"""The straight way into compiled code is taken if everything that could change is checked, and only then."""

from __future__ import annotations

import dataclasses
import gc
import math
import re
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from counted import Counted
from torch import nn
from torch.overrides import TorchFunctionMode

from torchwise.compile.guards import guard_bypass
from torchwise.compile.guards.guard_bypass import _OF_TORCH, GuardBypass

pytestmark = pytest.mark.usefixtures("dynamo_afresh", "way")

X = torch.randn(3, 4)
SCALE = 2.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(0.5))
        self.scale = 2.0
        self.sizes = (1, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor, power: int = 1) -> torch.Tensor:
        return self.body(x) ** power * self.scale + self.shift.view(self.sizes)


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def test_an_unchanged_module_is_called_straight_and_answers_alike(net: Net) -> None:
    counted = Counted(net.forward, X)
    assert counted.bypass.reason == ""
    for _ in range(3):
        other = torch.randn(3, 4)
        assert torch.equal(counted(other), net(other))
    assert counted.steady_calls == 0


def test_modules_of_one_class_and_shapes_of_one_module_have_ways_of_their_own() -> None:
    nets = [Net().eval() for _ in range(3)]
    for number, each in enumerate(nets):
        each.scale = float(number)
    given = [torch.randn(rows, 4) for rows in (2, 3)]
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        found = {(n, i): Counted(nets[n].forward, given[i]) for n in range(3) for i in range(2)}
    for (n, i), counted in found.items():
        assert counted.bypass.reason == ""
        assert torch.equal(counted(given[i]), nets[n](given[i]))
        assert counted.steady_calls == 0


def test_weights_written_in_place_are_seen_on_the_straight_way(net: Net) -> None:
    counted = Counted(net.forward, X)
    net.body[0].weight.mul_(3.0)
    net.load_state_dict({name: value + 1 for name, value in net.state_dict().items()})
    assert torch.equal(counted(X), net(X))
    assert counted.steady_calls == 0


CHANGES: dict[str, Callable[[Any], object]] = {
    "attribute": lambda m: setattr(m, "scale", 5.0),
    "attribute of a submodule": lambda m: setattr(m.body[1], "eps", 1.0),
    "tuple": lambda m: setattr(m, "sizes", (4, 1)) or setattr(m, "shift", torch.ones(4)),
    "training": lambda m: m.body[3].train(),
    "submodule": lambda m: m.body.__setitem__(2, nn.ReLU()),
    "weight": lambda m: setattr(m.body[0], "weight", nn.Parameter(torch.randn(4, 4))),
    "data": lambda m: setattr(m.body[0].weight, "data", torch.randn(4, 4)),
    "buffer": lambda m: setattr(m, "shift", torch.zeros(4)),
    "hook": lambda m: m.body[1].register_forward_hook(lambda _m, _i, out: out + 1),
    "forward": lambda m: setattr(m.body[2], "forward", torch.relu),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_changed_module_is_left_to_dynamo(net: Net, change: Callable[[Any], object]) -> None:
    counted = Counted(net.forward, torch.randn(4, 4))
    given = torch.randn(4, 4)
    counted(given)
    assert counted.steady_calls == 0
    change(net)
    torch.manual_seed(1)
    answer = counted(given)
    torch.manual_seed(1)
    assert torch.equal(answer, net(given))
    assert counted.steady_calls == 1


def test_settings_of_pytorch_are_looked_at(net: Net) -> None:
    counted = Counted(net.forward, X)
    with torch.enable_grad():
        assert counted(X).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        counted(X)
    torch.use_deterministic_algorithms(True)
    try:
        counted(X)
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.device("meta"):
        counted(X)
    assert counted.steady_calls == 4
    counted(X)
    assert counted.steady_calls == 4


def plain(x: torch.Tensor, factor: float = 1.5, *, shift: float = 0.0) -> torch.Tensor:
    return torch.sin(x) * factor + shift


def test_a_function_is_called_straight_with_its_defaults() -> None:
    counted = Counted(plain, X)
    assert counted.bypass.reason == ""
    assert torch.equal(counted(X), plain(X))
    counted = Counted(plain, X, 2.0, shift=1.0)
    assert torch.equal(counted(X, 2.0, shift=1.0), plain(X, 2.0, shift=1.0))
    assert counted.steady_calls == 0


def sums(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def reads_a_global(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def breaks(x: torch.Tensor) -> torch.Tensor:
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


class Settings:
    def __init__(self) -> None:
        self.scale = 2.0


class Configured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()
        self.factors = [1.0, 2.0]
        self.named = {"a": 3.0}

    def forward(self, x: torch.Tensor, which: str) -> torch.Tensor:
        if which == "object":
            return x * self.settings.scale
        if which == "list":
            return x * self.factors[0]
        return x * self.named["a"]


def closes_over(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * value


CONFIG = {"scale": 2.0}


def has_a_default(x: torch.Tensor, config: dict[str, float] = CONFIG) -> torch.Tensor:
    return x * config["scale"]


def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x + y


class Listed(nn.Module):
    factors: ClassVar[list[float]] = [1.0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(self.factors)


class Classy(nn.Module):
    factor = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state.add_(1)
        return x * 2 + self.state


class Subclass(torch.Tensor):
    """A tensor of a class of its own."""


@dataclasses.dataclass
class Batch:
    x: torch.Tensor

    def __post_init__(self) -> None:
        self._scale = 2.0


def has_an_attribute(x: torch.Tensor) -> torch.Tensor:
    return x * getattr(x, "scale", 1.0)


def with_an_attribute() -> torch.Tensor:
    x = torch.randn(3, 4)
    x.scale = 3.0  # type: ignore[attr-defined]
    return x


def reads_a_private_one(batch: Batch) -> torch.Tensor:
    return batch.x * batch._scale


def reads_a_setting(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if torch.backends.mha.get_fastpath_enabled() else 3)


@pytest.mark.parametrize(
    ("call", "args", "reason"),
    [
        (Stateful().forward, (X,), "writes to its own tensors"),
        (
            sums,
            (torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged),),
            "nested, sparse or of a tensor",
        ),
        (sums, (X.to_sparse(),), "nested, sparse or of a tensor"),
        (sums, (X.as_subclass(Subclass),), "nested, sparse or of a tensor"),
        (has_an_attribute, (X,), "depends on x"),
        (has_an_attribute, (with_an_attribute(),), "depends on x"),
        (reads_a_private_one, (Batch(X),), "depends on batch._scale"),
        (breaks, (X,), "the graph breaks"),
        (closes_over(2.0), (X,), "not a plain function"),
        (Configured().forward, (X, "object"), "depends on .*settings"),
        (Configured().forward, (X, "list"), "depends on .*factors"),
        (Configured().forward, (X, "dict"), "depends on .*named"),
        (Classy().forward, (X,), "depends on .*factor"),
        (Listed().forward, (X,), "depends on .*factors"),
        (has_a_default, (X,), "depends on .*config"),
        (writes, (torch.ones(3), torch.ones(3)), "writes to its inputs"),
        (torch.nn.functional.gelu, (X,), "not a plain function"),
        (plain, (X.to(torch.complex64),), "complex"),
    ],
)
def test_what_nothing_else_looks_at_is_left_to_dynamo(call: Any, args: tuple[Any, ...], reason: str) -> None:
    counted = Counted(call, *args)
    assert re.search(reason, counted.bypass.reason), counted.bypass.reason
    counted(*args)
    assert counted.steady_calls == 1


def test_a_default_that_was_given_is_an_input_like_any_other() -> None:
    counted = Counted(has_a_default, X, {"scale": 2.0})
    assert counted.bypass.reason == ""


def test_the_setting_that_attention_layers_read_is_looked_at() -> None:
    counted = Counted(reads_a_setting, X)
    assert counted.bypass.reason == ""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        assert torch.equal(counted(X), X * 3)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert counted.steady_calls == 1


def turn(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x * math.pi) + torch.pi


def test_code_that_reads_pi_is_called_without_dynamo() -> None:
    counted = Counted(turn, X)
    assert counted.bypass.reason == ""
    assert torch.allclose(counted(X), turn(X))
    assert counted.steady_calls == 0


def widen(x: torch.Tensor) -> torch.Tensor:
    wide = x.double() if x.dtype in (torch.float32, torch.float16) else x
    return wide.clone(memory_format=torch.contiguous_format)


@pytest.mark.parametrize("x", [X, X.double()], ids=["float32", "float64"])
def test_code_that_reads_dtypes_of_torch_is_called_without_dynamo(x: torch.Tensor) -> None:
    counted = Counted(widen, x)
    assert counted.bypass.reason == ""
    assert torch.equal(counted(x), widen(x))
    assert counted.steady_calls == 0


@pytest.mark.parametrize(
    ("place", "value", "is_covered"),
    [
        ("G['torch'].float32", torch.float32, True),
        ("G['__import_torch'].strided", torch.strided, True),
        ("G['config'].float32", torch.float32, False),
        ("G['torch']['x'].float32", torch.float32, False),
        ("G['torch'].float", torch.float32, False),
        ("G['config'].dtype", torch.float32, False),
        ("G['float32']", torch.float32, False),
    ],
)
def test_a_dtype_by_the_name_that_torch_has_for_it_does_not_change(place: str, value: Any, is_covered: bool) -> None:
    guard = SimpleNamespace(name=place, is_global=True, guard_type="EQUALS_MATCH", value=value)
    assert guard_bypass.is_covered(guard, None, {}) is is_covered


@pytest.mark.parametrize(("value", "is_covered"), [(True, False), (1e-5, False), (torch.relu, True), ({}, True)])
def test_plain_values_in_modules_of_torch_are_no_constants(value: Any, is_covered: bool) -> None:
    guard = SimpleNamespace(name="G['__import_torch_dot_nn'].it", is_global=True, guard_type="", value=value)
    assert guard_bypass.is_covered(guard, None, {}) is is_covered


@pytest.mark.parametrize(
    ("place", "attribute", "is_covered", "reads"),
    [
        ("self", "factor", True, {(): {"factor"}}),  # as torch 2.12 and later name it
        ("self.factor", None, True, {(): {"factor"}}),  # as torch 2.11 does
        ("self._modules['a'].factor", None, True, {("a",): {"factor"}}),
        ("self.part", "factor", False, {(): {"factor"}}),
        ("self.part.factor", None, False, {}),
    ],
)
def test_whether_there_is_an_attribute_is_read_from_either_form_of_its_guard(
    place: str, attribute: str | None, is_covered: bool, reads: dict[tuple[str, ...], set[str]]
) -> None:
    create = SimpleNamespace(keywords={"attr": attribute} if attribute else None)
    guard = SimpleNamespace(
        name=place, is_global=False, guard_type="HASATTR", value=object(), orig_guard=SimpleNamespace(create_fn=create)
    )
    assert guard_bypass.is_covered(guard, "self", {}) is is_covered
    assert guard_bypass.reads_of([guard], "self") == reads


def reads_all_of_a_tree(batch: Batch, pair: list[torch.Tensor], *more: Any, **named: Any) -> torch.Tensor:
    return batch.x + pair[0] * len(pair) + more[0]["a"] + named["b"][0]


def test_what_a_signature_tells_of_inputs_in_containers_needs_no_guards() -> None:
    given = [torch.randn(3, 4) for _ in range(4)]
    counted = Counted(reads_all_of_a_tree, Batch(given[0]), [given[1]], {"a": given[2]}, b=(given[3],))
    assert counted.bypass.reason == ""


def test_calls_with_gradients_have_no_straight_way(net: Net) -> None:
    with torch.enable_grad():
        counted = Counted(net.forward, X)
        assert "gradients are enabled" in counted.bypass.reason
        net.body[0].requires_grad_(False)
        counted(X).sum().backward()
        assert counted.steady_calls == 1


def test_what_was_noted_of_the_inputs_is_let_go() -> None:
    given = torch.randn(3, 4)
    seen = weakref.ref(given)
    counted = Counted(plain, given)
    del given
    gc.collect()
    assert seen() is None
    assert counted.bypass.reason == ""


def test_what_goes_through_numpy_is_compiled_though_its_guards_are_noted() -> None:
    """An array that outlives a graph break is guarded. A guard that is made twice compares tensors (`lean.py`)."""
    counted = Counted(interpolate_in_numpy, X)
    assert torch.equal(counted(X), interpolate_in_numpy(X))


def interpolate_in_numpy(x: torch.Tensor) -> torch.Tensor:
    values = np.interp(x.numpy(), (-1.0, 1.0), (-1.0, 1.0))
    return torch.from_numpy(values).to(x) * 2


def test_only_torch_itself_is_taken_for_torch() -> None:
    names = ["G['__import_torch']", "G['__import_torch_dot_nn_dot_modules'].F", "G['__import_torchthing'].SCALE"]
    assert [bool(_OF_TORCH.search(name)) for name in names] == [True, True, False]


@pytest.mark.parametrize("value", [7.0, 0.1 + 0.2])
def test_a_global_that_changes_is_seen(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(reads_a_global, X)
    assert counted.bypass.reason == ""
    assert torch.equal(counted(X), X * SCALE)
    assert counted.steady_calls == 0
    monkeypatch.setitem(globals(), "SCALE", value)
    for _ in range(3):
        assert torch.equal(counted(X), X * value)
    assert counted.steady_calls >= 1


def test_a_value_in_another_module_that_changes_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(turn, X)
    monkeypatch.setattr(math, "pi", 3.0)
    assert torch.allclose(counted(X), torch.sin(X * 3.0) + torch.pi)
    assert counted.steady_calls == 1


def test_a_module_that_finds_its_class_compiled_takes_the_straight_way_too() -> None:
    first, second = Net().eval(), Net().eval()
    Counted(first.forward, X)
    counted = Counted(second.forward, X)
    assert counted.bypass.reason == ""
    assert torch.equal(counted(X), second(X))
    assert counted.steady_calls == 0
    second.scale = 9.0
    assert torch.equal(counted(X), second(X))
    assert counted.steady_calls == 1


def test_what_others_compiled_is_not_trusted(net: Net) -> None:
    torch.compile(net.forward, backend="eager")(X)  # whose guards nobody noted
    counted = Counted(net.forward, X)
    assert counted.bypass.reason in ("", "its code was compiled outside of this plan, so its guards are unknown")
    assert torch.equal(counted(X), net(X))


def test_what_serves_a_given_argument_does_not_serve_a_default_that_may_change() -> None:
    Counted(has_a_default, X, CONFIG)
    counted = Counted(has_a_default, X)
    assert counted.bypass.reason != ""


def test_what_was_not_just_compiled_has_no_straight_way() -> None:
    bypass = GuardBypass(plain)
    before = bypass.prepare_bypass((X,), {})
    assert bypass.path(plain, (X,), {}, before) is plain
    assert "compiled outside of this plan" in bypass.reason


class Silent(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def sine(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)


def test_another_mode_in_the_place_of_one_is_not_taken_for_it() -> None:
    with Silent():
        call = Counted(sine, X)
        call(X)
        assert call.steady_calls == 0, call.bypass.reason
    with Silent():
        call(X)
    assert call.steady_calls == 1
