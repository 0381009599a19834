"""Recompilations: compiled code did not fit another call, and was compiled again, or runs in eager for good."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from torchwise._torch import dynamo
from torchwise.diagnose.evidence import Evidence, Fix, HeldNumber, estimate_compile_saving
from torchwise.diagnose.savings import Savings
from torchwise.records import Interval
from torchwise.records.compile_events import Frame, Recompile, UncompiledKind
from torchwise.records.explanation import Basis, Finding, FixTrial, Saving, SourceLocation

NUMBERS = f"{dynamo.CONFIG}.allow_unspec_int_on_nn_module = True"
STATE_SIZES = f"{dynamo.CONFIG}.force_parameter_static_shapes = False"
_VALUE = re.compile(r"^(?P<source>[^=<>%()+*\n]+) == (?P<want>[^\n]+)$")
_BY_VALUE = re.compile(r"^(?:len\(|not |___check_obj_id\()|== | is ")
"""Guards on a value, a length or an object: the varying value can perhaps be kept out of the compiled code."""
_SIZE = re.compile(r"(size|stride) mismatch|\.size\(\)\[")
_ATTRIBUTE = re.compile(r"^(?P<root>[^.]+)(?P<path>\..+)?\.(?P<name>[^\W\d]\w*)$")
_SUBMODULE = re.compile(r"\._modules\['([^\W\d]\w*)'\]")


def find_recompile_limits(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find each function that was compiled so often that it runs in eager, which takes longer on every call."""
    for of, again in _group_by_function(evidence).items():
        if has_hit_recompile_limit(of, evidence):
            yield _make_finding(of, again, evidence, savings)


def find_repeated(evidence: Evidence, savings: Savings) -> Iterator[Finding]:
    """Find each other function that was compiled again, which takes seconds once in each process."""
    for of, again in _group_by_function(evidence).items():
        if not has_hit_recompile_limit(of, evidence):
            yield _make_finding(of, again, evidence, savings)


def _group_by_function(evidence: Evidence) -> dict[Frame, list[Recompile]]:
    found: dict[Frame, list[Recompile]] = {}
    for one in evidence.watched.recompiles:
        found.setdefault(Frame(one.file, one.line, one.function), []).append(one)
    return found


def has_hit_recompile_limit(of: Frame, evidence: Evidence) -> bool:
    """Return whether a function was compiled so often that PyTorch runs it in eager for good."""
    limits = [one for one in evidence.watched.fallbacks if one.kind is UncompiledKind.RECOMPILE_LIMIT]
    return any((one.file, one.line, one.function) == (of.file, of.line, of.function) for one in limits)


def _make_finding(of: Frame, again: list[Recompile], evidence: Evidence, savings: Savings) -> Finding:
    in_eager, count = has_hit_recompile_limit(of, evidence), sum(one.count for one in again)
    seconds = _seconds(again, evidence)
    tried: list[tuple[Fix, FixTrial]] = []
    for fix in fixes(of, again, evidence):
        if fix.kind == "tensor" and any(trial.helps for _, trial in tried):
            continue  # it changes more of the code
        if trial := savings.try_fix(fix):
            tried.append((fix, _judge_fix(trial, count, seconds, in_eager, evidence)))
    helping = [(fix, trial) for fix, trial in tried if trial.helps]
    best = _best(helping, evidence)
    others = [fix.advice for fix, _ in helping if best is None or fix is not best[0]]
    return Finding(
        "recompile",
        f"{of.function} was compiled again {count} time{'s' * (count != 1)}"
        + (": PyTorch now runs it in eager on every call" if in_eager else ""),
        "; ".join(
            dict.fromkeys(
                f"{one.varies or 'a value that it was compiled for changed'} (guard: {one.guard})" for one in again
            )
        ),
        " Or: ".join([best[0].advice, *others]) if best else f"By hand (not tried): {_describe_manual_fix(again)}",
        best[1].saving if best else _estimate_loss(in_eager, seconds, [trial for _, trial in tried], evidence),
        _places(of, again),
        tried=tuple(trial for _, trial in tried),
    )


def _places(of: Frame, again: list[Recompile]) -> tuple[SourceLocation, ...]:
    inside = [frame for one in again for frame in one.stack[-1:]]
    return tuple(SourceLocation(frame.file, frame.line, frame.function) for frame in dict.fromkeys([of, *inside]))


def _seconds(again: list[Recompile], evidence: Evidence) -> float:
    """Return the seconds of compiling again. Each compilation counts once, even if several guards failed."""
    ids = {name for one in again for name in one.compile_ids}
    return sum(one.seconds for one in evidence.watched.compilations if one.is_forward and one.compile_id in ids)


def _judge_fix(trial: FixTrial, count: int, seconds: float, in_eager: bool, evidence: Evidence) -> FixTrial:
    """Decide whether a working fix saves time, including the compile time that it saves in each process."""
    if trial.saving is None:
        return trial
    avoided = max(count + 1 - trial.compilations, 0) / max(count, 1)
    saving = replace(trial.saving, once_s=seconds * avoided if trial.helps else 0.0)
    gains = saving.per_call_s.low > 0 if in_eager else avoided > 0 and saving.average_saving_s(evidence.calls) > 0
    words = trial.seen if gains or not trial.helps else f"{trial.seen}: no gain"
    return replace(trial, helps=trial.helps and gains, saving=saving, seen=words)


def _best(helping: list[tuple[Fix, FixTrial]], evidence: Evidence) -> tuple[Fix, FixTrial] | None:
    """Return the fix with the largest saving.

    Among fixes whose savings overlap, the first wins, as it changes least.
    """

    def compute_saving(pair: tuple[Fix, FixTrial]) -> float:
        return pair[1].saving.average_saving_s(evidence.calls) if pair[1].saving else 0.0

    most = max(helping, key=compute_saving, default=None)
    if most is None or most[1].saving is None:
        return most
    least = most[1].saving.per_call_s.low
    return next(pair for pair in helping if pair[1].saving and pair[1].saving.per_call_s.high >= least)


def _estimate_loss(in_eager: bool, seconds: float, tried: list[FixTrial], evidence: Evidence) -> Saving:
    """Estimate the time lost by recompilation if no tried fix helps."""
    if not in_eager:
        nothing = Interval(0.0, 0.0, 0.0)
        how = "seconds of compiling again, once in each process. A steady call takes the same time"
        return Saving(nothing, Basis.MEASURED, how, seconds)
    faster = [trial.saving for trial in tried if trial.saving and trial.saving.per_call_s.low > 0]
    if not faster:
        return estimate_compile_saving(evidence, 1)
    largest = max(faster, key=lambda saving: saving.per_call_s.mid)
    how = f"the saving of code compiled once, if the varying value were constant ({largest.how})"
    return Saving(largest.per_call_s, Basis.ESTIMATED, how)


def fixes(of: Frame, again: list[Recompile], evidence: Evidence) -> list[Fix]:
    """Return the possible fixes for the varying values, the smallest change first."""
    if evidence.plan is not None:  # a plan sets these itself
        return []
    found = []
    sizes = [one for one in again if _SIZE.search(one.guard)]
    if any(map(_is_model_value, sizes)):
        found.append(_make_setting_fix(STATE_SIZES, "sizes of the model's own tensors become symbols"))
    if any(_number(one) is not None and _is_model_value(one) for one in again):
        found.append(_make_setting_fix(NUMBERS, "whole numbers that the model holds become symbols"))
    if sizes and evidence.varying:
        found.append(_marks(evidence.varying))
    inputs = [one for one in again if not _is_model_value(one) and not one.source.startswith("G[")]
    if any(one in sizes or _number(one) is not None for one in inputs):
        found.append(Fix("dynamic", "torch.compile(model, dynamic=True)", "Compile with `dynamic=True`."))
    sources = tuple(dict.fromkeys(one.source for one in again if one.source and _BY_VALUE.search(one.guard)))
    if sources:
        found.append(_make_hoist_fix(sources, again))
    found += filter(None, map(_make_tensor_fix, again))
    return [replace(fix, of=of) for fix in dict.fromkeys(found)]


def _is_model_value(one: Recompile) -> bool:
    """Return whether the model holds the varying value, so that it is neither an input nor a global."""
    return "." in one.source.partition(".size()")[0] and not one.source.startswith("G[")


def _make_setting_fix(setting: str, consequence: str) -> Fix:
    return Fix("setting", setting, f"Set `{setting}`: {consequence}.")


def _marks(varying: tuple[tuple[str, int], ...]) -> Fix:
    by_dim: dict[int, list[str]] = {}
    for name, dim in varying:
        by_dim.setdefault(dim, []).append(name)
    marks = [
        f"{dynamo.MARK_DYNAMIC}({names[0]}, {dim})"
        if len(names) == 1
        else f"[{dynamo.MARK_DYNAMIC}(tensor, {dim}) for tensor in ({', '.join(names)})]"
        for dim, names in sorted(by_dim.items())
    ]
    code = "; ".join(marks)
    return Fix("mark", code, f"Mark the varying dimensions before the call: `{code}`.")


def _make_hoist_fix(sources: tuple[str, ...], again: list[Recompile]) -> Fix:
    lines = [f"{one.stack[-1].file}:{one.stack[-1].line}" for one in again if one.source in sources and one.stack]
    where = f" ({', '.join(dict.fromkeys(lines))})" if lines else ""
    names = " and ".join(map(_readable, sources))
    return Fix(
        "hoist",
        f"{names} out of the compiled code",
        f"Keep {names}{where} in the caller, out of the compiled code: no answer depended on it.",
        sources,
    )


def _make_tensor_fix(one: Recompile) -> Fix | None:
    number, held = _number(one), _held_number(one)
    if number is None or held is None:
        return None
    code = f"{held.holder}.register_buffer({held.name!r}, torch.tensor({type(number)()}))"
    return Fix("tensor", code, f"Make the number a tensor where it is set: `{code}`.", (one.source,), number=held)


def _held_number(one: Recompile) -> HeldNumber | None:
    """Return the number that PyTorch's expression names, or None if no submodule holds it."""
    hit = _ATTRIBUTE.match(_readable(one.source))
    if hit is None or "[" in one.source.replace("._modules[", ""):
        return None
    return HeldNumber(hit["root"], (hit["path"] or "").removeprefix("."), hit["name"])


def _readable(source: str) -> str:
    """Return a source as the code names it: "self.inner.calls" for "self._modules['inner'].calls"."""
    return _SUBMODULE.sub(r".\1", source)


def _number(one: Recompile) -> int | float | None:
    """Return the number that a guard checks for, or None if it checks for something else."""
    hit = _VALUE.match(one.guard)
    try:
        want = ast.literal_eval(hit["want"]) if hit else None
    except (ValueError, SyntaxError):
        return None
    return want if isinstance(want, (int, float)) and not isinstance(want, bool) else None


def _describe_manual_fix(again: list[Recompile]) -> str:
    """Describe a manual fix that Torchwise cannot try for the user."""
    guards = " ".join(one.guard for one in again)
    if _SIZE.search(guards):
        return "pad to a few sizes, as torchwise.bucketing does with a verified rule, or keep the sizes constant."
    if re.search(r"mismatch|expected type", guards):
        return "give every call tensors of the same dtype, device, rank and requires_grad."
    if "GLOBAL_STATE" in guards or ".training ==" in guards:
        return "call it always in the same mode."
    return "pass the varying value in as a tensor, keep it constant, or create the object once."
