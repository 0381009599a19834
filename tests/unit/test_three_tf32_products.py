"""Which products of a graph are computed from parts of their columns, and that the parts are those of the columns."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
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
SELECT = products._select


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Have a Hopper GPU, and return its settings: the program does not allow TF32."""
    settings = SimpleNamespace(fp32_precision="ieee")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
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


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 9), False), ((9, 0), True), ((10, 3), False), ((12, 0), False)]
)
@pytest.mark.usefixtures("on_gpu")
def test_gpus_on_which_it_was_not_measured_are_left(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert products.is_suited(*GOOD) == expected


@pytest.mark.usefixtures("on_gpu")
def test_amd_s_gpus_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
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
    monkeypatch.setattr(products, "_is_possible", lambda _: True)
    monkeypatch.setattr(products, "LEAST_ROWS", 1)
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
        both, returned, added = (torch.cat([h, x, one], 1) for one in (y, y + 1, y + 2))
        scaled = torch.addmm(added[:, :32], x, x.T @ y @ y.T[:, :32], alpha=2)
        answers = second(both), second(returned), second(added), torch.exp(y) @ first.weight[:, :25].T, x @ x.T
        return *answers, returned, added + 1, scaled

    x, y = torch.randn(64, 20), torch.randn(64, 25)
    with torch.no_grad():
        found, expected = torch.compile(call)(x, y), call(x, y)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert [one.stride() for one in found] == [one.stride() for one in expected]
    rows = [one[0] for one in parts]
    assert ((64, 48), (48, 1)) in rows, "a concatenation with zeros"
    assert ((64, 80), (80, 1)) in rows, "another one"
    assert ((64, 32), (32, 1)) in rows, "rows that are computed anyway"
    assert rows.count(((64, 69), (69, 1))) == 2, "those that something else reads"
    assert ((64, 20), (20, 1)) in rows, "an input as it is"
    assert {one[1] for one in parts} >= {((24, 64), (64, 1)), ((32, 96), (96, 1)), ((64, 32), (32, 1))}
    assert all(one[1] == one[2] for one in parts)


@pytest.mark.slow
def test_a_product_that_has_none_of_these_kernels_is_pytorch_s(
    parts: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch says no to a kernel by not adding it to the choices."""
    asked: list[Any] = []
    template = SimpleNamespace(maybe_append_choice=lambda *_, **given: asked.append(given))
    monkeypatch.setattr(products, "_select", SELECT)
    monkeypatch.setattr(products, "_make_template", lambda: template)
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(64, 32), torch.randn(48, 64)

    def call(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return layer(x), x @ x.T

    with torch.no_grad():
        torch.testing.assert_close(torch.compile(call)(x), call(x))
    assert len(asked) == 2 * len(products.TILES)
    assert not parts


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


@pytest.mark.parametrize(
    ("tensors", "changed"),
    [
        ((Tensor(2047, 63), Tensor(2047, 256)), {}),
        ((Tensor(8192, 64), Tensor(8192, 256)), {}),
        ((Tensor(8192, 63), Tensor(8192, 256, dtype=torch.bfloat16)), {}),
        ((Tensor(8192, 63, device="cpu"), Tensor(8192, 256, device="cpu")), {}),
        ((Tensor(8192, 63), Tensor(8192, 256)), {"dim": 0}),
        ((Tensor(SYMBOL, 63), Tensor(SYMBOL, 256)), {}),
    ],
)
@pytest.mark.usefixtures("on_gpu")
def test_other_concatenations_are_left_as_they_are(
    lowerings: dict[Any, Any], monkeypatch: pytest.MonkeyPatch, tensors: tuple[Tensor, ...], changed: dict[str, int]
) -> None:
    seen: list[Any] = []
    lowerings[aten.cat.default] = lambda *args, **kwargs: seen.append((args, kwargs))
    monkeypatch.setattr(products, "_is_for_products", lambda: True)
    products.add_to_lowerings(lambda: True)
    given = {"dim": 1, **changed}
    lowerings[aten.cat.default](tensors, **given)
    lowerings[aten.cat.default](tensors, *given.values())
    lowerings[aten.cat.default](tensors)
    assert seen == [((tensors,), given), ((tensors, *given.values()), {}), ((tensors,), {})]


CODE = """
import torch
import inductor_without_gpu as gpu
from torchwise.compile import three_tf32
from torchwise.compile.three_tf32 import products

three_tf32.add_to_templates()
products.LEAST_ROWS, products.LEAST_RESULTS = 64, 64 * 64  # the interpreter is slow
torch.manual_seed(0)
randn, relu = torch.randn, torch.relu
OPTIONS = {three_tf32.OPTION: "ATEN,TRITON,TF32X3", "benchmark_epilogue_fusion": True}  # as by default


def concatenate(x, y, w, v):
    angles = torch.cat([x, torch.sin(y)], 1)
    return relu(torch.cat([relu(angles @ w.t()), angles], -1) @ v.t())


def share(x, w, v, u):
    h = relu(x @ w)
    return torch.cat([h @ v.t(), torch.narrow(h, 1, 0, 64) @ u.t()], 1)


wide = randn(128, 96), randn(96, 144)
for name, call, inputs in (
    ("linear", lambda x, w, b: relu(torch.addmm(b, x, w.t())), (randn(128, 50), randn(96, 50), randn(96))),
    ("columns side by side", lambda x, w: x @ w, (randn(128, 64), randn(64, 96))),
    ("computed columns", lambda a, b: (a * 2) @ (b + 1), (randn(130, 67), randn(67, 72))),
    ("every other number", torch.matmul, (wide[0][:, ::2], wide[1][::2, ::2])),
    ("turned rows", lambda x, w: relu(x.t()) @ w.t(), (randn(64, 128), randn(96, 64))),
    ("a gradient", lambda g, x: g.t() @ x, (randn(130, 96), randn(130, 70))),
    ("concatenations", concatenate, (randn(128, 20), randn(128, 33), randn(72, 53), randn(80, 125))),
    ("two products of one tensor", share, (randn(128, 64), randn(64, 96), randn(70, 96), randn(80, 64))),
):
    code = gpu.generate(lambda *given: (call(*given),), inputs, OPTIONS)
    (found,) = gpu.run(code, inputs)
    exact = call(*(one.double() for one in inputs))
    error = float((found - exact).norm() / exact.norm())
    print(name, "ok" if error < 3e-7 and "BIG + at_b" in code else f"{error} {code}", sep="|")
"""


@pytest.mark.slow
def test_inductor_s_code_for_a_gpu_computes_the_right_products(tmp_path: Path) -> None:
    changed = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    changed |= {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env={**os.environ, **changed}, text=True, check=True, stdout=subprocess.PIPE
    )
    found = [line.split("|") for line in done.stdout.splitlines()]
    assert [name for name, said in found if said != "ok"] == [], done.stdout
    assert len(found) == 8


@pytest.mark.usefixtures("on_gpu")
def test_nothing_changes_where_the_option_does_not_name_it(lowerings: dict[Any, Any]) -> None:
    for operator in (aten.mm.default, aten.addmm.default, aten.cat.default):
        lowerings[operator] = lambda *_, **__: "as ever"
    products.add_to_lowerings(lambda: False)
    assert lowerings[aten.mm.default](*GOOD) == "as ever"
    assert lowerings[aten.addmm.default](Tensor(512), *GOOD) == "as ever"
    assert lowerings[aten.cat.default]([Tensor(8192, 63), Tensor(8192, 256)], 1) == "as ever"
