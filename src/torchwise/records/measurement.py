"""Raw timing samples of a candidate and of the baseline, how the CPUs were shared, and what inspecting found.

Samples are taken in alternation. The plain model is inspected once per study, in a worker, before any candidate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from torchwise.errors import InputError
from torchwise.plan import Trait
from torchwise.plan.workload_spec import VaryingDim
from torchwise.records.format import pluralize, seconds
from torchwise.records.statistics import (
    Amount,
    Count,
    Duration,
    Interval,
    Positive,
    Seconds,
    Share,
    median_interval,
    ratio_interval,
)
from torchwise.records.verdict import Check

HELD = 0.25
"""CPU time per second from which other programs count. Every machine has less than that in the background."""
WAITED = 0.1
"""Share of the time, spent ready to run and without a CPU, from which cores count as contended."""
THROTTLED = 0.01
"""Share of the time, stopped by a control group, from which cores count as contended."""


@dataclass(frozen=True, slots=True)
class CoreUse:
    """How the CPUs were shared between this process and others. Fields are None if the platform does not tell.

    An operator on several threads is done when the last of them is. If one thread waits, all others wait for it,
    operator by operator. It may wait for a core that another program holds, or for the next period of a quota.

    Attributes:
        cpus: logical CPUs that this process may be scheduled on.
        threads: threads per operator, unless a plan says otherwise.
        others: CPU time per second that other processes took of these CPUs.
        waited: share of the time in which the timing thread was ready to run and had no CPU.
        preempted: involuntary context switches per second: a CPU was taken from this process.
        pressure: share of the time in which some process of the machine waited for a CPU (Linux's PSI).
        quota: CPU time per second that the control groups allow, or None also if they set no limit.
        throttled: share of the time in which a control group was stopped because its quota was spent.
    """

    cpus: Positive
    threads: Positive
    others: Amount | None = None
    waited: Share | None = None
    preempted: Amount | None = None
    pressure: Share | None = None
    quota: Amount | None = None
    throttled: Share | None = None

    @property
    def is_contended(self) -> bool:
        """Whether threads of one operator waited for a core, or will."""
        return self.cause is not None

    @property
    def cause(self) -> str | None:
        """Why threads wait for a core, as the beginning of a sentence, or None if they do not."""
        is_stopped = (self.throttled or 0) > THROTTLED
        if self.quota is not None and self.quota < self.cpus and (self.quota < self.threads or is_stopped):
            stopped = f", and was stopped for {self.throttled:.0%} of the time" if is_stopped else ""
            return f"The container may use {self.quota:.3g} of {pluralize(self.cpus, 'core')}{stopped}"
        if self.threads > self.cpus:
            return f"{self.threads} threads share {pluralize(self.cpus, 'core')}"
        if self.has_other_load:
            return f"Other programs hold {self.others:.1f} of {pluralize(self.cpus, 'core')}"
        if (self.waited or 0) > WAITED:
            return f"Threads waited for one of {pluralize(self.cpus, 'core')} for {self.waited:.0%} of the time"
        return None

    @property
    def has_other_load(self) -> bool:
        """Whether other programs hold cores that the threads would use."""
        return self.others is not None and self.others > HELD and self.threads + self.others > self.cpus + HELD


def describe_contention(cores: CoreUse, seconds_by_threads: Mapping[int, float], model: str = "eager") -> str:
    """Describe why threads wait for a core, and how long a call takes as a result. No full stop ends the text.

    The seconds per call, by number of threads, are on one scale, and those of the default number come first.
    """
    (first, taken), *others = [(pluralize(n, "thread"), seconds(each)) for n, each in seconds_by_threads.items()]
    costs = "".join(f", with {threads} {each}" for threads, each in others)
    return f"{cores.cause or 'All cores are free'}: {model} with {first} takes {taken} a call{costs}"


INTERFERENCE_FACTOR = 1.5
"""Ratio to its usual time from which eager counts as disturbed. Another program on one core delays a computation on all
cores, since each of them waits for the last. It hardly delays a computation on one core. So the ratio of a pair does
not cancel it, and a slower plan looks faster than eager."""

_FORMER_NOTES = {"width_note": "the interval is", "not_cold": "not timed with cold processor caches"}
"""The beginnings of notes that name no disturbance. Such notes of earlier versions go into fields of their own."""


class Throttling(StrEnum):
    """Why a GPU holds its clocks back."""

    HARDWARE = "hardware slow-down"
    HARDWARE_THERMAL = "hardware thermal slow-down"
    POWER_BRAKE = "power brake"
    THERMAL = "thermal slow-down"
    POWER_CAP = "power cap"


@dataclass(frozen=True, slots=True)
class Measurement:
    """Paired samples, from which every statistic is derived.

    Attributes:
        candidate_s: seconds per call of the candidate, one value per round (a round may time several calls).
        baseline_s: seconds per call of eager in the same rounds, as many.
        calls_per_round: calls behind each value.
        candidate_device_s: seconds per call by CUDA events, from the first kernel to the last; empty on the CPU.
        baseline_device_s: likewise for eager.
        busy_s: seconds per call in which a GPU kernel of the candidate runs, by PyTorch's profiler; None if unknown.
        pruned: whether measuring stopped early because the candidate could no longer lead.
        notes: disturbances of the measurement: noise, drift, foreign load, throttling.
        sm_clock_mhz: lowest and highest clock of the GPU's multiprocessors, at the beginning and at the end of
            measuring. Empty on the CPU or if unknown.
        throttling: why the GPU held its clocks back at either of these times.
        cores: how the CPUs were shared meanwhile, or None if that was not observed.
        cold_candidate_s: seconds per call of the candidate with the processor's caches emptied before each call, in the
            same process. Empty if that was not timed.
        cold_baseline_s: likewise for eager, in the same rounds.
        width_note: says that the interval is wider than the requested precision, or "" if it is not.
        not_cold: says why the processor's caches could not be emptied, or "".
    """

    candidate_s: tuple[Duration, ...]
    baseline_s: tuple[Duration, ...]
    calls_per_round: Positive = 1
    candidate_device_s: tuple[Amount, ...] = ()
    baseline_device_s: tuple[Amount, ...] = ()
    busy_s: Amount | None = None
    pruned: bool = False
    notes: tuple[str, ...] = ()
    sm_clock_mhz: tuple[Count, ...] = ()
    throttling: tuple[Throttling, ...] = ()
    cores: CoreUse | None = None
    cold_candidate_s: tuple[Duration, ...] = ()
    cold_baseline_s: tuple[Duration, ...] = ()
    width_note: str = ""
    not_cold: str = ""

    def __post_init__(self) -> None:
        """Move notes of earlier versions that name no disturbance into their fields."""
        for name, beginning in _FORMER_NOTES.items():
            for note in (note for note in self.notes if note.startswith(beginning)):
                object.__setattr__(self, name, note)
                object.__setattr__(self, "notes", tuple(other for other in self.notes if other != note))

    @property
    def caveats(self) -> tuple[str, ...]:
        """All doubts about the measurement, for people: the disturbances first."""
        return (*self.notes, *filter(None, (self.width_note, self.not_cold)))

    def check_read(self) -> None:
        """Raise an InputError for rounds that are no pairs."""
        for cold in ("", "cold_"):
            count, expected = (len(getattr(self, f"{cold}{side}_s")) for side in ("candidate", "baseline"))
            if count != expected:
                raise InputError(
                    f"{cold}candidate_s has {count} samples and {cold}baseline_s {expected}, but must have as many"
                )

    @property
    def device(self) -> str:
        """Device of the measurement, "cpu" or "cuda"."""
        return "cuda" if self.candidate_device_s else "cpu"

    @property
    def speedup(self) -> Interval:
        """Baseline time over candidate time, in this process: above 1 if the candidate is faster."""
        return ratio_interval(self.baseline_s, self.candidate_s)

    @property
    def cold_speedup(self) -> Interval | None:
        """The same with cold processor caches, or None if that was not timed."""
        return ratio_interval(self.cold_baseline_s, self.cold_candidate_s) if self.cold_candidate_s else None

    @property
    def candidate_time(self) -> Interval:
        """Seconds per call of the candidate."""
        return median_interval(self.candidate_s)

    @property
    def baseline_time(self) -> Interval:
        """Seconds per call of eager."""
        return median_interval(self.baseline_s)

    def times_as_long(self, expected_s: tuple[float | None, float | None]) -> float:
        """Return the larger of both sides' ratios of seconds per call to their usual seconds per call, where known."""
        taken = self.candidate_time.mid, self.baseline_time.mid
        return max((now / usual for now, usual in zip(taken, expected_s, strict=True) if usual), default=1.0)

    @property
    def is_contended(self) -> bool:
        """Whether threads were observed to wait for a core meanwhile."""
        return self.cores is not None and self.cores.is_contended

    @property
    def launch_share(self) -> float:
        """Share of the candidate's time in which the GPU waits for the host, or 0 on the CPU or if unknown."""
        if self.busy_s is None:
            return 0.0
        return min(max(1.0 - self.busy_s / self.candidate_time.mid, 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one training step.

    Attributes:
        samples: rows of the batch.
        tokens: elements of the batch if it holds whole numbers, or None if it does not.
        flops: floating-point operations of its matrix products and convolutions, forward and backward, or None if they
            could not be counted.
        peak_flops: such operations per second that this device does at its best, at the step's own precision.
    """

    samples: Positive
    tokens: Count | None
    flops: Amount | None
    peak_flops: Amount | None = None


@dataclass(frozen=True, slots=True)
class Inspection:
    """Properties of the plain model.

    Attributes:
        identity: of the workload, as `torchwise.workload.identity.identity` gives it.
        structure: of the model alone, as `torchwise.workload.identity.structure` gives it.
        description: the model in a line, such as "Sequential, 25.6 M parameters, float32".
        inputs: one line per example, as `describe_example` gives it.
        traits: traits that choices may need, and that verification must know. Of `Trait.CONTENDED_CORES`,
            `measurement.cores` is the evidence.
        measurement: eager against itself. Its speed-up should hold 1, and its interval shows the machine's noise.
        first_call_s: seconds of the first call beyond a steady one.
        peak_memory: bytes at the peak of one call above those held before it, or None if not measurable.
        shares: share of eager's time by kind of work, from PyTorch's profiler. "gemm" is a share of the operators'
            time, convolutions and fused attention included, and so are "conv" and "attention". "launch" is the share of
            the call in which no kernel runs.
        operators: number of operators in a call, the most over the examples, or None if they could not be counted.
        notes: notes for the user, such as on a model left in training mode.
        work: of one step, if a training step is tuned.
        structure_details: the parts of the structure, as decisions keep them.
        varying: the dimensions of inputs whose sizes vary, if other sizes are to come.
        properties: checks of the properties that the user requires, on the plain model itself.
        weights: the digest of the weights' values if a tolerance judges plans, or "".
        takes_other_sizes: whether the model takes inputs of other sizes, or None if that was not tried.
        device_memory: the most bytes of GPU memory that the process held, weights and inputs included, or None on a CPU
            and in records of earlier versions.
    """

    identity: str
    structure: str
    description: str
    inputs: tuple[str, ...]
    traits: frozenset[Trait]
    measurement: Measurement
    first_call_s: Seconds
    peak_memory: Count | None = None
    shares: dict[str, Amount] = field(default_factory=dict)
    operators: Count | None = None
    notes: tuple[str, ...] = ()
    work: StepWork | None = None
    structure_details: str = ""
    varying: tuple[VaryingDim, ...] = ()
    properties: tuple[Check, ...] = ()
    weights: str = ""
    takes_other_sizes: bool | None = None
    device_memory: Count | None = None

    @property
    def time_by_kind(self) -> dict[str, float]:
        """Parts of eager's call by kind of work, the largest first. Unlike `shares`, no two of them overlap."""
        idle, inner = (
            self.shares.get("launch", 0.0),
            sum(self.shares.get(name, 0.0) for name in ("conv", "attention")),
        )
        parts = {
            name: share if name == "launch" else (max(share - inner, 0.0) if name == "gemm" else share) * (1 - idle)
            for name, share in self.shares.items()
        }
        return dict(sorted(parts.items(), key=lambda item: -item[1]))
