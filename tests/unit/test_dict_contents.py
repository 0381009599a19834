"""Differences of dicts: writes that PyTorch counts, and those that it does not count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchwise._torch.private_name import PrivateName
from torchwise.compile.guards import dict_contents
from torchwise.compile.guards.dict_contents import DictContents, watch
from torchwise.runtime.call_guard import CallGuard
from torchwise.runtime.fallback_reason import FallbackReason

WRITES: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], Any]]] = {
    "an entry is added": ({"a": 1}, lambda found: found.update(b=2)),
    "an entry is removed": ({"a": 1}, lambda found: found.pop("a")),
    "an empty dict is set": ({}, lambda found: found.setdefault("a", 1)),
    "an empty dict is updated": ({}, lambda found: found.update({"a": 1})),
    "it is emptied and updated": ({"a": 1}, lambda found: (found.clear(), found.update({"a": 2}))),
}


@pytest.mark.parametrize(("contents", "write"), WRITES.values(), ids=WRITES)
def test_each_write_is_found_and_its_undoing_too(
    contents: dict[str, Any], write: Callable[[dict[str, Any]], Any]
) -> None:
    contents, before = dict(contents), dict(contents)
    find_differences = watch([DictContents({"other": 1}), DictContents(contents)])
    assert not find_differences()
    for _ in range(2):  # found differences are no new reference
        write(contents)
        assert list(find_differences()) == [1]
        assert list(find_differences()) == [1], "and are found again"
        contents.clear()
        contents.update(before)
        assert not find_differences()


ATTRIBUTES: dict[str, Callable[[Any], object]] = {
    "training": lambda m: m.train(),
    "scale": lambda m: setattr(m, "scale", 3.0),
    "new": lambda m: setattr(m, "new", 1),
    "bias": lambda m: object.__setattr__(m, "bias", 1),
    "steps": lambda m: delattr(m, "steps"),
}


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attribute_that_is_set_or_removed_is_found(name: str) -> None:
    """Some Pythons keep attributes outside of the dict, and count no such write (3.13.0)."""
    model = Registers().eval()
    model.scale, model.steps = 2.0, 1
    find_differences = watch([DictContents(vars(model))])
    assert not find_differences()
    ATTRIBUTES[name](model)
    assert [*find_differences().values()] == [[name]]


def test_where_not_all_writes_are_counted_everything_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dict_contents, "DICT_VERSION", PrivateName("builtins", "len"))
    assert dict_contents._choose_version() is dict_contents._new_count


def test_a_dict_that_was_emptied_without_a_difference_is_compared_once_it_is_filled() -> None:
    contents: dict[str, Any] = {"unwatched": 1}
    find_differences = watch([DictContents(contents, names=["watched"])])
    contents.clear()
    assert not find_differences()
    contents.update({"watched": 2})
    assert list(find_differences().values()) == [["watched"]]


class Registers(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.register_buffer("kept", x.mean(), persistent=False)
        return x * 2


def test_a_buffer_that_compiled_code_registers_is_found() -> None:
    model = Registers()
    find_differences = watch([DictContents(model._buffers)])
    assert not find_differences()
    torch.compile(model, backend="eager")(torch.ones(2))
    assert list(find_differences().values()) == [["kept"]]


class Scales:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale(x)

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_a_call_finds_code_that_is_put_into_an_object_without_attributes() -> None:
    call = Scales()
    guard = CallGuard(call, inference=True)
    assert guard.find_change() is None
    vars(call).update({"scale": lambda x: x * 3})
    found = guard.find_change()
    assert found is not None
    assert found.reason is FallbackReason.CODE_REPLACED
    vars(call).clear()
    assert guard.find_change() is None
