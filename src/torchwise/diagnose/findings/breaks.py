"""Graph breaks: Python between two graphs, each of which is looked up, guarded and launched by itself."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import Evidence, Prices, estimated, left_to_eager, place_of_line
from torchwise.records.compile_events import Break, FallbackKind
from torchwise.records.explanation import Finding, Place, Price, Tried
from torchwise.report import format as show


def find(evidence: Evidence, prices: Prices) -> Iterator[Finding]:
    """Find every break.

    An RNN's breaks have their saving with the RNN.
    """
    found = [one for one in evidence.watched.breaks if not (evidence.has_rnn and one.whole)]
    for one in found:
        tried = _tried(one, prices)
        yield Finding(
            "graph break",
            f"the graph breaks: {one.reason}",
            _cause(one),
            _mend(one, tried),
            _best(tried) or _worked_out(one, evidence, prices, len(found)),
            (Place(one.file, one.line, one.function, one.excerpt),),
            tried=tuple(tried.values()),
        )


def _cause(one: Break) -> str:
    cause = one.explanation or "PyTorch could not trace this line."
    return f"{cause} Because of it the whole function is left uncompiled." if one.whole else cause


def _tried(one: Break, prices: Prices) -> dict[str, Tried]:
    """Try the line and the setting that remove the break, and return the trials by their code."""
    if one.mend is None:
        return {}
    line, setting = one.mend.line, one.mend.setting
    asked = [(line, place_of_line(one), prices.of_line(one))] if line else []
    asked += [(setting, setting, prices.under(setting))] if setting else []
    found: dict[str, Tried] = {}
    for code, key, price in asked:
        if price:
            found[code] = Tried(code, price.per_call_s.low > 0, "the break is gone", price)
        elif key in prices.failures:
            found[code] = Tried(code, False, prices.failures[key].removeprefix(f"{key}: "))
    return found


def _best(tried: dict[str, Tried]) -> Price | None:
    return max((seen.price for seen in tried.values() if seen.price), key=lambda p: p.per_call_s.mid, default=None)


def _mend(one: Break, tried: dict[str, Tried]) -> str:
    """Say how to fix it.

    A setting that was tried without gain is not recommended.
    """
    if one.mend is None:
        return " ".join(one.hints) or "write it without Python between the tensors' operators"
    words, setting = one.mend.words, one.mend.setting
    if not setting or (setting in tried and not tried[setting].helps):
        return words
    how = "Or set" if setting in tried else "Or, which was not tried, set"
    return f"{words.removesuffix('.')}. {how} {setting}. {one.mend.consequence}".rstrip()


def _is_given_up(evidence: Evidence) -> bool:
    """Return whether it was compiled too often, and runs in eager: then nothing breaks any more."""
    limited = any(one.kind is FallbackKind.RECOMPILE_LIMIT for one in evidence.watched.fallbacks)
    return limited and not evidence.execution.regions


def _worked_out(one: Break, evidence: Evidence, prices: Prices, breaks: int) -> Price | None:
    """Estimate the cost of a break by itself.

    It is the measured cost of a break between tiny graphs, for each time that a graph is resumed in a call. The guards
    of the graphs after it are added. The saving from fusion across it comes on top: at most half the time of the
    generated kernels.
    """
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
