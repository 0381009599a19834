"""Graph breaks: Python code between two graphs. Each graph has a cache lookup, guards and a launch of its own."""

from __future__ import annotations

from collections.abc import Iterator

from torchwise.diagnose.findings.evidence import (
    Evidence,
    Savings,
    estimate_compile_saving,
    make_estimate,
    place_of_line,
)
from torchwise.records import format as show
from torchwise.records.compile_events import Break, UncompiledKind
from torchwise.records.explanation import Finding, FixTrial, Saving, SourceLocation


def find(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find every break.

    The finding of an RNN has the saving of the RNN's breaks.
    """
    found = [one for one in evidence.watched.breaks if not (evidence.has_rnn and one.whole)]
    for one in found:
        tried = _try_fixes(one, savings)
        yield Finding(
            "graph break",
            f"the graph breaks: {one.reason}",
            _cause(one),
            _describe_fix(one, tried),
            _best(tried) or _estimate_break_cost(one, evidence, savings, len(found)),
            (SourceLocation(one.file, one.line, one.function, one.excerpt),),
            tried=tuple(tried.values()),
        )


def _cause(one: Break) -> str:
    cause = one.explanation or "PyTorch could not trace this line."
    return f"{cause} It leaves the whole function uncompiled." if one.whole else cause


def _try_fixes(one: Break, savings: Savings) -> dict[str, FixTrial]:
    """Try the line and the setting that remove the break, and return the trials by the code of their fixes."""
    if one.fix is None:
        return {}
    line, setting = one.fix.line, one.fix.setting
    measured = [(line, place_of_line(one), savings.measure_line(one))] if line else []
    measured += [(setting, setting, savings.measure_setting(setting))] if setting else []
    trials: dict[str, FixTrial] = {}
    for code, key, saving in measured:
        if saving:
            trials[code] = FixTrial(code, saving.per_call_s.low > 0, "the break is gone", saving)
        elif key in savings.failures:
            trials[code] = FixTrial(code, False, savings.failures[key])
    return trials


def _best(tried: dict[str, FixTrial]) -> Saving | None:
    savings = (trial.saving for trial in tried.values() if trial.saving)
    return max(savings, key=lambda saving: saving.per_call_s.mid, default=None)


def _describe_fix(one: Break, tried: dict[str, FixTrial]) -> str:
    """Say how to fix it.

    A setting that was tried without gain is not recommended.
    """
    if one.fix is None:
        return " ".join(one.hints) or "use only tensor operators here, without other Python code between them"
    words, setting = one.fix.words, one.fix.setting
    if not setting or (setting in tried and not tried[setting].helps):
        return words
    untried = "" if setting in tried else " (not tried)"
    return f"{words.removesuffix('.')}. Or set {setting}{untried}. {one.fix.consequence}".rstrip()


def _has_hit_recompile_limit(evidence: Evidence) -> bool:
    """Return whether it was compiled too often, and so runs in eager without a graph that could break."""
    limited = any(one.kind is UncompiledKind.RECOMPILE_LIMIT for one in evidence.watched.fallbacks)
    return limited and not evidence.execution.regions


def _estimate_break_cost(one: Break, evidence: Evidence, savings: Savings, breaks: int) -> Saving | None:
    """Estimate the cost of a break by itself.

    It is the measured cost of a break between tiny graphs, times the resumed graphs in a call. The upper end adds the
    guards of these graphs, and the saving from fusion across the break: at most half the time of the generated kernels.
    """
    if one.whole or _has_hit_recompile_limit(evidence):
        return estimate_compile_saving(evidence, breaks)
    if (alone := savings.measure_break()) is None:
        return None
    times = max(evidence.profiled.lookups - 1, 1.0) / breaks
    per_lookup = evidence.execution.guards_s / max(evidence.profiled.lookups, 1.0)
    fusible = sum(kernel.seconds for kernel in evidence.kernels if kernel.generated) / 2 / breaks
    low, mid, high = (max(each, 0.0) * times for each in (alone.low, alone.mid, alone.high))
    return make_estimate(
        low / 2,
        mid,
        high + per_lookup * times + fusible,
        f"a break between tiny graphs costs {show.seconds(alone.mid)} here, and this one happens {times:.3g} times in "
        "a call. The upper end adds guards, and half the time of the kernels that could be fused across it",
    )
