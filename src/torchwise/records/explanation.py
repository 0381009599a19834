"""Why a run takes the time it takes: stages, kernels, and findings, each with the price of what it names."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from torchwise.environment import Environment
from torchwise.plan import Plan
from torchwise.records import codec
from torchwise.records.bounds import Amount, Count, Rate, Seconds
from torchwise.records.codec import Document
from torchwise.records.measurement import Measurement
from torchwise.records.statistics import Interval
from torchwise.records.watched import Watched
from torchwise.workload import WorkloadSpec

SCHEMA = "torchwise.explanation/1"


class Basis(StrEnum):
    """How a price is known."""

    MEASURED = "measured"
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Price:
    """What mending a finding would save.

    Attributes:
        per_call_s: seconds of each call; below 0 where the mend would cost time.
        basis: timed with and without, or worked out.
        how: in words, from what.
        once_s: seconds saved once in each process, such as those of compiling again.
    """

    per_call_s: Interval
    basis: Basis
    how: str
    once_s: float = 0.0

    @property
    def is_clear(self) -> bool:
        """Whether each call surely becomes quicker, or surely slower: 0 lies outside of the interval."""
        return self.per_call_s.low > 0 or self.per_call_s.high < 0

    def over(self, calls: int) -> float:
        """Return seconds saved for each of so many calls, what is saved once included.

        What was measured and does not show counts as nothing: its middle is noise.
        """
        shows = self.is_clear or self.basis is Basis.ESTIMATED
        return (self.per_call_s.mid if shows else 0.0) + self.once_s / calls


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
        flops: of matrix products and convolutions; None where it is none of these.
        share: of the roofline: least time in which this hardware could do it, over the time it took.
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
        """Return least time over time (Williams et al., Roofline, CACM 2009); None where no work is known."""
        least = max((nbytes or 0.0) / self.bandwidth, (flops or 0.0) / self.flops)
        return min(least / seconds, 1.0) if least and seconds else None

    def is_compute_bound(self, kernel: Kernel) -> bool:
        """Whether the kernel's FLOPs take longer at this hardware's best than its bytes."""
        return (kernel.flops or 0.0) / self.flops > (kernel.nbytes or 0.0) / self.bandwidth


@dataclass(frozen=True, slots=True)
class Execution:
    """Where the time of one call goes.

    Attributes:
        call_s: seconds of a call by the clock, with nobody looking.
        busy_s: seconds of it in which a kernel runs.
        guards_s: seconds of looking up what was compiled and checking guards, as the profiler sees them.
        guards: checks that are made on a call.
        regions: compiled graphs that run in one call.
    """

    call_s: Interval
    busy_s: Seconds
    guards_s: Seconds = 0.0
    guards: Count = 0
    regions: Amount = 0.0

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
    schema: str = field(default=SCHEMA)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of schema `torchwise.explanation/1`."""
        data: dict[str, Any] = codec.to_builtins(self)
        return data


def ranked(findings: list[Finding], calls: int) -> tuple[Finding, ...]:
    """Return findings, the dearest first; those without a price come last, in the order they were found."""
    return tuple(sorted(findings, key=lambda f: -f.price.over(calls) if f.price else float("inf")))
