"""Triton compiles kernels of few rows for a GPU, and the code reads 16 bytes at a time."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from few_rows_compile import compile_kernels
from torchwise.compile.few_rows import attention
from torchwise.compile.few_rows.forms import Form, Work, list_forms

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Triton has wheels for Linux")

ROW = Work(1, 2048, (2048, 512, 512), 2)
CASES: dict[str, tuple[Work, str, str]] = {
    "bfloat16": (ROW, "bf16", "bf16"),
    "gate": (Work(1, 2048, (512, 512), 2, "silu"), "bf16", "bf16"),
    "long": (Work(1, 65536, (64,), 2), "fp16", "fp16"),
    "float32": (Work(2, 2048, (64,), 4), "fp32", "fp32"),
    "8 bits": (Work(1, 2048, (64,), 1), "bf16", "i8"),
    "float8": (Work(1, 2048, (64, 64), 1, "relu"), "fp16", "fp8e4nv"),
    "eight rows": (Work(8, 2048, (64,), 2), "bf16", "bf16"),
    "odd sizes": (Work(3, 1000, (63,), 2), "bf16", "bf16"),
    "activation": (Work(2, 256, (256,), 4, "gelu"), "fp32", "fp32"),
    "norm, gate": (Work(1, 2048, (512, 512), 1, "silu"), "bf16", "i8"),
    "norm, residual": (Work(1, 2048, (2048,), 2), "bf16", "bf16"),
    "norm, several rows": (Work(3, 1000, (512,), 2), "fp16", "fp16"),
    "turned": (Work(1, 768, (2304,), 2, is_turned=True), "bf16", "bf16"),
    "turned, in float32": (Work(2, 3072, (768,), 4, is_turned=True), "fp32", "fp32"),
    "turned, 8 bits": (Work(1, 768, (3072,), 1, is_turned=True), "bf16", "i8"),
    "tensor cores": (Work(32, 1024, (3072, 256), 4), "fp32", "fp32"),
    "tensor cores, norm, gate": (Work(64, 2048, (512, 512), 1, "silu", row_bytes=2), "bf16", "i8"),
    "tensor cores, turned": (Work(16, 512, (512,), 4, "relu", is_turned=True), "fp32", "fp32"),
    "turned, odd sizes": (Work(1, 1000, (1016,), 2, is_turned=True), "bf16", "bf16"),
}


def describe(name: str, work: Work, form: Form, dtype: str, kept: str) -> dict[str, Any]:
    count = len(work.sizes)
    constants = {
        "COUNT": count,
        "ROWS": work.rows,
        "SIZES": work.sizes,
        "LENGTH": work.length,
        "HAS_SCALES": kept != dtype,
        "HAS_BIASES": True,
        "HAS_GAIN": "norm" in name,
        "HAS_ADDED": "residual" in name,
        "EPSILON": 1e-5 if "norm" in name else None,
        "ACTIVATION": work.activation,
        "BLOCK_ROWS": getattr(form, "rows", work.block_rows),
        "BLOCK": form.block,
        "WIDTH": work.find_width(form),
        "IS_TURNED": work.is_turned,
        "IS_UNROLLED": work.is_unrolled(form),
        "STAGES": getattr(form, "stages", 0),
        "PARTS": form.warps,
        "STARTS_EARLY": True,
        "HAS_PTX": True,
    }
    types = {
        "rows": f"*{dtype}",
        "weights": [f"*{kept}"] * count,
        "scales": [f"*{dtype}"] * count,
        "biases": [f"*{dtype}"] * count,
        "gain": f"*{dtype}",
        "added": f"*{dtype}",
        "outputs": [f"*{dtype}"] * (1 if work.activation else count),
    }
    return {"name": "kernel.multiply", "types": types, "constants": constants, "warps": form.warps}


ATTENTION: dict[str, tuple[attention.Work, str]] = {
    "a cache and its own key": (attention.Work(8, 4, 64, 64, (512, 1), ("keep", "")), "bf16"),
    "an added mask": (attention.Work(32, 1, 128, 128, (4096,), ("add",)), "fp16"),
    "float32": (attention.Work(8, 4, 64, 64, (500,), ("",)), "fp32"),
    "odd sizes": (attention.Work(8, 3, 80, 48, (77,), ("keep",)), "bf16"),
}


def describe_attention(work: attention.Work, form: attention.Form, dtype: str) -> dict[str, Any]:
    count, parts = len(work.lengths), work.count_parts(form)
    types = {
        "query": f"*{dtype}",
        "keys": [f"*{dtype}"] * count,
        "values": [f"*{dtype}"] * count,
        "masks": ["*u8" if kind == "keep" else f"*{dtype}" for kind in work.kinds],
        "output": f"*{dtype}",
        "mixed_parts": "*fp32",
        "sums": "*fp32",
        "scale": "fp32",
    }
    constants = {
        "QUERY_STRIDES": (work.rows * work.features, 0, work.features),
        "KEY_STRIDES": [(length * work.features, 0, work.features) for length in work.lengths],
        "VALUE_STRIDES": [(length * work.outputs, 0, work.outputs) for length in work.lengths],
        "MASK_STRIDES": [(0, 0, 0, 1)] * count,
        "COUNT": count,
        "LENGTHS": work.lengths,
        "STEPS": [min(form.tiles, -(-length // form.block)) for length in work.lengths],
        "SECOND": 1,
        "ROWS": work.rows,
        "INNER": work.features,
        "OUTER": work.outputs,
        "KINDS": work.kinds,
        "BLOCK_ROWS": attention.MAX_ROWS,
        "BLOCK_INNER": 1 << (work.features - 1).bit_length(),
        "BLOCK_OUTER": 1 << (work.outputs - 1).bit_length(),
        "BLOCK": form.block,
        "PARTS": parts,
        "TILES": form.tiles,
        "STARTS_EARLY": True,
    }
    return {"name": "attention_kernel.attend", "types": types, "constants": constants, "warps": form.warps}


def test_attention_compiles_and_reads_16_bytes_at_a_time(tmp_path: Path) -> None:
    named = {
        f"{name}, {form}": describe_attention(work, form, dtype)
        for name, (work, dtype) in ATTENTION.items()
        for form in (attention.list_forms(work)[0], attention.list_forms(work)[-1])
    }
    for name, text in zip(named, compile_kernels([*named.values()], tmp_path), strict=True):
        assert "ld.global.v4.b32" in text or "cp.async.cg.shared.global" in text, name
        before, after = text.split("griddepcontrol.wait", 1)
        assert not re.search(r"ld\.global|st\.global", before), f"{name}: it reads nothing before it has waited"
        assert "ld.local" not in after, f"{name}: no register goes to memory"


def test_likely_forms_compile_and_read_16_bytes_at_a_time(tmp_path: Path) -> None:
    kernels = [describe(name, work, list_forms(work)[0], *types) for name, (work, *types) in CASES.items()]
    for (name, (_, *types)), text in zip(CASES.items(), compile_kernels(kernels, tmp_path), strict=True):
        if "tensor cores" in name:
            assert "mma.sync" in text, name
            others = {"ca"} if types[-1] == "i8" else set()  # Triton reads four bytes of those at a time
            assert set(re.findall(r"cp\.async\.(\w+)\.shared", text)) == {"cg", *others}, f"{name}: cg is of 16 bytes"
        else:
            loads = re.findall(r"ld\.global\S*evict_first\S*?\.(v\d\.b32|b\d+)", text)
            assert loads, name
            assert set(loads) == {"v4.b32"}, name
        assert "griddepcontrol.wait" in text, name
        before, after = text.split("griddepcontrol.wait", 1)
        assert not re.search(r"ld\.global|st\.global", before), f"{name}: it reads nothing before it has waited"
        assert "ld.local" not in after, f"{name}: no register goes to memory"


@pytest.mark.nightly
def test_all_forms_compile(tmp_path: Path) -> None:
    kernels = [
        describe(name, work, form, *types) for name, (work, *types) in CASES.items() for form in list_forms(work)
    ]
    assert all(compile_kernels(kernels, tmp_path))
