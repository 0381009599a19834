"""How much of the model is compiled at once, and for how many shapes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.rules import find_choices, freezes_weights
from torchwise.plan.trait import Trait

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

ONLY_WHOLE = "it compiles parts, and only one whole graph can be stored"
ON_INDUCTOR = (("backend", "inductor"), ("mode", "default"))


def find_loop_problems(plan: Plan) -> Iterator[str]:
    """Yield the reasons why repeated parts of the graph cannot be compiled once in a plan."""
    if plan.mode in ("reduce-overhead", "max-autotune"):
        yield f"scope is 'rolled', but mode {plan.mode!r} captures each call of the body: capture the whole call"
    if freezes_weights(plan):
        yield "weights are frozen into the code, but scope is 'rolled': one body for many weights cannot hold them"


def find_shape_problems(plan: Plan) -> Iterator[str]:
    """Yield the reason why a plan's backend cannot compile for all sizes at once."""
    backend = next((choice for choice in find_choices(plan) if choice.field == "backend"), None)
    if backend is not None and not backend.dynamic_shapes:
        yield f"shapes is 'dynamic', but backend {plan.backend!r} compiles for one shape: shapes must be static"


register(
    Choice(
        "scope",
        "regional",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="each repeated block is compiled once and shared, which cuts compile time, not steady time",
        required_traits=(Trait.REPEATED_BLOCKS,),
        requires=ON_INDUCTOR,
        compile_factor=0.4,
        target_cost="compile",
        not_ahead=ONLY_WHOLE,
        ahead_instead=(),
    ),
    Choice(
        "scope",
        "rolled",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="repeated parts of the graph (steps of a loop, equal layers) are compiled once and called each time",
        required_traits=(Trait.REPEATS,),
        requires=ON_INDUCTOR,
        # So it is tried before the whole is compiled, which may take minutes.
        implies=(("backend", "inductor"), ("transforms", "complex_to_real")),
        implies_for=((Trait.COMPILABLE_RNN, ("transforms", "compiled_rnn")),),  # else a loop over it is no graph
        effort="quick",
        # On two busy CPU cores 13 s where the whole takes 90 to 109 (100 Gross-Pitaevskii steps of 16³, complex numbers
        # rewritten); rounded up, as less of most programs repeats.
        compile_factor=0.2,
        find_problems=find_loop_problems,
        not_ahead=ONLY_WHOLE,
        ahead_instead=(),
    ),
    Choice(
        "shapes",
        "dynamic",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="one compilation serves all shapes of the mix, instead of one each",
        required_traits=(Trait.SEVERAL_SHAPES,),
        requires=(("mode", "default"),),
        implies_for=((Trait.GROWS, ("backend", "inductor")), (Trait.SIZES_VARY, ("backend", "inductor"))),
        excluded_by=((Trait.SIZES_FIXED, "the sizes of inputs are said to be fixed"),),
        effort="quick",
        find_problems=find_shape_problems,
    ),
)
