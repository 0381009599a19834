"""Compiled code of one autocast never answers another's calls, whether PyTorch's key tells them apart or not."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchwise._torch.aot_autograd import CACHE_KEY
from torchwise._torch.private_name import PrivateName
from torchwise.compile import inductor_patches
from torchwise.compile.backends import inductor
from torchwise.plan import Plan

PLAN = Plan(backend="inductor")


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    inductor_patches.add_autocast_to_key.cache_clear()
    yield
    inductor_patches.add_autocast_to_key.cache_clear()


class Old:
    """The key's details in PyTorch 2.11."""

    def __init__(self) -> None:
        self.disable_amp = torch._C._is_any_autocast_enabled()


class New(Old):
    """The key's details in PyTorch 2.13."""

    def __init__(self) -> None:
        super().__init__()
        self.autocast_state: dict[str, torch.dtype] = {}


def keys(kind: Any) -> list[dict[str, Any]]:
    found = [vars(kind())]
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            found.append(vars(kind()))
    return found


def stand_in(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    """Have PyTorch make its keys by another class."""
    module = importlib.import_module(CACHE_KEY.module)
    monkeypatch.setattr(module, CACHE_KEY.attribute, kind)


def test_a_key_that_does_not_tell_autocasts_apart_is_made_to(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Kind", (Old,), {"__init__": Old.__init__})
    stand_in(monkeypatch, kind)
    inductor_patches.add_autocast_to_key()
    inductor_patches.add_autocast_to_key()
    without, bf16, fp16 = keys(kind)
    assert without == {"disable_amp": False}, "what is in a cache already stays found"
    assert bf16["autocast_state"] == {"cpu": torch.bfloat16}
    assert fp16["autocast_state"] == {"cpu": torch.float16}


def test_a_key_that_does_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = New.__init__
    stand_in(monkeypatch, New)
    inductor_patches.add_autocast_to_key()
    assert New.__init__ is before


def test_a_version_without_such_keys_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor_patches, "CACHE_KEY", PrivateName("torch._functorch", "no_such_name"))
    inductor_patches.add_autocast_to_key()


@pytest.mark.parametrize(
    "make",
    [
        lambda: inductor.compile(torch.sin, PLAN),
        lambda: inductor.graph_compiler(PLAN),
        lambda: inductor.aot_backend(PLAN),
    ],
)
def test_every_way_to_compile_sees_to_it(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(inductor, "add_autocast_to_key", lambda: told.append(True))
    make()
    assert told == [True]
