"""Graph breaks: Python between two graphs, each of which is looked up, guarded and launched by itself."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, Prices, estimated, left_to_eager
from torchwise.records.explanation import Finding, Place, Price
from torchwise.records.watched import Break, FallbackKind
from torchwise.report import format as show


def find(evidence: Evidence, prices: Prices) -> Iterator[Finding]:
    """Find every break; those of RNNs are priced with their RNN."""
    found = [one for one in evidence.watched.breaks if not (evidence.has_rnn and one.whole)]
    for one in found:
        yield Finding(
            "graph break",
            f"the graph breaks: {one.reason}",
            _cause(one),
            _mend(one),
            _price(one, evidence, prices, len(found)),
            (Place(one.file, one.line, one.function, one.excerpt),),
        )


def _cause(one: Break) -> str:
    cause = one.explanation or "PyTorch could not trace this line."
    return f"{cause} Because of it the whole function is left uncompiled." if one.whole else cause


def _mend(one: Break) -> str:
    if one.mend is None:
        return " ".join(one.hints) or "write it without Python between the tensors' operators"
    if not one.mend.setting:
        return one.mend.text
    return f"{one.mend.text.removesuffix('.')}. Or set {one.mend.setting}. {one.mend.consequence}".rstrip()


def _is_given_up(evidence: Evidence) -> bool:
    """Whether it was compiled too often, and runs in eager: then nothing breaks any more."""
    limited = any(one.kind is FallbackKind.RECOMPILE_LIMIT for one in evidence.watched.fallbacks)
    return limited and not evidence.execution.regions


def _price(one: Break, evidence: Evidence, prices: Prices, breaks: int) -> Price | None:
    """Time it without the break where a setting mends it; else work out what each break costs by itself.

    That is what a break between next to nothing costs here, for as often as graphs are resumed in a call, and the
    guards of what follows. What fusing across it would save comes on top: at most half the time of the generated
    kernels.
    """
    # A setting that is a call, such as `….add(print)`, cannot be taken back, and is not tried.
    if one.mend and "=" in one.mend.setting and (price := prices.under(one.mend.setting)):
        return price
    if one.whole or _is_given_up(evidence):
        return left_to_eager(evidence, breaks)
    if (alone := prices.of_a_break()) is None:
        return None
    times = max(evidence.profiled.lookups - 1, 1.0) / breaks
    per_lookup = evidence.execution.guards_s / max(evidence.profiled.lookups, 1.0)
    fusible = sum(kernel.seconds for kernel in evidence.kernels if kernel.generated) / 2 / breaks
    low, mid, high = (max(each, 0.0) * times for each in (alone.low, alone.mid, alone.high))
    return estimated(
        low / 2,
        mid,
        high + per_lookup * times + fusible,
        f"a break between next to nothing costs {show.seconds(alone.mid)} here, and there are {times:.3g} of this one "
        "in a call; the upper end adds guards, and half of the kernels that could be fused across it",
    )
