"""A kernel that may start early waits before it touches memory, and compiled code tells whether it does."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._inductor import config
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.utils import IndentedBuffer

from torchwise._torch.inductor import ENABLE_PDL, FILTER_PDL, GRAPH_KEY, PDL_WAIT, TRITON_KERNEL
from torchwise._torch.private_name import check
from torchwise.compile import inductor_patches
from torchwise.compile.backends import inductor
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan

WAIT, LAUNCH = TritonKernel.GDC_WAIT, TritonKernel.GDC_LAUNCH


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    inductor_patches.wait_first.cache_clear()
    yield
    inductor_patches.wait_first.cache_clear()


class Details:
    """The key of compiled code."""

    def __init__(self) -> None:
        self.graph = "graph"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give a kind of Inductor's own kernels, which all start early, that `wait_first` changes in their place."""
    kind = type("Early", (TritonKernel,), {"_enable_pdl_codegen": staticmethod(lambda: True)})
    details = type("Key", (Details,), {"__init__": Details.__init__})
    for name, stand_in in ((TRITON_KERNEL, kind), (GRAPH_KEY, details)):
        monkeypatch.setattr(importlib.import_module(name.module), name.attribute, stand_in)
    inductor_patches.wait_first()
    inductor_patches.wait_first()
    kind.details = details
    with config.patch({inductor_patches.OPTION: True}):
        yield kind


def write_body(kernel: Any, *lines: str) -> list[str]:
    """Return the end of a kernel's body, from the lines that Inductor has written so far."""
    code = IndentedBuffer()
    for line in lines:
        code.writeline(line)
    kernel._filter_pdl(kernel.__new__(kernel), code)
    return [str(line) for line in code._lines]


def test_what_only_stores_waits_too(kernel: Any) -> None:
    assert write_body(kernel, "zero = 0.0", "tl.store(out, zero)") == [WAIT, "zero = 0.0", "tl.store(out, zero)"]


def test_the_wait_comes_before_the_first_load_and_others_may_start_after_the_last(kernel: Any) -> None:
    loads = ("a = tl.load(x)", WAIT, LAUNCH, "b = tl.load(y)", WAIT, LAUNCH)
    lines = write_body(kernel, *loads, "tl.store(out, a + b)")
    assert lines[0] == WAIT
    assert lines.count(WAIT) == 1, "after the first there is nothing left to wait for"
    assert lines.count(LAUNCH) == 1
    assert lines.index(LAUNCH) == lines.index("b = tl.load(y)") + 1


def test_what_does_not_start_early_stays_as_it_is(kernel: Any) -> None:
    kernel._enable_pdl_codegen = staticmethod(lambda: False)
    assert write_body(kernel, "tl.store(out, 0)") == ["tl.store(out, 0)"]


def test_what_starts_early_without_the_option_stays_as_it_is(kernel: Any) -> None:
    with config.patch({inductor_patches.OPTION: False}):
        assert write_body(kernel, "tl.store(out, 0)") == ["tl.store(out, 0)"], "as its key does not tell it apart"


def test_compiled_code_is_kept_apart_from_what_was_compiled_without(kernel: Any) -> None:
    assert vars(kernel.details()) == {"graph": "graph", "kernels_wait_once_and_first": True}
    with config.patch({inductor_patches.OPTION: False}):
        assert vars(kernel.details()) == {"graph": "graph"}, "what is in a cache already stays found"


def test_this_torch_writes_kernels_so() -> None:
    check("a test", (FILTER_PDL, ENABLE_PDL, PDL_WAIT, GRAPH_KEY))


def test_a_torch_that_writes_them_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(TritonKernel, "_filter_pdl")
    with pytest.raises(UnsupportedError, match=r"enable_pdl needs torch\..*\.TritonKernel\._filter_pdl, which torch"):
        inductor_patches.wait_first()


@pytest.mark.parametrize(("value", "set_by_the_user", "asks"), [(1, 0, True), (0, 0, False), (None, 1, True)])
def test_every_plan_that_starts_kernels_early_has_them_wait(
    monkeypatch: pytest.MonkeyPatch, value: int | None, set_by_the_user: int, asks: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(inductor_patches, "wait_first", lambda: asked.append(True))
    options = () if value is None else ((inductor_patches.OPTION, bool(value)),)
    plan = Plan(backend="inductor", options=options)
    with config.patch({inductor_patches.OPTION: bool(set_by_the_user)}):
        for compiler in (
            lambda plan: inductor.compile(torch.sin, plan),
            inductor.graph_compiler,
            inductor.aot_backend,
        ):
            asked.clear()
            compiler(plan)
            assert bool(asked) is asks
