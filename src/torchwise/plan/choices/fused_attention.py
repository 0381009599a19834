"""Attention that is written out, as PyTorch's fused attention, and keys that it need not repeat."""

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

WHERE = "torchwise.compile.transforms.function_graphs"


register(
    Choice(
        "transforms",
        "fused_attention",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="attention that is written out as products and a softmax is PyTorch's fused attention, which does not "
        "write the scores to memory; a row that -inf hides whole is NaN in eager, and may be 0 here",
        required_traits=(Trait.WRITTEN_ATTENTION,),
        detectors=((Trait.WRITTEN_ATTENTION, f"{WHERE}.fused_attention:rewrite"),),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        compile_factor=0.98,  # of a plain compile: it hardly adds anything, and as the cheapest it is tried first
        min_remaining_fraction=0.1,
        realized_by=f"{WHERE}.fused_attention:rewrite",
        stage=Stage.TRACE,
    ),
    Choice(
        "transforms",
        "grouped_keys",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="keys and values that several queries share are not repeated for fused attention",
        required_traits=(Trait.REPEATED_KEYS,),
        detectors=((Trait.REPEATED_KEYS, f"{WHERE}.grouped_keys:has_repeated_keys"),),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"), ("transforms", "fused_attention")),
        effort="quick",
        compile_factor=0.98,
        min_remaining_fraction=0.1,
        realized_by=f"{WHERE}.grouped_keys:rewrite",
        stage=Stage.TRACE,
    ),
)
