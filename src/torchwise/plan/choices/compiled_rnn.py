"""RNNs as part of the compiled graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchwise.plan.choice import Choice, Stage, register
from torchwise.plan.numerics import Numerics
from torchwise.plan.trait import Trait

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

WHERE = "torchwise.compile.transforms.compiled_rnn"


def find_problems(plan: Plan) -> Iterator[str]:
    """Yield the reasons why the rewrite cannot be part of a plan."""
    if "isolate_rnn" in plan.transforms:
        yield "transforms has 'compiled_rnn' and 'isolate_rnn', but an RNN is compiled or isolated: leave one out"
    if plan.precision.startswith("autocast"):  # compiled ahead, its guards expect calls without autocast (torch 2.13)
        yield f"transforms has 'compiled_rnn', but precision is {plan.precision!r}: choose bf16, or leave one out"


register(
    Choice(
        "transforms",
        "compiled_rnn",
        Numerics.SAME_PRECISION,
        complexity=1,
        summary="each nn.RNN, nn.GRU and nn.LSTM is part of the compiled graph, step by step, and an nn.LSTM on a CPU "
        "as layers of oneDNN, whose weights freezing packs once",
        modes=("inference",),
        required_traits=(Trait.COMPILABLE_RNN,),
        detectors=((Trait.COMPILABLE_RNN, f"{WHERE}:has_rnn"),),
        requires=(("backend", "inductor"),),  # the graphs of other backends have RNNs in them as it is
        implies=(("backend", "inductor"),),
        effort="quick",
        compile_factor=0.98,  # of a plain compile, by which nothing behind an RNN is compiled
        realized_by=f"{WHERE}:compile_rnns",
        stage=Stage.MODEL,
        find_problems=find_problems,
    )
)
