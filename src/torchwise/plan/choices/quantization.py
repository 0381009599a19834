"""Weights and activations of fewer bits in linear layers. Which layers have them is part of the plan."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from torchwise.plan.choice import SKIP_MARK, Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

WHERE = "torchwise.compile.transforms.quantization"
NAMES = ("int8_dynamic", "int8_weights", "int4_weights", "fp8_weights", "fp8_dynamic", "fp8_per_tensor")
ON_FLOAT8 = {"devices": ("cuda",), "required_traits": (Trait.LINEAR_LAYERS, Trait.TOLERANT, Trait.GEMM, Trait.FLOAT8)}


def find_format_problems(plan: Plan) -> Iterator[str]:
    """Yield the reason why the formats of a plan exclude each other: a weight has one of them."""
    found = [name for name in plan.transforms if name.partition(SKIP_MARK)[0] in NAMES]
    if len(found) > 1:
        yield f"transforms has {' and '.join(map(repr, found))}, but the weights of a layer have one format: choose one"


def _make_choice(name: str, summary: str, min_remaining_fraction: float, **others: object) -> Choice:
    choice = partial(
        Choice,
        "transforms",
        name,
        Numerics.QUANTIZED,
        complexity=2,
        summary=summary,
        modes=("inference",),  # a rounded weight has no gradient, and a tolerance is for outputs
        required_traits=(Trait.LINEAR_LAYERS, Trait.TOLERANT, Trait.GEMM),
        compile_factor=0.0,
        target_cost="gemm",
        min_remaining_fraction=min_remaining_fraction,
        derives_weights=True,
        find_problems=find_format_problems,
        realized_by=f"{WHERE}:use_{name}",
        parts=f"{WHERE}:list_{name}_layers",
        stage=Stage.MODEL,
        effort="quick",
    )
    return choice(**others)  # type: ignore[arg-type]


register(
    _make_choice(
        "int8_dynamic",
        "linear layers multiply whole numbers of 8 bits, with inputs rounded row by row",
        0.1,
        detectors=((Trait.LINEAR_LAYERS, f"{WHERE}:has_linear_layers"),),  # for all of them
    ),
    _make_choice(
        "int8_weights",
        "weights of linear layers have 8 bits, with a scale for each output",
        0.2,
    ),
    _make_choice(
        "int4_weights",
        "weights of linear layers have 4 bits, with a scale for each group of 32",
        0.1,
        effort="standard",
    ),
    _make_choice(
        "fp8_weights",
        "weights of linear layers are float8, with a scale for each output",
        0.2,
        effort="standard",
        **ON_FLOAT8,
    ),
    _make_choice(
        "fp8_dynamic",
        "linear layers multiply float8, with inputs rounded row by row",
        0.05,
        detectors=((Trait.FLOAT8, f"{WHERE}:multiplies_float8"),),  # for all of them
        **ON_FLOAT8,
    ),
    _make_choice(
        "fp8_per_tensor",
        "linear layers multiply float8, with one scale for all inputs of a call",
        0.2,
        effort="standard",
        **ON_FLOAT8,
    ),
)
