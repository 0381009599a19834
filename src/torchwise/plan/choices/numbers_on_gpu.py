"""Numbers that stay on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan


def find_problems(plan: Plan) -> Iterator[str]:
    """Yield the reasons why the rewrite cannot be part of a plan."""
    if plan.capture != "call":
        yield f"transforms has 'numbers_on_gpu', but capture is {plan.capture!r}: it must be 'call'"
    if plan.backend != "eager":
        yield f"transforms has 'numbers_on_gpu', but backend is {plan.backend!r}, which is given numbers: eager is not"


register(
    Choice(
        "transforms",
        "numbers_on_gpu",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="numbers that the model reads from the GPU (`.item()`) only to compute with them there stay on "
        "the GPU, so that the call can be captured",
        devices=("cuda",),
        modes=("inference",),
        required_traits=(Trait.READS_SCALAR,),
        requires=(("backend", "eager"),),
        # Alone it means nothing: what it gains is that the gaps between kernels can be closed. Not with branches, as no
        # verdict proves those that are met later.
        implies=(("capture", "call"),),
        effort="quick",
        compile_factor=0.0,
        target_cost="launch",
        realized_by="torchwise.compile.transforms.numbers_on_gpu:keep_numbers_on_gpu",
        stage=Stage.CALL,
        find_problems=find_problems,
    )
)
