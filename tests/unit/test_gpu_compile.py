"""Triton compiles the kernels of row programs for a GPU, which need not be there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from row_calls import compile_call
from row_cases import CASES
from torchwise.compile import programs
from torchwise.compile.programs.gpu import shares
from torchwise.compile.programs.gpu.forms import Form, list_forms
from torchwise.compile.programs.gpu.launch import Kernel
from torchwise.compile.programs.gpu.target import GpuTarget
from torchwise.plan import Plan
from triton_compile import compile_kernels

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton has wheels for Linux")

TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.bool: "*i1",
}


COMPILED = ("state space", "recommender", "particles")
"""Programs with loops, products, tables and reductions."""
MORE = ("neural ODE", "GRU", "recurrent", "motion", "statistics", "PINN")


def write_kernels(call: Callable[..., Any], inputs: tuple[torch.Tensor, ...]) -> list[dict[str, Any]]:
    """Return the kernels of a program, which the operators themselves answer here."""
    made: list[Kernel] = []

    def keep(self: Kernel, original: Callable[..., Any]) -> Callable[..., Any]:
        made.append(self)
        return lambda *args: original(*args)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(programs, "_find_target", lambda _inputs, draws: GpuTarget(torch.device("cpu"), draws=draws))
        patch.setattr(Kernel, "bind", keep)
        compile_call(call, *inputs, plan=Plan(backend="row_programs"))(*inputs)
    torch.compiler.reset()
    return [describe(one, choose_form(one)) for one in made]


def choose_form(kernel: Kernel) -> Form:
    """Return the likeliest form of a kernel, with products of a block of rows if it has any."""
    forms = list_forms(kernel.work, allows_tf32=False)
    return next((one for one in forms if one.uses_dot), forms[0])


def describe(kernel: Kernel, form: Form) -> dict[str, Any]:
    """Return a kernel for the compiler."""
    text = kernel._write(form.most, form.uses_dot, form.cluster)
    types = [TYPES[dtype] for _, _, dtype in (*kernel._wanted, *kernel._outputs)]
    return {
        "source": text.source,
        "types": [*types, *["*fp64"] * len(text.tables), *["*i64"] * bool(text.draws), *["*fp32"] * bool(text.work)],
        "block": form.block,
        "warps": form.warps,
        "precision": form.precision,
    }


def write_programs(names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the kernels of some programs."""
    cases = [(CASES[name].call, CASES[name].inputs(torch.Generator().manual_seed(0))) for name in names]
    return [one for call, inputs in cases for one in write_kernels(call, inputs)]


@pytest.mark.nightly
def test_kernels_of_small_programs_compile(tmp_path: Path) -> None:
    compile_kernels(write_programs(MORE), tmp_path)


def test_kernels_of_clusters_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.choose_form", lambda _: Form(4, 4, 128, "ieee", 8))
    monkeypatch.setattr(shares, "MIN_SHARED", 1)
    inputs = CASES["neural ODE"].inputs(torch.Generator().manual_seed(0))
    (one,) = write_kernels(CASES["neural ODE"].call, (inputs[0][:3].clone(), *inputs[1:]))
    assert "barrier.cluster" in one["source"]
    compile_kernels([one], tmp_path)


def test_clusters_of_16_rows_multiply_as_they_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton 3.6 makes the sum of rows times a matrix a product in TF32, if there are 16 of both at least.

    So such products are written as those of matrices, with their precision.
    """
    monkeypatch.setattr(shares, "MIN_SHARED", 1)
    inputs = CASES["neural ODE"].inputs(torch.Generator().manual_seed(0))
    forms = iter(Form(16, 4, 128, precision, 2) for precision in ("ieee", "tf32x3"))
    monkeypatch.setattr(f"{__name__}.choose_form", lambda _: next(forms))
    kernels = [one for _ in range(2) for one in write_kernels(CASES["neural ODE"].call, inputs)]
    for text, uses_units in zip(compile_kernels(kernels, tmp_path), (False, True), strict=True):
        assert "barrier.cluster" in text
        assert ("mma" in text) is uses_units


def carry_signs(x: torch.Tensor) -> torch.Tensor:
    """A state that was of integers in a loop."""
    state = x
    for _ in range(4):
        state = torch.sign(state + 0.1 * x)
    return torch.exp(state)


def join_numbers(x: torch.Tensor) -> torch.Tensor:
    """Equal numbers beside others."""
    return torch.softmax(torch.cat([x * 2, x.new_ones(len(x), 3)], 1), 1)


def carry_doubles(x: torch.Tensor) -> torch.Tensor:
    """A state, a float64 constant and noise."""
    for _ in range(4):
        x = x + torch.randn(x.shape) * torch.rand(len(x), 1)
        x = torch.tanh(x * torch.full((), 0.1, dtype=torch.float64)) * 3
    return x


def write_others(dtype: torch.dtype) -> list[dict[str, Any]]:
    """Return three kernels whose types change inside."""
    x = torch.randn(20, 6).to(dtype)
    made = [one for call in (carry_signs, join_numbers, carry_doubles) for one in write_kernels(call, (x,))]
    assert len(made) == 3
    return made


def test_kernels_of_small_programs_and_of_bfloat16_compile(tmp_path: Path) -> None:
    compile_kernels([*write_programs(COMPILED), *write_others(torch.bfloat16)], tmp_path)  # in one process


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_kernels_of_other_types_compile(dtype: torch.dtype, tmp_path: Path) -> None:
    compile_kernels(write_others(dtype), tmp_path)


def test_what_triton_refuses_is_told(tmp_path: Path) -> None:
    (one,) = write_kernels(carry_signs, (torch.randn(20, 6),))
    one["block"] = 3
    with pytest.raises(subprocess.CalledProcessError):
        compile_kernels([one], tmp_path)
