"""The part that becomes one CUDA graph, replayed by a single launch."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

PRINTS = (Trait.PRINTS, "the model prints or logs in its call, and a replay would not: remove that, or name the plan")
_AGAIN = "a segment that is replayed again, after another value,"

register(
    Choice(
        "capture",
        "call",
        Numerics.EXACT,
        complexity=2,
        summary="the whole call is captured in one CUDA graph for each size, with inputs copied in and outputs "
        "copied out",
        devices=("cuda",),
        modes=("inference",),
        excluded_by=(PRINTS,),
        implies_for=((Trait.SIZES_VARY, ("shapes", "dynamic")),),
        effort="quick",
        compile_factor=0.0,
        target_cost="launch",
        realized_by="torchwise.compile.cuda_graphs.call_graph:CapturedCall",
        dynamic_shapes=True,
    ),
    Choice(
        "capture",
        "branches",
        Numerics.EXACT,
        complexity=3,
        summary="the call is captured in segments between its reads of a bool (an `if` on a tensor) or a count "
        "(`x[mask]`) from the GPU: one CUDA graph each, for each path that the values lead to",
        devices=("cuda",),
        modes=("inference",),
        required_traits=(Trait.READS_BOOL,),
        excluded_by=(
            PRINTS,
            (Trait.STOCHASTIC, f"the model draws random numbers: {_AGAIN} would draw others"),
            (Trait.WRITES_INPUTS, f"the model writes to its inputs: {_AGAIN} would write twice"),
        ),
        effort="quick",
        compile_factor=0.0,
        target_cost="launch",
        realized_by="torchwise.compile.cuda_graphs.segmented:SegmentedCall",
    ),
)
