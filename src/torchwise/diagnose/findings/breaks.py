"""Graph breaks: Python between two graphs, each of which is looked up, guarded and launched by itself."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import (
    Evidence,
    Savings,
    estimate_compile_saving,
    make_estimate,
    place_of_line,
)
from torchwise.records.compile_events import Break, FallbackKind
from torchwise.records.explanation import Finding, FixTrial, Saving, SourceLocation
from torchwise.report import format as show


def find(evidence: Evidence, prices: Savings) -> Iterator[Finding]:
    """Find every break.

    An RNN's breaks have their saving with the RNN.
    """
    found = [one for one in evidence.watched.breaks if not (evidence.has_rnn and one.whole)]
    for one in found:
        tried = _try_fixes(one, prices)
        yield Finding(
            "graph break",
            f"the graph breaks: {one.reason}",
            _cause(one),
            _describe_fix(one, tried),
            _best(tried) or _estimate_break_cost(one, evidence, prices, len(found)),
            (SourceLocation(one.file, one.line, one.function, one.excerpt),),
            tried=tuple(tried.values()),
        )


def _cause(one: Break) -> str:
    cause = one.explanation or "PyTorch could not trace this line."
    return f"{cause} Because of it the whole function is left uncompiled." if one.whole else cause


def _try_fixes(one: Break, prices: Savings) -> dict[str, FixTrial]:
    """Try the line and the setting that remove the break, and return the trials by their code."""
    if one.fix is None:
        return {}
    line, setting = one.fix.line, one.fix.setting
    asked = [(line, place_of_line(one), prices.measure_line(one))] if line else []
    asked += [(setting, setting, prices.measure_setting(setting))] if setting else []
    found: dict[str, FixTrial] = {}
    for code, key, price in asked:
        if price:
            found[code] = FixTrial(code, price.per_call_s.low > 0, "the break is gone", price)
        elif key in prices.failures:
            found[code] = FixTrial(code, False, prices.failures[key].removeprefix(f"{key}: "))
    return found


def _best(tried: dict[str, FixTrial]) -> Saving | None:
    return max((seen.saving for seen in tried.values() if seen.saving), key=lambda p: p.per_call_s.mid, default=None)


def _describe_fix(one: Break, tried: dict[str, FixTrial]) -> str:
    """Say how to fix it.

    A setting that was tried without gain is not recommended.
    """
    if one.fix is None:
        return " ".join(one.hints) or "write it without Python between the tensors' operators"
    words, setting = one.fix.words, one.fix.setting
    if not setting or (setting in tried and not tried[setting].helps):
        return words
    how = "Or set" if setting in tried else "Or, which was not tried, set"
    return f"{words.removesuffix('.')}. {how} {setting}. {one.fix.consequence}".rstrip()


def _has_hit_recompile_limit(evidence: Evidence) -> bool:
    """Return whether it was compiled too often, and runs in eager: then nothing breaks any more."""
    limited = any(one.kind is FallbackKind.RECOMPILE_LIMIT for one in evidence.watched.fallbacks)
    return limited and not evidence.execution.regions


def _estimate_break_cost(one: Break, evidence: Evidence, prices: Savings, breaks: int) -> Saving | None:
    """Estimate the cost of a break by itself.

    It is the measured cost of a break between tiny graphs, for each time that a graph is resumed in a call. The guards
    of the graphs after it are added. The saving from fusion across it comes on top: at most half the time of the
    generated kernels.
    """
    if one.whole or _has_hit_recompile_limit(evidence):
        return estimate_compile_saving(evidence, breaks)
    if (alone := prices.measure_break()) is None:
        return None
    times = max(evidence.profiled.lookups - 1, 1.0) / breaks
    per_lookup = evidence.execution.guards_s / max(evidence.profiled.lookups, 1.0)
    fusible = sum(kernel.seconds for kernel in evidence.kernels if kernel.generated) / 2 / breaks
    low, mid, high = (max(each, 0.0) * times for each in (alone.low, alone.mid, alone.high))
    return make_estimate(
        low / 2,
        mid,
        high + per_lookup * times + fusible,
        f"a break between next to nothing costs {show.seconds(alone.mid)} here, and there are {times:.3g} of this one "
        "in a call; the upper end adds guards, and half of the kernels that could be fused across it",
    )
