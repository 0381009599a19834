"""Inductor's compiler ahead of time."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.rules import find_export_problems
from torchwise.plan.trait import Trait

register(
    Choice(
        "backend",
        "aot-inductor",
        Numerics.SAME_PRECISION,
        complexity=3,
        summary="Inductor's kernels with C++ around them in place of Python (AOTInductor)",
        modes=("inference",),
        excluded_by=(
            (Trait.STOCHASTIC, "the model draws random numbers, and the code would draw others"),
            (Trait.WRITES_INPUTS, "the model writes to its inputs, and the code only computes values"),
            (Trait.COMPLEX, "the model computes with complex numbers, which the code does not have"),
        ),
        effort="thorough",
        compile_factor=1.5,
        realized_by="torchwise.compile.backends.aot_inductor:compile",
        dynamic_shapes=True,
        find_problems=find_export_problems,
        not_ahead="AOTInductor compiles again in each process",
        ahead_instead=(("backend", "inductor"),),
        keeps_code=False,
    ),
)
