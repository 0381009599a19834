"""The kernels of `benchmarks/three_tf32.py` compile for a GPU, which need not be there, and their answers are right."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COMPILE = """
import three_tf32
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TILE = {"tile_m": 128, "tile_n": 64, "tile_k": 32, "group": 8}
PARTS = dict(LENGTH=256, PADDED=256, HALF=0x1000, KEPT=-0x2000, BLOCK_M=128, BLOCK_N=64, BLOCK_K=32, GROUP_M=8)
for kernel, constants in (
    (three_tf32.multiply, {"length": 256, "precision": "tf32x3", **TILE}), (three_tf32.load_product(True), PARTS)
):
    names = kernel.arg_names
    pointers = {name for name in names if name.endswith("pointer") or name in ("A", "BIG", "SMALL", "C")}
    types = {name: "*fp32" if name in pointers else "i32" for name in names}
    source = ASTSource(
        kernel, types | dict.fromkeys(constants, "constexpr"),
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in pointers},
    )
    compiled = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 4, "num_stages": 3})
    print(compiled.asm["ptx"].count("tf32.tf32"), compiled.asm["ttgir"].count("ttng.warp_group_dot "))
"""
RUN = """
import three_tf32
import torch

torch.manual_seed(0)
for turned in (True, False):
    a, w = torch.randn(256, 64), torch.randn(128, 64)
    b = w.T if turned else w.T.contiguous()
    for way in ("tf32x3", "parts"):
        for launch, tile in three_tf32.list_launches(a, b, c := torch.full((256, 128), torch.nan), way)[-1:]:
            launch()
            print(three_tf32.error_of(c, a.double() @ b.double()) < 1e-6)
# no size is a multiple of the tile's
a, w = torch.randn(131, 45), torch.nn.functional.pad(torch.randn(67, 45), (0, 19))
big, c = three_tf32.round_to_tf32(w), torch.full((131, 67), torch.nan)
three_tf32.load_product(False)[(9,)](a, big, w - big, c, 131, 67, 45, 64, 0x1000, -0x2000, 64, 32, 32, 2)
print(three_tf32.error_of(c, a.double() @ w[:, :45].T.double()) < 1e-6)
# a weight that is not a number, or an infinite one
w[3, 5], a[0, 0], a[1, 1] = torch.nan, torch.inf, torch.nan
big = three_tf32.round_to_tf32(w)
three_tf32.load_product(False)[(9,)](a, big, w - big, c, 131, 67, 45, 64, 0x1000, -0x2000, 64, 32, 32, 2)
print(c[:, 3].isnan().all().item(), c[0].isnan().all().item(), c[1].isnan().all().item())
print(c[2:, 4:].isfinite().all().item())
"""


def run(code: str, folder: Path, *, interpret: str) -> list[str]:
    """Return the lines that some code prints in a process of its own, as Triton is set up once for a process."""
    changed = {
        "TRITON_INTERPRET": interpret,
        "TRITON_CACHE_DIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder),
        "PYTHONPATH": str(BENCHMARKS),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **changed}, text=True, check=True, stdout=subprocess.PIPE
    )
    return done.stdout.split()


def test_kernels_compile_for_tensor_cores(tmp_path: Path) -> None:
    found = list(map(int, run(COMPILE, tmp_path, interpret="0")))
    assert len(found) == 4
    assert all(count >= 3 for count in found), "three products each, on the tensor cores of a Hopper GPU"


def test_kernels_multiply_as_exactly_as_float32(tmp_path: Path) -> None:
    assert run(RUN, tmp_path, interpret="1") == ["True"] * 9
