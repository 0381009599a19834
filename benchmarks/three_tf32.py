"""Float32 products on a GPU: three TF32 products in a Triton kernel beside cuBLAS in float32.

Each size is timed with several tiles, of which the two fastest are printed. Weights lie as those of `nn.Linear`, whose
rows are the columns of the product. Errors are against float64, over the norm of the result. One TF32 product, which is
not as exact, shows the rest to gain. With TF32X3 in its option `max_autotune_gemm_backends`, Inductor writes kernels
that do as "tf32x3", or for products of many rows "parts", for which the two parts of the weights are computed before.

Run it: python benchmarks/three_tf32.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import torch
import triton
import triton.language as tl

from torchwise.compile.programs.gpu.launch import load_kernel
from torchwise.compile.three_tf32 import products

SIZES = ((262_144, 256, 256), (4096, 4096, 4096), (8192, 1024, 1024), (2048, 2048, 512), (512, 512, 512))
"""Rows, columns and the length of the sums."""
TILES = (
    (128, 64, 32, 4, 3),
    (128, 64, 32, 4, 4),
    (128, 128, 32, 8, 3),
    (128, 128, 32, 4, 3),
    (64, 128, 32, 4, 3),
    (64, 64, 32, 4, 3),
)
"""The tile in rows, columns and sums, warps and stages."""
PARTS = "parts"
WAYS = ("tf32x3", PARTS, "tf32")
CHECKED = 256
"""Rows whose error is measured."""
HEAD = """
import triton
import triton.language as tl

@triton.jit
def kernel(
    A, BIG, SMALL, C, ROW_COUNT, COLUMN_COUNT, LENGTH: tl.constexpr, PADDED: tl.constexpr, HALF: tl.constexpr,
    KEPT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):
    INDEX_DTYPE: tl.constexpr = tl.int32
"""

# Triton takes no other annotations of arguments than its own.


@triton.jit
def find_tile(rows, columns, tile_m: tl.constexpr, tile_n: tl.constexpr, group: tl.constexpr):
    """Return the rows and the columns of a program. Those that run side by side share many of them."""
    program = tl.program_id(0)
    across = columns // tile_n
    width = group * across
    first = program // width * group
    in_group = min(rows // tile_m - first, group)
    at_m = (first + program % width % in_group) * tile_m + tl.arange(0, tile_m)
    at_n = program % width // in_group * tile_n + tl.arange(0, tile_n)
    return at_m, at_n


@triton.jit
def multiply(
    a_pointer,
    b_pointer,
    c_pointer,
    rows,
    columns,
    length: tl.constexpr,
    b_row,
    b_column,
    precision: tl.constexpr,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
    group: tl.constexpr,
):
    """Multiply rows with columns. All sizes are multiples of the tile's."""
    at_m, at_n = find_tile(rows, columns, tile_m, tile_n, group)
    at_k = tl.arange(0, tile_k)
    a = a_pointer + at_m[:, None] * length + at_k[None, :]
    b = b_pointer + at_k[:, None] * b_row + at_n[None, :] * b_column
    total = tl.zeros((tile_m, tile_n), tl.float32)
    for _ in range(0, length, tile_k):
        total += tl.dot(tl.load(a), tl.load(b), input_precision=precision)
        a += tile_k
        b += tile_k * b_row
    tl.store(c_pointer + at_m[:, None] * columns + at_n[None, :], total)


@functools.cache
def load_product(is_even: bool) -> Any:
    """Return the kernel that Torchwise has Inductor write for a product of many rows, without anything after it.

    Args:
        is_even: whether the length of the sums is a multiple of the tile's.
    """
    sizes = {("A", 0): "ROW_COUNT", ("A", 1): "LENGTH", ("BIG", 0): "COLUMN_COUNT"}
    strides = {("A", 0): "LENGTH", ("A", 1): "1", ("BIG", 0): "PADDED", ("BIG", 1): "1"}
    text = jinja2.Template(Path(products.__file__).with_name("product.jinja").read_text()).render(
        def_kernel=lambda *_: HEAD,
        size=lambda *which: sizes[which],
        stride=lambda *which: strides[which],
        store_output=lambda *_, **__: "tl.store(C + rows * COLUMN_COUNT + columns, acc, mask=is_inside)",
        EVEN_K=is_even,
    )
    return load_kernel(text)


def round_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Return float32 numbers with the bits of TF32 alone."""
    return ((x.view(torch.int32) + products.HALF) & ~products.LOW_BITS).view(torch.float32)


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    for rows, columns, length in SIZES:
        a, w = torch.randn(rows, length, device="cuda"), torch.randn(columns, length, device="cuda") / length**0.5
        b = w.T
        exact, flops = a[:CHECKED].double() @ w.double().T, 2 * rows * columns * length
        library_ms = time_ms(lambda a=a, b=b: a @ b)
        print(
            f"{rows}x{columns}x{length} cublas {library_ms:.4f} ms {flops / library_ms / 1e9:.0f} TF "
            f"err {error_of(a[:CHECKED] @ b, exact):.1e}",
            flush=True,
        )
        for way in WAYS:
            for took_ms, error, tile in sorted(time_tiles(a, b, exact, way))[:2]:
                print(
                    f"    {way} {took_ms:.4f} ms {flops / took_ms / 1e9:.0f} TF  {library_ms / took_ms:.2f}x "
                    f"err {error:.1e} {tile}",
                    flush=True,
                )


def time_tiles(
    a: torch.Tensor, b: torch.Tensor, exact: torch.Tensor, way: str
) -> list[tuple[float, float, tuple[int, ...]]]:
    """Return milliseconds, error and tile of each kernel."""
    found = list[tuple[float, float, tuple[int, ...]]]()
    c = torch.empty(a.shape[0], b.shape[1], device="cuda")
    for launch, tile in list_launches(a, b, c, way):
        try:
            found.append((time_ms(launch), error_of(c[:CHECKED], exact), tile))
        except triton.runtime.errors.OutOfResources:  # the parts of a large tile take more memory than there is
            continue
    return found


def list_launches(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, way: str
) -> list[tuple[Callable[[], object], tuple[int, ...]]]:
    """Return what launches each kernel that writes the product of `a` and `b` to `c`, with its tile."""
    (rows, length), columns = a.shape, b.shape[1]
    found = list[tuple[Callable[[], object], tuple[int, ...]]]()
    if way == PARTS:
        parts = b.T.contiguous()
        big = round_to_tf32(parts)
        given: tuple[Any, ...] = (a, big, parts - big, c, rows, columns, length, length)
        for tile_m, tile_n, warps, stages in products.TILES:
            most = triton.cdiv(rows, tile_m) * triton.cdiv(columns, tile_n)
            more = (products.HALF, ~products.LOW_BITS, tile_m, tile_n, products.SUMMED, products.NEIGHBOURS)
            launch = functools.partial(
                load_product(length % products.SUMMED == 0)[(most,)], *given, *more, num_warps=warps, num_stages=stages
            )
            found.append((launch, (tile_m, tile_n, products.SUMMED, warps, stages)))
        return found
    for tile_m, tile_n, tile_k, warps, stages in TILES:
        if rows % tile_m or columns % tile_n or length % tile_k:
            continue
        launch = functools.partial(
            multiply[(rows // tile_m * (columns // tile_n),)],
            *(a, b, c, rows, columns, length, *b.stride(), way, tile_m, tile_n, tile_k, 8),
            num_warps=warps, num_stages=stages,
        )  # fmt: skip
        found.append((launch, (tile_m, tile_n, tile_k, warps, stages)))
    return found


def time_ms(call: Callable[[], object]) -> float:
    """Return the mean milliseconds of a call."""
    took_ms: float = triton.testing.do_bench(call, warmup=5, rep=25)
    return took_ms


def error_of(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the norm of the error over that of the result."""
    return float((found.double() - exact).norm() / exact.norm())


if __name__ == "__main__":
    main()
