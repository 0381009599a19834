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

SIZES = {"length": 256, "tile_m": 128, "tile_n": 64, "tile_k": 32, "group": 8}
for kernel, more in ((three_tf32.multiply, {"precision": "tf32x3"}), (three_tf32.multiply_split, {})):
    constants, names = {**SIZES, **more}, kernel.arg_names
    types = {name: "*fp32" if name.endswith("pointer") else "i32" for name in names}
    source = ASTSource(
        kernel, types | dict.fromkeys(constants, "constexpr"),
        {(names.index(name),): value for name, value in constants.items()},
    )
    ptx = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 4}).asm["ptx"]
    print(ptx.count("tf32.tf32"))
"""
RUN = """
import three_tf32
import torch

torch.manual_seed(0)
for turned in (True, False):
    a, w = torch.randn(256, 64), torch.randn(128, 64)
    b = w.T if turned else w.T.contiguous()
    big, exact = three_tf32.round_to_tf32(b), a.double() @ b.double()
    for way in (three_tf32.multiply, three_tf32.multiply_split):
        c = torch.full((256, 128), torch.nan)
        is_split = way is three_tf32.multiply_split
        given = (a, big, b - big) if is_split else (a, b)
        more = () if is_split else ("tf32x3",)
        way[(256 // 64 * (128 // 32),)](*given, c, 256, 128, 64, *b.stride(), *more, 64, 32, 32, 8)
        print(three_tf32.error_of(c, exact) < 1e-6)
"""


def run(code: str, folder: Path, *, interpret: str) -> list[str]:
    """Return the lines that some code prints in a process of its own, as Triton is set up once for a process."""
    changed = {"TRITON_INTERPRET": interpret, "TRITON_CACHE_DIR": str(folder), "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **changed}, text=True, check=True, stdout=subprocess.PIPE
    )
    return done.stdout.split()


def test_kernels_compile_for_tensor_cores(tmp_path: Path) -> None:
    found = run(COMPILE, tmp_path, interpret="0")
    assert len(found) == 2
    assert all(int(count) >= 3 for count in found), "three products each"


def test_kernels_multiply_as_exactly_as_float32(tmp_path: Path) -> None:
    assert run(RUN, tmp_path, interpret="1") == ["True"] * 4
