"""Which products of a graph are computed from parts of their columns, and that the parts are those of the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch

from torchwise._torch import inductor
from torchwise.compile.three_tf32 import products

aten = torch.ops.aten


class Tensor:
    """A tensor of a graph, as Inductor's lowering functions take it."""

    def __init__(self, *sizes: Any, dtype: torch.dtype = torch.float32, device: str = "cuda") -> None:
        self.sizes, self.dtype, self.device = sizes, dtype, torch.device(device)

    def get_size(self) -> tuple[Any, ...]:
        return self.sizes

    def get_dtype(self) -> torch.dtype:
        return self.dtype

    def get_device(self) -> torch.device:
        return self.device


SYMBOL = sympy.Symbol("s0", integer=True)
GOOD = (Tensor(8192, 256), Tensor(256, 512))


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Have a GPU with TF32, and return its settings: the program does not allow TF32."""
    settings = SimpleNamespace(fp32_precision="ieee")
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda *_: True)
    monkeypatch.setattr(torch.backends.cuda, "matmul", settings)
    return settings


@pytest.mark.parametrize(
    ("rows", "columns", "expected"),
    [
        (*GOOD, True),
        (Tensor(sympy.Integer(8192), sympy.Integer(256)), Tensor(sympy.Integer(256), sympy.Integer(512)), True),
        (Tensor(SYMBOL, 256), Tensor(256, 512), False),
        (Tensor(2047, 256), Tensor(256, 1024), False),
        (Tensor(2048, 256), Tensor(256, 512), True),
        (Tensor(2048, 256), Tensor(256, 511), False),
        (Tensor(262_144, 256), Tensor(256, 4), False),
        (Tensor(262_144, 47), Tensor(47, 256), False),
        (Tensor(8192, 256, dtype=torch.bfloat16), Tensor(256, 512, dtype=torch.bfloat16), False),
        (Tensor(8192, 256, dtype=torch.float64), Tensor(256, 512, dtype=torch.float64), False),
        (Tensor(8192, 256, device="cpu"), Tensor(256, 512, device="cpu"), False),
    ],
)
@pytest.mark.usefixtures("on_gpu")
def test_large_products_of_float32_are_suited(rows: Tensor, columns: Tensor, expected: bool) -> None:
    assert products.is_suited(rows, columns) == expected


def test_tf32_that_the_program_allows_is_left(on_gpu: SimpleNamespace) -> None:
    on_gpu.fp32_precision = "tf32"
    assert not products.is_suited(*GOOD)


@pytest.mark.usefixtures("on_gpu")
def test_a_gpu_without_tf32_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda *_: False)
    assert not products.is_suited(*GOOD)


@pytest.fixture
def lowerings() -> Iterator[dict[Any, Callable[..., Any]]]:
    """Return what lowers operators, which is put back."""
    found = inductor.LOWERINGS.get()
    before = dict(found)
    yield found
    found.update(before)


@pytest.fixture
def parts(lowerings: dict[Any, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Any]]]:
    """Take all float32 products of a CPU, and add up the two products of parts. Return the sizes and strides of each.

    Compiled code is not read from a cache, which does not know of this.
    """
    seen: list[list[Any]] = []
    multiply = lowerings[aten.mm.default]

    def add_products(tensors: tuple[Any, ...], _layout: Any) -> Any:
        from torch._inductor.ir import TensorBox

        rows, big, small = (one if isinstance(one, TensorBox) else TensorBox(one) for one in tensors)
        seen.append(
            [(tuple(map(int, one.get_size())), tuple(map(int, one.get_stride()))) for one in (rows, big, small)]
        )
        cut = [lowerings[aten.slice.Tensor](one, 1, 0, int(rows.get_size()[1])) for one in (big, small)]
        both = [multiply(rows, lowerings[aten.permute.default](one, [1, 0])) for one in cut]
        return lowerings[aten.add.Tensor](*both)

    monkeypatch.setattr(products, "_select", add_products)
    monkeypatch.setattr(products, "is_suited", lambda *tensors: all(map(products._is_matrix, tensors)))
    products.add_to_lowerings(lambda: True)
    torch._dynamo.reset()
    with inductor.patch_config({"force_disable_caches": True}):
        yield seen
    torch._dynamo.reset()


@pytest.mark.slow
def test_parts_are_those_of_the_columns_in_rows_of_whole_vectors(parts: list[list[Any]]) -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(45, 24), torch.nn.Linear(69, 32)

    def call(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.relu(first(torch.cat([x, torch.sin(y)], -1)))  # 45 numbers, and the weight is turned
        both = torch.cat([h, x, y], 1)
        scaled = torch.addmm(both[:, :32], x, x.T @ y @ y.T[:, :32], alpha=2)
        return second(both), torch.exp(y) @ first.weight[:, :25].T, x @ x.T, both + 1, scaled

    x, y = torch.randn(64, 20), torch.randn(64, 25)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(call)(x, y), call(x, y), rtol=1e-4, atol=1e-4)
    rows = [one[0] for one in parts]
    assert ((64, 48), (48, 1)) in rows, "a concatenation with zeros"
    assert ((64, 80), (80, 1)) in rows, "another, which is also returned without them"
    assert ((64, 32), (32, 1)) in rows, "rows that are computed anyway"
    assert ((64, 20), (20, 1)) in rows, "an input as it is"
    assert {one[1] for one in parts} >= {((24, 64), (64, 1)), ((32, 96), (96, 1)), ((64, 32), (32, 1))}
    assert all(one[1] == one[2] for one in parts)


@pytest.mark.slow
def test_the_larger_part_has_the_bits_of_tf32(lowerings: dict[Any, Any]) -> None:
    def give_parts(rows: Any, _columns: Any) -> Any:
        return lowerings[aten.cat.default](products.split(rows), 0)

    lowerings[aten.mm.default] = give_parts
    torch._dynamo.reset()
    torch.manual_seed(0)
    w = torch.randn(40, 20)
    with inductor.patch_config({"force_disable_caches": True}), torch.no_grad():
        found = torch.compile(torch.matmul)(w, torch.randn(20, 64))  # a product of the parts' size
    torch._dynamo.reset()
    big, small = found[:20], found[20:]
    assert big.shape == small.shape == (20, 64)
    assert not big[:, 40:].any()
    assert not small[:, 40:].any()
    assert torch.equal(big[:, :40] + small[:, :40], w.T)
    assert not (big.view(torch.int32) & 0x1FFF).any()
    assert (small[:, :40].abs() <= w.T.abs() * 2**-11).all(), "rounded to the nearest"


@pytest.mark.parametrize("given", [{"alpha": 2}, {"beta": 0.5}, {"layout": None}])
@pytest.mark.usefixtures("on_gpu")
def test_other_arguments_are_left_to_pytorch(lowerings: dict[Any, Any], given: dict[str, Any]) -> None:
    lowerings[aten.addmm.default] = lambda *_args, **kwargs: kwargs
    products.add_to_lowerings(lambda: True)
    assert lowerings[aten.addmm.default](Tensor(512), *GOOD, **given) == given


@pytest.mark.usefixtures("on_gpu")
def test_nothing_changes_where_the_option_does_not_name_it(lowerings: dict[Any, Any]) -> None:
    for operator in (aten.mm.default, aten.addmm.default, aten.cat.default):
        lowerings[operator] = lambda *_, **__: "as ever"
    products.add_to_lowerings(lambda: False)
    assert lowerings[aten.mm.default](*GOOD) == "as ever"
    assert lowerings[aten.addmm.default](Tensor(512), *GOOD) == "as ever"
    assert lowerings[aten.cat.default]([Tensor(8192, 63), Tensor(8192, 256)], 1) == "as ever"
