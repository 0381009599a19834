"""RNNs in eager, between compiled graphs."""

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

register(
    Choice(
        "transforms",
        "isolate_rnn",
        # By itself it moves nothing: the RNN runs as in eager, and the compiler may only reorder the rest.
        Numerics.EXACT,
        complexity=1,
        summary="each nn.RNN, nn.GRU and nn.LSTM runs in eager between compiled graphs. Otherwise nothing after "
        "it in the same function is compiled",
        required_traits=(Trait.RNN,),
        requires=(("backend", "inductor"),),
        implies=(("backend", "inductor"),),
        effort="quick",
        # Measured: 0.7 to 1.7 of a plain compile. As the cheapest it is tried first, for without it little is compiled.
        compile_factor=0.98,
        # Time with over time without, measured: 0.69 (carrier), 0.80 (fused_step), 0.70 (padded rollout; all small, one
        # CPU thread), 1.0 where the RNN's own products are everything (carrier, 1024 units).
        min_remaining_fraction=0.3,
        realized_by="torchwise.compile.transforms.isolate_rnn:isolate",
        stage=Stage.MODEL,
        detectors=((Trait.RNN, "torchwise.compile.transforms.isolate_rnn:has_rnn"),),
        not_ahead="an isolated RNN breaks the graph",
        ahead_instead=(),
    )
)
