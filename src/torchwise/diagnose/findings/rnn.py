"""RNNs: they break the graph at a point from which Dynamo cannot resume, so little code around them is compiled."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, Savings
from torchwise.records.explanation import Finding, SourceLocation


def find(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find an RNN inside a compiled model that was not isolated."""
    base = evidence.base
    if not evidence.has_rnn or base.is_eager or "isolate_rnn" in base.transforms:
        return
    if (plan := evidence.with_choice("transforms", "isolate_rnn")) is None:  # the plan's scope excludes it
        return
    broken = [one for one in evidence.watched.breaks if one.whole or "RNN" in one.reason + one.explanation]
    yield Finding(
        "rnn",
        "an nn.RNN, nn.GRU or nn.LSTM keeps the code around it from being compiled",
        "Dynamo breaks the graph at an RNN, and cannot resume in that function: the rest of it runs in eager.",
        "the plan's isolate_rnn runs the RNN in eager between compiled graphs. By hand, call it from a module whose "
        "forward is decorated with @torch.compiler.disable",
        savings.measure_plan(plan),
        tuple(SourceLocation(one.file, one.line, one.function, one.excerpt) for one in broken),
        plan,
    )
