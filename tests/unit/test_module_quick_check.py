"""A glance says yes only if nothing changed. It must say so, or every call would be examined closely."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchwise._torch.private_name import PrivateName
from torchwise.compile.guards import dict_contents
from torchwise.compile.guards.module_guard import ModuleGuard, ModuleState, make_quick_check

pytestmark = pytest.mark.usefixtures("checks")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        self.register_buffer("shift", torch.ones(4))
        self.register_parameter("bias", None)
        self.scale = 2.0
        self.table = torch.arange(4.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x) * self.scale + self.shift + self.table


class Other(torch.nn.Linear):
    """Replaces the class of a layer."""


@pytest.fixture
def net() -> Net:
    made = Net().eval()
    for _ in range(2):
        made.layers[1].register_forward_hook(lambda *_: None)  # type: ignore[union-attr]
    return made


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_it_says_yes_to_what_did_not_change(net: Net, mode: Callable[[], object]) -> None:
    with mode():  # type: ignore[attr-defined]
        unchanged = make_quick_check(net)
        net(torch.randn(3, 4))
        assert unchanged()


def test_it_says_yes_to_new_values_in_the_same_memory(net: Net) -> None:
    unchanged = make_quick_check(net)
    with torch.no_grad():
        net.layers[0].weight.mul_(2)  # type: ignore[operator,union-attr]
    net.load_state_dict({name: value + 1 for name, value in net.state_dict().items()})
    assert unchanged()


def test_tied_weights_are_no_difference_and_a_change_to_any_of_them_is() -> None:
    """PyTorch's guards never hold for a tensor that is given twice, so that each call was examined closely."""

    def make() -> torch.nn.ModuleDict:
        net = torch.nn.ModuleDict({"words": torch.nn.Embedding(6, 4), "head": torch.nn.Linear(4, 6, bias=False)})
        net["head"].weight = net["words"].weight
        net["again"] = net["head"]
        return net

    net = make()
    unchanged, guard = make_quick_check(net), ModuleGuard(net)
    assert unchanged()
    assert guard.is_unchanged()
    for name in ("words", "head"):
        net = make()
        unchanged, guard = make_quick_check(net), ModuleGuard(net)
        net[name].weight = torch.nn.Parameter(torch.ones(6, 4))
        assert not unchanged(), name
        assert guard.has_changed()
    net = make()
    unchanged = make_quick_check(net)
    net["words"].weight.data = torch.ones(6, 4)
    assert not unchanged(), "both have other memory"


def replace_hook(part: Any) -> None:
    part._forward_hooks.popitem()
    part.register_forward_hook(lambda *_: None)


CHANGES: dict[str, Callable[[Net], object]] = {
    "mode": lambda net: net.train(),
    "attribute": lambda net: setattr(net, "scale", 3.0),
    "attribute added": lambda net: setattr(net, "note", 1),
    "attribute removed": lambda net: delattr(net, "scale"),
    "tensor attribute": lambda net: setattr(net, "table", torch.arange(4.0)),
    "parameter": lambda net: setattr(net.layers[0], "weight", torch.nn.Parameter(torch.ones(4, 4))),
    "parameter in place of none": lambda net: setattr(net, "bias", torch.nn.Parameter(torch.ones(4))),
    "parameter's memory": lambda net: setattr(net.layers[0].weight, "data", torch.ones(4, 4)),
    "parameter's strides": lambda net: setattr(net.layers[0].weight, "data", net.layers[0].weight.data.t()),
    "buffer added": lambda net: net.register_buffer("more", torch.ones(1)),
    "buffer removed": lambda net: delattr(net, "shift"),
    "submodule": lambda net: net.layers.__setitem__(1, torch.nn.Identity()),
    "submodule removed": lambda net: net.layers.__delitem__(1),
    "hook": lambda net: net.layers[0].register_forward_hook(lambda *_: None),
    "another hook": lambda net: replace_hook(net.layers[1]),
    "hooks in another order": lambda net: net.layers[1]._forward_hooks.move_to_end(
        next(iter(net.layers[1]._forward_hooks))
    ),
    "moved": lambda net: net.double(),
    "class": lambda net: setattr(net.layers[0], "__class__", Other),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_it_says_no_to_whatever_changed(net: Net, change: Callable[[Net], object]) -> None:
    unchanged = make_quick_check(net)
    change(net)
    assert not unchanged()


def test_a_module_whose_tensors_cannot_be_glanced_at_is_looked_at_closely(net: Net) -> None:
    net.table = torch.eye(4).to_sparse()
    assert not make_quick_check(net)()
    look = ModuleGuard(net)
    assert not look.has_changed()
    net.scale = 3.0
    assert look.has_changed()


UNUSUAL: dict[str, Callable[[Net], object]] = {
    "parts in another order": lambda net: net.layers._modules.update({"0": net.layers._modules.pop("0")}),
    "another dict of buffers": lambda net: setattr(net, "_buffers", dict(net._buffers)),
    "a part put back": lambda net: net._modules.update(layers=net._modules.pop("layers")),
}


@pytest.mark.parametrize(("kind", "changes"), zip(UNUSUAL, (True, True, False), strict=True))
def test_the_order_of_parts_counts_and_the_dict_that_holds_weights(kind: str, changes: bool, net: Net) -> None:
    look = ModuleGuard(net)
    UNUSUAL[kind](net)
    assert look.has_changed() is changes


def test_a_watch_looks_closely_only_where_a_glance_does_not_do(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(ModuleState, "has_changed", lambda state: looks.append(state) is None)
    look = ModuleGuard(net)
    assert not look.has_changed()
    assert looks == []
    net.scale = 3.0
    look.has_changed()
    assert len(looks) == 1


def there_and_back(net: Net) -> None:
    net.train()
    net.eval()


@pytest.mark.parametrize("what", CHANGES)
def test_a_write_that_changes_nothing_hides_no_later_one(what: str, net: Net) -> None:
    unchanged = make_quick_check(net)
    there_and_back(net)
    assert unchanged()
    assert unchanged()
    CHANGES[what](net)
    assert not unchanged()
    assert not unchanged()


def test_it_looks_closely_only_where_something_was_written(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    monkeypatch.setattr(dict_contents, "is_", lambda a, b: looked.append(1) or a is b)
    unchanged = make_quick_check(net)
    assert unchanged()
    assert not looked
    there_and_back(net)
    assert unchanged()
    assert looked
    looked.clear()
    assert unchanged()
    assert not looked


def test_it_does_without_the_counts_of_writes(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dict_contents, "DICT_VERSION", PrivateName("torch._C._dynamo.guards", "no_such_name"))
    monkeypatch.setattr(dict_contents, "version", dict_contents._choose_version())
    unchanged = make_quick_check(net)
    assert unchanged()
    net.scale = 3.0
    assert not unchanged()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda net: setattr(net[0], "factor", 2.0), "`0.factor` on the model"),
        (
            lambda net: net[0].register_parameter("weight", torch.nn.Parameter(torch.ones(3, 4))),
            "`0.weight` on the model",
        ),
        (lambda net: net[1].train(), "`1.training` on the model"),
        (lambda net: net.train(), "`training` on the model"),
        (lambda net: net.append(torch.nn.ReLU()), "the list of submodules of the model"),
        (lambda net: setattr(net, "1", torch.nn.Tanh()), "the module `1` on the model"),
        (lambda net: setattr(net[1], "__class__", torch.nn.Identity), "the module `1` on the model"),
        (lambda net: net[0].register_forward_hook(lambda *_: None), "hooks"),
    ],
    ids=["attribute", "weight", "mode of a part", "mode", "submodule", "other submodule", "class", "hook"],
)
def test_a_change_is_named(change: Callable[[torch.nn.Sequential], Any], said: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
    net[0].factor = 1.0
    look = ModuleGuard(net)
    change(net)
    assert look.has_changed()
    assert said in look.difference().place
