"""RNNs: they break the graph at a point that Dynamo cannot resume from, so that little around them is compiled."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, Savings
from torchwise.records.explanation import Finding, SourceLocation


def find(evidence: Evidence, prices: Savings) -> Iterator[Finding]:
    """Find an RNN inside a compiled model that was not isolated."""
    base = evidence.base
    if not evidence.has_rnn or base.is_eager or "isolate_rnn" in base.transforms:
        return
    if (plan := evidence.with_choice("transforms", "isolate_rnn")) is None:  # the plan has a scope that excludes it
        return
    broken = [found for found in evidence.watched.breaks if found.whole or "RNN" in found.reason + found.explanation]
    yield Finding(
        "rnn",
        "an nn.RNN, nn.GRU or nn.LSTM keeps what is around it from being compiled",
        "Dynamo breaks the graph at the mention of an RNN, and cannot resume in that function: the rest of it runs in "
        "eager.",
        "the plan's isolate_rnn runs the RNN in eager between compiled graphs; by hand, call it from a module whose "
        "forward is decorated with @torch.compiler.disable",
        prices.measure_plan(plan),
        tuple(SourceLocation(one.file, one.line, one.function, one.excerpt) for one in broken),
        plan,
    )
