"""Points stored coordinate by coordinate."""

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "transforms",
        "structure_of_arrays",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="points with a few coordinates that are read repeatedly are stored coordinate by coordinate, so "
        "that loops read whole vectors",
        devices=("cpu",),
        required_traits=(Trait.SHORT_ROWS,),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        # Time with over time without, on two CPU cores with vectors of 64 bytes: 0.37 (field 8192 × 50) and 0.23
        # (potential of 50 charges at 8192 points).
        min_remaining_fraction=0.2,
        realized_by="torchwise.compile.transforms.structure_of_arrays:graph_pass",
        stage=Stage.PASS,
    )
)
