"""Why a run takes the time it takes: stages, kernels, and findings, each with the price of what it names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from torchwise.environment import Environment
from torchwise.plan import Plan
from torchwise.records import codec
from torchwise.records.answer import Answer, Reliability, Trust, judge_trust
from torchwise.records.bounds import Amount, Count, Rate, Seconds
from torchwise.records.codec import Document
from torchwise.records.measurement import Measurement, find_disturbances
from torchwise.records.saving import Basis as Basis
from torchwise.records.saving import Price as Price
from torchwise.records.saving import bounded, withhold
from torchwise.records.saving import price_of as price_of
from torchwise.records.statistics import Interval
from torchwise.records.watched import Watched
from torchwise.workload import WorkloadSpec

SCHEMA = "torchwise.explanation/1"


@dataclass(frozen=True, slots=True)
class Place:
    """A line of somebody's program.

    Attributes:
        file: its path.
        line: counted from 1; 0 where it is not known.
        function: that it is in.
        excerpt: the line as it is written.
    """

    file: str
    line: Count
    function: str = ""
    excerpt: str = ""

    def __str__(self) -> str:
        """Return such as "model.py:12, in forward"."""
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}, in {self.function}" if self.function else where


@dataclass(frozen=True, slots=True)
class Tried:
    """One fix that was tried on a copy of the model.

    Attributes:
        fix: what was done: code where it is code.
        helps: whether it is recommended.
        seen: what came of it, in words.
        price: what it saves; None where it could not be timed.
        compilations: how often the function was compiled under it.
    """

    fix: str
    helps: bool
    seen: str
    price: Price | None = None
    compilations: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that costs time.

    Attributes:
        kind: such as "guards" or "graph break"; one for each file of `torchwise.diagnose.findings`.
        title: what is the matter, in a line.
        cause: why it is so.
        mend: what to do about it.
        price: what that would save; None where it is neither known nor can be estimated.
        places: where in the program.
        plan: that is the mend, where a plan is.
        tried: fixes that were tried, those that do not help included.
    """

    kind: str
    title: str
    cause: str
    mend: str
    price: Price | None = None
    places: tuple[Place, ...] = ()
    plan: Plan | None = None
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the six stages from a call to its kernels.

    Attributes:
        name: "graph capture" to "caching and execution".
        seconds: that it took, once; for execution, of one call.
        went_in: what it was given, in words with counts.
        came_out: what it made of that.
        artefacts: names of the files that show it, where they were asked for.
    """

    name: str
    seconds: Seconds
    went_in: str
    came_out: str
    artefacts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """What runs on the device, or a library's or compiler's function on the CPU.

    Attributes:
        name: as the profiler has it.
        calls: in one call of the model.
        seconds: of all of them together, in one call of the model.
        nbytes: of the tensors that they are given and return, each once; None where unknown.
        flops: of matrix products, convolutions, attention and RNNs, 0 of what only moves data; None where unknown.
        share: of the roofline: least time in which this hardware could do it, over the time it took; None where bytes
            or FLOPs are unknown, or the profile is rough.
        generated: whether the compiler wrote it.
    """

    name: str
    calls: Amount
    seconds: Seconds
    nbytes: Amount | None = None
    flops: Amount | None = None
    share: Amount | None = None
    generated: bool = False


@dataclass(frozen=True, slots=True)
class Limits:
    """What this hardware can do at the most: bytes a second, and FLOPs a second in the call's own dtype."""

    bandwidth: Rate
    flops: Rate

    def share(self, seconds: float, nbytes: float | None, flops: float | None) -> float | None:
        """Return least time over time (Williams et al., Roofline, CACM 2009); None where the work is not all known."""
        if nbytes is None or flops is None:
            return None
        least = max(nbytes / self.bandwidth, flops / self.flops)
        return min(least / seconds, 1.0) if least and seconds else None

    def is_compute_bound(self, kernel: Kernel) -> bool:
        """Whether the kernel's FLOPs take longer at this hardware's best than its bytes."""
        return (kernel.flops or 0.0) / self.flops > (kernel.nbytes or 0.0) / self.bandwidth


MAX_INFLATION = 2.0
"""Ratio between the profiled and the timed call up to which one scale for all kernels is honest: a profiler takes its
time between kernels more than in them."""


def is_rough(inflation: float) -> bool:
    """Whether a profiled call was so unlike the timed one that one scale for all kernels is no more than a hint."""
    return not 1 / MAX_INFLATION <= inflation <= MAX_INFLATION


@dataclass(frozen=True, slots=True)
class Execution:
    """Where the time of one call goes: all seconds are on the scale of the timed call.

    Attributes:
        call_s: seconds of a call by the clock, with nobody looking; a mean over the examples where there are several.
        busy_s: seconds of it in which a kernel runs.
        guards_s: seconds of looking up what was compiled and checking guards.
        guards: checks that are made on a call.
        regions: compiled graphs that run in one call.
        inflation: how many times as long the call took under the profiler; what the profiler saw was divided by it.
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
    """Whether the call can be one CUDA graph, and what stands in the way.

    Attributes:
        answer: None where there is nothing to try it on.
        reasons: one for each obstacle.
    """

    answer: bool | None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation(Document):
    """Everything that `torchwise explain` found.

    Attributes:
        workload: what was asked.
        environment: machine and software.
        plan: that was explained; None for `torch.compile` with its defaults.
        measurement: of it against eager, in alternation.
        stages: the six, in order.
        execution: where a call's time goes.
        kernels: the longest first.
        findings: the dearest first.
        capturable: as a CUDA graph.
        watched: breaks, recompilations, compilations and fallbacks, as the compiler told them.
        notes: what to know when reading this, such as what the budget left out.
        seconds: that all of it took.
        created_at: seconds since 1970.
        folder: that artefacts were written to; "" where none were asked for.
        limits: of the hardware, which the kernels' share is of; None in records of earlier versions.
        trust: how far the times can be trusted; None in records of earlier versions, where `settled` adds it.
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
    watched: Watched
    notes: tuple[str, ...] = ()
    seconds: Seconds = 0.0
    created_at: Amount = 0.0
    folder: str = ""
    limits: Limits | None = None
    trust: Trust | None = None
    schema: str = field(default=SCHEMA)

    @property
    def is_ranked(self) -> bool:
        """Whether the call was timed well enough to rank what it spends its time on."""
        return self.trust is None or self.trust.reliability is not Reliability.UNUSABLE

    def settled(self) -> Explanation:
        """Return it with figures that agree, as those in records of earlier versions may not."""
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
            findings=ranked(findings, self.workload.calls),
            kernels=tuple(kernels),
            notes=self._own_notes,
            trust=trust,
        )

    @property
    def _own_notes(self) -> tuple[str, ...]:
        """The notes that do not repeat those of the measurement, which `trust` is judged by."""
        return tuple(note for note in self.notes if note not in self.measurement.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of schema `torchwise.explanation/1`."""
        data: dict[str, Any] = codec.to_builtins(self)
        return data


def judge_measurement(measured: Measurement) -> Trust:
    """Say how far an explanation can be trusted: by the wider of the intervals of its speed-up and of its call."""
    if not measured.candidate_s:
        return judge_trust(())
    wider = max(measured.speedup, measured.candidate_time, key=lambda interval: interval.half_width)
    return judge_trust([wider], find_disturbances(measured.notes))


def settle(finding: Finding, call_s: float, trust: Trust) -> Finding:
    """Return a finding of which no saving is beyond the call, and none is claimed that could not be measured."""

    def settled(price: Price | None) -> Price | None:
        if price is None or trust.reliability is Reliability.UNUSABLE:
            return withhold(price, call_s) if price else None
        if price.basis is not Basis.MEASURED or not call_s:
            return bounded(price, call_s)
        saved = price.per_call_s
        share = Interval(saved.low / call_s, saved.mid / call_s, saved.high / call_s)
        return price_of(share, call_s, price.how, price.once_s)

    tried = []
    for one in finding.tried:
        price = settled(one.price)
        tells = price is None or price.answer is not Answer.INCONCLUSIVE or price.once_s > 0
        tried.append(replace(one, price=price, helps=one.helps and tells))
    return replace(finding, price=settled(finding.price), tried=tuple(tried))


def ranked(findings: Iterable[Finding], calls: int) -> tuple[Finding, ...]:
    """Return findings, the dearest first; what has no price or could not be measured comes last, as it was found."""

    def key(one: Finding) -> tuple[bool, float]:
        return (False, -one.price.over(calls)) if one.price and one.price.is_ranked else (True, 0.0)

    return tuple(sorted(findings, key=key))
