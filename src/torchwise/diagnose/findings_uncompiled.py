"""Code that does not run compiled: at graph breaks, at RNNs, on complex numbers, and in other fallbacks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchwise.diagnose.evidence import Evidence, estimate_compile_saving, make_estimate, place_of_line
from torchwise.diagnose.savings import Savings
from torchwise.records import format as show
from torchwise.records.compile_events import Break, UncompiledKind, UncompiledPart
from torchwise.records.explanation import Finding, FixTrial, Saving, SourceLocation

MIN_FALLBACK_SHARE = 0.02
_EXPECTED = re.compile(r"aten\.(\w*(convolution|attention|fft|embedding_bag|sort|pool)\w*|(add|badd)?b?mm|(add)?mv)$")
"""Operators that are expected to run a library's kernels."""
_OWN_FINDINGS = (UncompiledKind.COMPLEX, UncompiledKind.RECOMPILE_LIMIT)
"""Kinds that have findings of their own."""


def find_breaks(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find every break. The finding of an RNN has the saving of the RNN's breaks."""
    found = [one for one in evidence.watched.breaks if not (evidence.has_rnn and one.whole)]
    for one in found:
        tried, cause = _try_fixes(one, savings), one.explanation or "PyTorch could not trace this line."
        yield Finding(
            "graph break",
            f"the graph breaks: {one.reason}",
            f"{cause} It leaves the whole function uncompiled." if one.whole else cause,
            _describe_fix(one, tried),
            _find_best(tried) or _estimate_break_cost(one, evidence, savings, len(found)),
            (SourceLocation(one.file, one.line, one.function, one.excerpt),),
            tried=tuple(tried.values()),
        )


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


def _find_best(tried: dict[str, FixTrial]) -> Saving | None:
    savings = (trial.saving for trial in tried.values() if trial.saving)
    return max(savings, key=lambda saving: saving.per_call_s.mid, default=None)


def _describe_fix(one: Break, tried: dict[str, FixTrial]) -> str:
    """Say how to fix it. A setting that was tried without gain is not recommended."""
    if one.fix is None:
        return " ".join(one.hints) or "use only tensor operators here, without other Python code between them"
    words, setting = one.fix.words, one.fix.setting
    if not setting or (setting in tried and not tried[setting].helps):
        return words
    untried = "" if setting in tried else " (not tried)"
    return f"{words.removesuffix('.')}. Or set {setting}{untried}. {one.fix.consequence}".rstrip()


def _estimate_break_cost(one: Break, evidence: Evidence, savings: Savings, breaks: int) -> Saving | None:
    """Estimate the cost of a break by itself.

    It is the measured cost of a break between tiny graphs, times the resumed graphs in a call. The upper end adds the
    guards of these graphs, and the saving from fusion across the break: at most half the time of the generated kernels.
    """
    limited = any(part.kind is UncompiledKind.RECOMPILE_LIMIT for part in evidence.watched.fallbacks)
    if one.whole or (limited and not evidence.execution.regions):  # it runs in eager, without a graph that could break
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


def find_rnn(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find an RNN inside a compiled model that was not isolated."""
    base = evidence.base
    if not evidence.has_rnn or base.is_eager or {"isolate_rnn", "compiled_rnn"} & {*base.transforms}:
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


def find_complex_numbers(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find operators on complex numbers that run in eager."""
    base, left = evidence.base, sum(evidence.code.fallbacks.values())
    if not evidence.observed.complex_operators or not left or base.is_eager or "complex_to_real" in base.transforms:
        return
    if (plan := evidence.with_choice("transforms", "complex_to_real")) is None:  # such as with dynamic shapes
        return
    names = ", ".join(f"{times} {name}" for name, times in evidence.code.fallbacks.most_common(4))
    yield Finding(
        "complex",
        f"{left} operators on complex numbers run in eager",
        f"Inductor generates no code for complex numbers, so nothing is fused across these operators: {names}.",
        "the plan's complex_to_real computes with their real and imaginary parts. By hand, write the two parts out",
        savings.measure_plan(plan),
        plan=plan,
    )


def find_fallbacks(evidence: Evidence) -> Iterator[Finding]:
    """Find fallbacks in generated code, and everything that PyTorch did not compile or capture."""
    if not evidence.observed.complex_operators:
        for name, times in evidence.code.fallbacks.items():
            if not _EXPECTED.match(name) and (saving := _estimate_fallback_saving(name, evidence)):
                yield Finding(
                    "fallback",
                    f"{name} runs in eager, {times} time{'s' * (times > 1)} in a call",
                    "Inductor generates no code for it here, so nothing is fused across it.",
                    "write it with operators that Inductor generates code for, if the saving justifies that",
                    saving,
                )
    for one in evidence.watched.fallbacks:
        if one.kind not in _OWN_FINDINGS and not _is_covered_by_break(one, evidence):
            yield Finding(
                "fallback",
                f"{one.kind.value.replace('_', ' ')}: {one.what}",
                "PyTorch fell back without an error, and with little or no warning.",
                "run torchwise tune, which tries the alternatives",
            )


def _is_covered_by_break(part: UncompiledPart, evidence: Evidence) -> bool:
    """Return whether a function is left uncompiled because of a break that has a finding of its own."""
    return part.kind is UncompiledKind.WHOLE_FUNCTION and any(
        one.whole and one.where == part.graph_break for one in evidence.watched.breaks
    )


def _estimate_fallback_saving(name: str, evidence: Evidence) -> Saving | None:
    operator = name.replace("aten.", "aten::").partition(".")[0]
    kernel = next((kernel for kernel in evidence.kernels if kernel.name == operator), None)
    if kernel is None or kernel.seconds < MIN_FALLBACK_SHARE * evidence.execution.call_s.mid:
        return None
    return make_estimate(0.0, kernel.seconds / 2, kernel.seconds, "at most its whole time can be saved")
