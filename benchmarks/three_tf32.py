"""Float32 products on a GPU: three TF32 products in a Triton kernel beside cuBLAS in float32.

Each size is timed with several tiles, of which the two fastest are printed. "turned" is a weight of `nn.Linear`, whose
rows are the columns of the product. Errors are against float64, over the norm of the result. One TF32 product, which is
not as exact, shows the rest to gain. Inductor's kernels for the option `max_autotune_gemm_backends` with TF32X3 do as
"tf32x3". In "split" the two parts of the weights are computed before, and only those of the rows in the kernel.

Run it: python benchmarks/three_tf32.py
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch
import triton
import triton.language as tl

SIZES = (
    (262_144, 256, 256),
    (262_144, 256, 64),
    (4096, 4096, 4096),
    (8192, 1024, 1024),
    (2048, 2048, 512),
    (512, 512, 512),
)
"""Rows, columns and the length of the sums."""
TILES = (
    (128, 128, 32, 4, 3),
    (128, 128, 32, 8, 3),
    (128, 64, 32, 4, 3),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 3),
    (64, 64, 32, 4, 3),
    (128, 128, 16, 8, 4),
    (128, 256, 32, 8, 2),
    (256, 64, 32, 8, 3),
    (128, 128, 64, 8, 2),
)
"""The tile in rows, columns and sums, warps and stages."""
SPLIT = "split"
WAYS = ("tf32x3", SPLIT, "tf32")
LOW_BITS, HALF = 0x1FFF, 0x1000
"""The bits of a float32 number that TF32 has not, and half of the last one that it has."""
CHECKED = 256
"""Rows whose error is measured."""

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


@triton.jit
def multiply_split(
    a_pointer,
    big_pointer,
    small_pointer,
    c_pointer,
    rows,
    columns,
    length: tl.constexpr,
    b_row,
    b_column,
    tile_m: tl.constexpr,
    tile_n: tl.constexpr,
    tile_k: tl.constexpr,
    group: tl.constexpr,
):
    """Multiply rows with columns that are given in two parts, the larger one rounded to TF32."""
    at_m, at_n = find_tile(rows, columns, tile_m, tile_n, group)
    at_k = tl.arange(0, tile_k)
    a = a_pointer + at_m[:, None] * length + at_k[None, :]
    at_b = at_k[:, None] * b_row + at_n[None, :] * b_column
    total = tl.zeros((tile_m, tile_n), tl.float32)
    for _ in range(0, length, tile_k):
        x = tl.load(a)
        big = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        big_b = tl.load(big_pointer + at_b)
        total = tl.dot(x - big, big_b, total, input_precision="tf32")
        total = tl.dot(big, tl.load(small_pointer + at_b), total, input_precision="tf32")
        total = tl.dot(big, big_b, total, input_precision="tf32")
        a += tile_k
        at_b += tile_k * b_row
    tl.store(c_pointer + at_m[:, None] * columns + at_n[None, :], total)


def round_to_tf32(x: torch.Tensor) -> torch.Tensor:
    """Return float32 numbers with the bits of TF32 alone."""
    return ((x.view(torch.int32) + HALF) & ~LOW_BITS).view(torch.float32)


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    for (rows, columns, length), turned in itertools.product(SIZES, (True, False)):
        a, w = torch.randn(rows, length, device="cuda"), torch.randn(columns, length, device="cuda") / length**0.5
        b = w.T if turned else w.T.contiguous()
        exact, flops = a[:CHECKED].double() @ w.double().T, 2 * rows * columns * length
        library_ms = time_ms(lambda a=a, b=b: a @ b)
        print(
            f"{rows}x{columns}x{length} turned={turned} cublas {library_ms:.4f} ms {flops / library_ms / 1e9:.0f} TF "
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
    (rows, length), columns = a.shape, b.shape[1]
    found = list[tuple[float, float, tuple[int, ...]]]()
    c, big = torch.empty(rows, columns, device="cuda"), round_to_tf32(b)
    sizes = (c, rows, columns, length, *b.stride())
    for tile in TILES:
        tile_m, tile_n, tile_k, warps, stages = tile
        if rows % tile_m or columns % tile_n or length % tile_k:
            continue
        kernel = multiply_split if way == SPLIT else multiply
        given = (a, big, b - big, *sizes) if way == SPLIT else (a, b, *sizes, way)
        launch = functools.partial(
            kernel[(rows // tile_m * (columns // tile_n),)],
            *given, tile_m, tile_n, tile_k, 8, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        try:
            found.append((time_ms(launch), error_of(c[:CHECKED], exact), tile))
        except triton.runtime.errors.OutOfResources:  # the parts of a large tile take more memory than there is
            continue
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
