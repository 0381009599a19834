"""Choices that only a whole training step has: its loss, its optimizer, its activations, its batch."""

from functools import partial

from torchwise.plan.choice import Choice, register
from torchwise.plan.choices.capture import PRINTS
from torchwise.plan.choices.scope import ON_INDUCTOR, ONLY_WHOLE
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import DIVISIBLE_BY, Trait

of_training = partial(Choice, modes=("training",))

register(
    of_training(
        "optimizer",
        "fused",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="the optimizer updates all parameters in a few fused kernels",
        required_traits=(Trait.TRAINING_STEP, Trait.FUSABLE),
        effort="quick",
        compile_factor=0.0,
    ),
    of_training(
        "optimizer",
        "foreach",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="the optimizer updates all parameters together, operator by operator",
        required_traits=(Trait.TRAINING_STEP, Trait.FOREACHABLE),
        compile_factor=0.0,
    ),
    of_training(
        "optimizer",
        "compiled",
        Numerics.SAME_PRECISION,
        complexity=2,
        summary="the optimizer's update is compiled",
        required_traits=(Trait.TRAINING_STEP,),
        requires=ON_INDUCTOR,
        compile_factor=2.0,
    ),
    of_training(
        "scope",
        "loss",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="the loss is compiled together with the model, so that the two are fused",
        required_traits=(Trait.TRAINING_STEP,),
        requires=(("backend", "inductor"),),
        not_ahead=ONLY_WHOLE,
        ahead_instead=(),
    ),
    of_training(
        "capture",
        "step",
        Numerics.SAME_PRECISION,  # an optimizer that a graph can hold counts its steps in tensors
        complexity=2,
        summary="forward, backward, clipping and the optimizer's update are captured in one CUDA graph",
        devices=("cuda",),
        required_traits=(Trait.TRAINING_STEP,),
        excluded_by=(PRINTS,),
        implies=(("optimizer", "fused"),),
        effort="quick",
        compile_factor=0.0,
        target_cost="launch",
    ),
    of_training(
        "activation_checkpointing",
        "blocks",
        Numerics.EXACT,
        complexity=1,
        summary="the backward pass computes the activations inside each block or stage again, which saves their memory",
        required_traits=(Trait.TRAINING_STEP, Trait.STAGES),
        compile_factor=0.0,
        target_cost="memory",
    ),
)
register(
    of_training(
        "activation_checkpointing",
        "graph",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="the backward pass computes again what the compiler picks from its graph, functions included, until "
        "activations take a quarter of their memory",
        requires=ON_INDUCTOR,
        not_ahead="code that is compiled ahead has no backward pass",
        ahead_instead=(),
        compile_factor=1.2,
        target_cost="memory",
        realized_by="torchwise.compile.backends.recompute:wrap_backend",
    )
)
for _count, _trait in DIVISIBLE_BY.items():
    register(
        of_training(
            "microbatches",
            _count,
            Numerics.SAME_PRECISION,
            complexity=1,
            summary="the batch is split into microbatches, whose gradients are added: less memory, same update",
            required_traits=(Trait.TRAINING_STEP, _trait),
            compile_factor=0.0,
            target_cost="memory",
        )
    )
