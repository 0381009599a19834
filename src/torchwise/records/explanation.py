"""Why a run takes as long as it does: stages, kernels, and findings with their potential savings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torchwise.environment import Environment
from torchwise.former_names import renamed_fields
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import codec
from torchwise.records.answer import Answer, Reliability, Trust, judge_trust
from torchwise.records.codec import Document
from torchwise.records.compile_events import CompileEvents
from torchwise.records.measurement import Measurement
from torchwise.records.saving import Basis as Basis
from torchwise.records.saving import Saving as Saving
from torchwise.records.saving import clamp_saving, withhold
from torchwise.records.saving import make_saving as make_saving
from torchwise.records.statistics import Amount, Count, Interval, Rate, Seconds

SCHEMA = "torchwise.explanation/1"


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A line of a user's program, counted from 1, or 0 if unknown."""

    file: str
    line: Count
    function: str = ""
    excerpt: str = ""

    def __str__(self) -> str:
        """Return such as "model.py:12, in forward"."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}, in {self.function}" if self.function else where


@renamed_fields(saving="price")
@dataclass(frozen=True, slots=True)
class FixTrial:
    """One fix that was tried on a copy of the model.

    Attributes:
        fix: the change, as code if it is code.
        saving: its saving, or None if it could not be timed.
        compilations: how often the function was compiled with it.
    """

    fix: str
    helps: bool
    seen: str
    saving: Saving | None = None
    compilations: int = 0


@renamed_fields(fix="mend", saving="price")
@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that costs time.

    Attributes:
        kind: such as "guards" or "graph break". Each finder of `torchwise.diagnose` has one.
        title: the problem, in a line.
        cause: why it happens.
        fix: the fix.
        saving: potential saving of the fix, or None if it is unknown and cannot be estimated.
        places: lines of the program.
        plan: the plan that is the fix, if there is one.
        tried: all fixes tried, including those that do not help.
    """

    kind: str
    title: str
    cause: str
    fix: str
    saving: Saving | None = None
    places: tuple[SourceLocation, ...] = ()
    plan: Plan | None = None
    tried: tuple[FixTrial, ...] = ()


@renamed_fields(artifacts="artefacts")
@dataclass(frozen=True, slots=True)
class Stage:
    """One of the six stages from a call to its kernels.

    Attributes:
        name: "graph capture" to "caching and execution".
        seconds: its duration, once, or that of one call for execution.
        went_in: its input, in words with counts.
        artifacts: names of the files that show it, if they were requested.
    """

    name: str
    seconds: Seconds
    went_in: str
    came_out: str
    artifacts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """Code that runs on the device, or a library's or compiler's function on the CPU.

    Attributes:
        calls: number of calls in one call of the model.
        seconds: total in one call of the model.
        nbytes: bytes of the tensors that they are given and return, each counted once, or None if unknown.
        flops: of matrix products, convolutions, attention and RNNs; 0 for pure data movement; None if unknown.
        share: of the roofline: the minimum time on this hardware over the actual time, or None if bytes or FLOPs are
            unknown, or the profile is rough.
    """

    name: str
    calls: Amount
    seconds: Seconds
    nbytes: Amount | None = None
    flops: Amount | None = None
    share: Amount | None = None
    generated: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to run an operator that the compiler tried.

    Attributes:
        seconds: of one run, as the compiler timed it, or None if it could not run.
    """

    name: str
    seconds: Seconds | None


@dataclass(frozen=True, slots=True)
class AutotunedOperator:
    """An operator for which the compiler timed several candidates, and took the fastest.

    Attributes:
        operator: its name, such as "mm".
        inputs: dtype and shape of each input.
        candidates: the fastest first, and those that could not run last.
    """

    operator: str
    inputs: tuple[str, ...]
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Operators of a graph that row programs run as one function, or one operator that runs alone.

    Attributes:
        operators: their names, in order.
        is_region: whether they are one function.
        reads: number of tensors that they read.
        writes: number of tensors that others read of them.
        reasons: why a region does not grow, or why the operator runs alone.
    """

    operators: tuple[str, ...]
    is_region: bool
    reads: Count
    writes: Count
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that this hardware can do: bytes per second, and FLOPs per second in the call's own dtype."""

    bandwidth: Rate
    flops: Rate

    def share(self, seconds: float, nbytes: float | None, flops: float | None) -> float | None:
        """Return minimum over actual time (Williams et al., Roofline, CACM 2009), or None if any work is unknown."""
        if nbytes is None or flops is None:
            return None
        least = max(nbytes / self.bandwidth, flops / self.flops)
        return min(least / seconds, 1.0) if least and seconds else None

    def is_compute_bound(self, kernel: Kernel) -> bool:
        """Whether the kernel's FLOPs take longer at this hardware's best than its bytes."""
        return (kernel.flops or 0.0) / self.flops > (kernel.nbytes or 0.0) / self.bandwidth


MAX_INFLATION = 2.0
"""Ratio of the profiled to the timed call up to which one scale for all kernels is honest. A profiler adds more time
between kernels than in them."""


def is_rough(inflation: float) -> bool:
    """Whether a profiled call was so unlike the timed one that one scale for all kernels is no more than a hint."""
    return not 1 / MAX_INFLATION <= inflation <= MAX_INFLATION


@dataclass(frozen=True, slots=True)
class Execution:
    """Where the time of one call goes: all seconds are on the scale of the timed call.

    Attributes:
        call_s: wall-clock seconds of a call without a profiler, averaged over the examples if there are several.
        busy_s: seconds of it in which a kernel runs.
        guards_s: seconds of looking up compiled code and checking guards.
        guards: number of guard checks in a call.
        inflation: profiled over timed duration of the call. The profiler's times were divided by it.
    """

    call_s: Interval
    busy_s: Seconds
    guards_s: Seconds = 0.0
    guards: Count = 0
    regions: Amount = 0.0
    inflation: Amount = 1.0

    @property
    def is_rough(self) -> bool:
        """Whether the profiled call was so unlike the timed one that its kernels' times are no more than a hint."""
        return is_rough(self.inflation)

    @property
    def host_share(self) -> float:
        """Share of the call in which no kernel runs: Python, dispatch, guards, gaps between launches."""
        return min(max(1 - self.busy_s / self.call_s.mid, 0.0), 1.0) if self.call_s.mid else 0.0


@dataclass(frozen=True, slots=True)
class Capturable:
    """Whether the call can be one CUDA graph, and the obstacles. The answer is None without a device to try it on."""

    answer: bool | None
    reasons: tuple[str, ...] = ()


@renamed_fields(compile_events="watched")
@dataclass(frozen=True, slots=True)
class Explanation(Document):
    """All results of `torchwise explain`.

    Attributes:
        workload: the request.
        environment: machine and software.
        plan: the plan explained, or None for `torch.compile` with its defaults.
        measurement: of the plan against eager, in alternation.
        stages: the six, in order.
        execution: where a call's time goes.
        kernels: the longest first.
        findings: largest potential saving first.
        capturable: whether the call can be a CUDA graph.
        compile_events: breaks, recompilations, compilations and fallbacks, as the compiler reported them.
        notes: remarks for the reader, such as the parts that the budget left out.
        seconds: time that all of it took.
        created_at: seconds since 1970.
        folder: folder of the artifacts, or "" if none were requested.
        limits: the hardware's peaks, for the kernels' roofline share, or None in records of earlier versions.
        autotuned: the operators for which the compiler timed candidates, in the order of compilation.
        trust: how far the times can be trusted, or None in records of earlier versions, until `settled` adds it.
        regions: for each graph that row programs compiled, its boxes in the order in which they run.
    """

    workload: WorkloadSpec
    environment: Environment
    plan: Plan | None
    measurement: Measurement
    stages: tuple[Stage, ...]
    execution: Execution
    kernels: tuple[Kernel, ...]
    findings: tuple[Finding, ...]
    capturable: Capturable
    compile_events: CompileEvents
    notes: tuple[str, ...] = ()
    seconds: Seconds = 0.0
    created_at: Amount = 0.0
    folder: str = ""
    limits: Limits | None = None
    autotuned: tuple[AutotunedOperator, ...] = ()
    trust: Trust | None = None
    regions: tuple[tuple[Box, ...], ...] = ()
    schema: str = field(default=SCHEMA)

    def __repr__(self) -> str:
        first = f": {self.findings[0].title}" if self.findings else ""
        count = f"{len(self.findings)} finding{'s' * (len(self.findings) != 1)}"
        return f"<Explanation of {self.workload.target} under {self.plan or 'torch.compile'}, {count}{first}>"

    @property
    def is_ranked(self) -> bool:
        """Whether the call was timed well enough to rank the places where its time goes."""
        return self.trust is None or self.trust.reliability is not Reliability.UNUSABLE

    def make_consistent(self) -> Explanation:
        """Return the explanation with consistent figures. Those in records of earlier versions may disagree."""
        if self.trust is not None:
            return self
        trust, call_s = judge_measurement(self.measurement), self.execution.call_s.mid
        findings = [settle(one, call_s, trust) for one in self.findings]
        total_s = sum(kernel.seconds for kernel in self.kernels)
        scale = min(call_s / total_s, 1.0) if total_s else 1.0
        kernels = (
            replace(one, seconds=one.seconds * scale, share=None if one.flops is None else one.share)
            for one in self.kernels
        )
        return replace(
            self,
            findings=rank_findings(findings, self.workload.calls),
            kernels=tuple(kernels),
            # Those of the measurement are part of the trust.
            notes=tuple(note for note in self.notes if note not in self.measurement.caveats),
            trust=trust,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of schema `torchwise.explanation/1`."""
        data: dict[str, Any] = codec.to_builtins(self)
        return data


def judge_measurement(measured: Measurement) -> Trust:
    """Return how far an explanation can be trusted: by the wider of the intervals of its speed-up and of its call."""
    if not measured.candidate_s:
        return judge_trust(())
    wider = max(measured.speedup, measured.candidate_time, key=lambda interval: interval.half_width)
    return judge_trust([wider], measured.notes)


def settle(finding: Finding, call_s: float, trust: Trust) -> Finding:
    """Return a finding with a saving of at most the call's time, and without one that could not be measured."""

    def make_saving_consistent(saving: Saving | None) -> Saving | None:
        if saving is None or trust.reliability is Reliability.UNUSABLE:
            return withhold(saving, call_s) if saving else None
        if saving.basis is not Basis.MEASURED or not call_s:
            return clamp_saving(saving, call_s)
        saved = saving.per_call_s
        share = Interval(saved.low / call_s, saved.mid / call_s, saved.high / call_s)
        return make_saving(share, call_s, saving.how, saving.once_s)

    tried = []
    for one in finding.tried:
        saving = make_saving_consistent(one.saving)
        is_conclusive = saving is None or saving.answer is not Answer.INCONCLUSIVE or saving.once_s > 0
        tried.append(replace(one, saving=saving, helps=one.helps and is_conclusive))
    return replace(finding, saving=make_saving_consistent(finding.saving), tried=tuple(tried))


def rank_findings(findings: Iterable[Finding], calls: int) -> tuple[Finding, ...]:
    """Return findings, largest saving first. Those with no saving, or an unmeasurable one, come last, as found."""

    def key(one: Finding) -> tuple[bool, float]:
        return (False, -one.saving.average_saving_s(calls)) if one.saving and one.saving.is_ranked else (True, 0.0)

    return tuple(sorted(findings, key=key))
