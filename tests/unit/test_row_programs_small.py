"""Small matrices, few rows and short rows in row programs, whose sizes the compiler knows."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from torch.nn.functional import linear

from row_calls import compile_call, keep_regions
from torchwise._torch import native
from torchwise.compile import programs
from torchwise.compile.backends import graphs, pure_graph
from torchwise.errors import UnsupportedError

Tensors = Sequence[torch.Tensor]
KINDS = {torch.float32: 1e-5, torch.float64: 1e-13}
"""The largest error of each type, as a share of the largest number."""


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return random numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def compile_text(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Tensors], *given: torch.Tensor) -> str:
    """Compile a call, compare its answers with those in float64, and return the text of its only region."""
    regions, texts = keep_regions(monkeypatch), list[str]()
    load = programs.load_module
    monkeypatch.setattr(programs, "load_module", lambda text: (texts.append(text), load(text))[1])
    found = compile_call(call, *given)(*given)
    for one, wanted in zip(found, call(*(one.double() for one in given)), strict=True):
        assert (one.double() - wanted).abs().max() <= KINDS[one.dtype] * wanted.abs().max()
    assert len(regions) == 1
    return texts[0]


@pytest.mark.parametrize("dtype", KINDS)
def test_products_of_many_small_matrices(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(8, 8, 8), (1, 5, 3), (16, 3, 7), (5, 16, 16), (2, 2, 1), (17, 3, 3)]
    left = [draw(7, m, k, dtype=dtype) for m, _, k in sizes] * 2
    right = [draw(7, k, n, seed=1, dtype=dtype) for _, n, k in sizes]
    right += [draw(7, n, k, seed=1, dtype=dtype).mT for _, n, k in sizes]

    def call(*given: torch.Tensor) -> Tensors:
        half = len(given) // 2
        return [torch.relu(torch.bmm(a * 2, b)) for a, b in zip(given[:half], given[half:], strict=True)]

    given = [*left, *right]
    text = compile_text(monkeypatch, call, *given)
    kind = "float" if dtype is torch.float32 else "double"
    for sizes_there in ("8, 8, 8", "16, 3, 7", "5, 16, 16"):
        for turned in ("true", "false"):
            assert f"small_products<{kind}, {turned}, {sizes_there}>(" in text
    assert "17, 3, 3>" not in text, "which is too large"


def test_one_matrix_for_all_is_a_product_of_more_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        return [torch.relu(torch.bmm(x * 2, w.t().expand(9, 20, 12)))]

    text = compile_text(monkeypatch, call, draw(9, 6, 20), draw(12, 20, seed=1))
    assert ", 54, 12, 20, " in text
    assert "products<float" not in text


@pytest.mark.parametrize("dtype", KINDS)
def test_softmax_of_short_rows(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list(itertools.product((1, 15, 16, 33), (2, 3, 8, 15, 16, 17)))

    def call(*given: torch.Tensor) -> Tensors:
        return [torch.softmax(x + 1, -1) for x in given]

    text = compile_text(monkeypatch, call, *(draw(*size, dtype=dtype) * 5 for size in sizes))
    assert text.count("softmax_short<") == 20
    assert text.count("softmax_rows<") == 4


def test_special_numbers_in_short_rows() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.tensor([[1.0, inf, 2], [nan, 0, 1], [0, nan, 1], [-inf, -inf, -inf], [-inf, 0, 1], [3e38, 3e38, -3e38]])

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 1, -1) + 0

    torch.testing.assert_close(compile_call(call, x)(x), call(x), equal_nan=True)


def test_products_of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [(1, 16), (1, 33), (2, 16), (2, 130), (3, 7), (4, 100), (8, 40), (8, 300), (1, 3), (2, 48), (3, 48)]
    sizes = [(m, n, k) for m, k in lengths for n in (1, 7, 16, 37)]
    given = [one for m, n, k in sizes for one in (draw(m, k), draw(n, k, seed=1), draw(n, seed=2))]

    def call(*given: torch.Tensor) -> Tensors:
        return [linear(x + 1, w, bias) for x, w, bias in zip(given[::3], given[1::3], given[2::3], strict=True)]

    compile_text(monkeypatch, call, *given)


def test_a_known_call_is_answered_without_its_signature(monkeypatch: pytest.MonkeyPatch, native_checks: object) -> None:
    def call(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 2) + y

    monkeypatch.setattr(native, "load_checks", lambda: native_checks)
    compiled = compile_call(call, draw(3, 4), draw(3, 4, seed=1))
    for rows in (3, 5):
        compiled(draw(rows, 4), draw(rows, 4, seed=1))

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(graphs, "signature_of", refuse)
    for rows in (5, 3):
        x, y = draw(rows, 4, seed=2), draw(rows, 4, seed=3)
        torch.testing.assert_close(compiled(x, y), call(x, y))
        for other in ((x.double(), y), (x, y[:, :1]), (x, x), (x.t().contiguous().t(), y)):
            with pytest.raises(AssertionError):
                compiled(*other)


def test_a_known_call_runs_no_code_of_dynamo(native_checks: object) -> None:
    """Compiled code would tell the profiler when its graph begins, in a function that Dynamo may not compile."""
    x, weight = torch.randn(4, 8), torch.randn(8, 8)
    with torch.no_grad():
        call = compile_call(lambda x, weight: torch.tanh(linear(x, weight)) + 1, x, weight)
        wanted, files = call(x, weight), list[str]()
        call(x, weight)
        sys.setprofile(lambda frame, event, _: files.append(frame.f_code.co_filename) if event == "call" else None)
        try:
            found = call(x, weight)
        finally:
            sys.setprofile(None)
    assert torch.equal(found, wanted)
    assert files
    assert not [one for one in files if "_dynamo" in one or one.endswith("_compile.py")]


@pytest.mark.parametrize("dim", [0, 1])
def test_outputs_that_are_parts_of_one_tensor_are_tensors_of_their_own(dim: int) -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple((torch.exp(x * 0.5) + 1).tanh().unbind(dim))

    x = torch.randn(3, 4)
    compiled = compile_call(call, x)
    for one, other in zip(compiled(x), call(x), strict=True):
        torch.testing.assert_close(one, other)
        assert one.stride() == other.stride()


def test_empty_outputs_of_one_tensor_share_nothing() -> None:
    parts = torch.zeros(0, 4).unbind(1)
    assert not pure_graph._share_elements(parts)
    whole = torch.zeros(4)
    assert pure_graph._share_elements([whole, whole[3:]])


def test_outputs_that_share_an_element_are_refused() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (torch.exp(x * 0.5) + 1).tanh()
        return y[:3], y[2:]

    x = torch.randn(5, 4)
    with pytest.raises(UnsupportedError, match="a view of an input or of another output"):
        compile_call(call, x)(x)


@pytest.mark.parametrize(("rows", "columns"), [(300, None), (3, 5), (1, 1)])
def test_an_identity_matrix_is_counted_in_types_that_gpus_have(rows: int, columns: int | None) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (torch.eye(rows) if columns is None else torch.eye(rows, columns, dtype=torch.float64))

    exported = torch.export.export(Scaled(), (x := torch.randn(1),))
    exported = exported.run_decompositions(programs._list_decompositions())
    assert torch.equal(exported.module()(x), Scaled()(x))
    types = {node.meta["val"].dtype for node in exported.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)}
    assert not types & {torch.uint8, torch.uint16}
