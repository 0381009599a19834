"""Complex numbers as two real ones."""

from __future__ import annotations

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "transforms",
        "complex_to_real",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="complex numbers are carried as real and imaginary parts through Inductor, which fuses only real ones",
        required_traits=(Trait.COMPLEX,),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        # Measured: 10.0 s, and 10.2 s for a plain compile (field 8192 × 50, CPU). As the cheapest it is tried first,
        # before plans that capture what it would change.
        compile_factor=0.98,
        # Time with over time without, measured: 0.02 to 0.03 (field 8192 × 50, CPU), 0.10 (the same, H200), 0.14 (field
        # 1 048 576 × 100, H200), 0.18 (Gross-Pitaevskii step 64³, CPU).
        min_remaining_fraction=0.02,
        realized_by="torchwise.compile.transforms.complex_to_real:backend_for",
        stage=Stage.GRAPH,
    )
)
