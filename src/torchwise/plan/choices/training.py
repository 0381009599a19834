"""Choices that only a whole training step has: its loss, its optimizer, its activations, its batch."""

from torchwise.plan.choice import Choice, register
from torchwise.plan.choices.capture import PRINTS
from torchwise.plan.numerics import Legality

STEP = "training_step"
ON_INDUCTOR = (("backend", "inductor"), ("mode", "default"))

register(
    Choice(
        "optimizer",
        "fused",
        Legality.REORDERED,
        complexity=1,
        summary="the optimizer updates all parameters in a few fused kernels",
        modes=("training",),
        needs=(STEP, "fusable"),
        effort="quick",
        compile_factor=0.0,
    ),
    Choice(
        "optimizer",
        "foreach",
        Legality.REORDERED,
        complexity=1,
        summary="the optimizer updates all parameters together, operator by operator",
        modes=("training",),
        needs=(STEP, "foreachable"),
        compile_factor=0.0,
    ),
    Choice(
        "optimizer",
        "compiled",
        Legality.REORDERED,
        complexity=2,
        summary="the optimizer's update is compiled",
        modes=("training",),
        needs=(STEP,),
        on=ON_INDUCTOR,
        compile_factor=2.0,
    ),
    Choice(
        "scope",
        "loss",
        Legality.REORDERED,
        complexity=1,
        summary="the loss is compiled together with the model, so that the two are fused",
        modes=("training",),
        needs=(STEP,),
        on=(("backend", "inductor"),),
    ),
    Choice(
        "capture",
        "step",
        Legality.REORDERED,  # an optimizer that a graph can hold counts its steps in tensors
        complexity=2,
        summary="forward, backward, clipping and the optimizer's update are captured in one CUDA graph",
        devices=("cuda",),
        modes=("training",),
        needs=(STEP,),
        unless=(PRINTS,),
        brings=(("optimizer", "fused"),),
        effort="quick",
        compile_factor=0.0,
        acts="launch",
    ),
    Choice(
        "recompute",
        "blocks",
        Legality.EXACT,
        complexity=1,
        summary="the backward pass computes the activations inside each repeated block anew, which saves their memory",
        modes=("training",),
        needs=(STEP, "repeated_blocks"),
        compile_factor=0.0,
        acts="memory",
    ),
)
for _pieces in (2, 4):
    register(
        Choice(
            "pieces",
            _pieces,
            Legality.REORDERED,
            complexity=1,
            summary="the batch is cut into pieces, one after another, whose gradients add up: less memory, same update",
            modes=("training",),
            needs=(STEP, f"divisible_by_{_pieces}"),
            compile_factor=0.0,
            acts="memory",
        )
    )
