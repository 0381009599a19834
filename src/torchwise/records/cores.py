"""How the CPUs were shared during timing, and how much a model loses to threads that wait for a core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchwise.records.format import seconds
from torchwise.records.statistics import Amount, Positive, Share

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
            return f"The container may use {self.quota:.3g} of {_count(self.cpus, 'core')}{stopped}"
        if self.threads > self.cpus:
            return f"{self.threads} threads share {_count(self.cpus, 'core')}"
        if self.has_other_load:
            return f"Other programs hold {self.others:.1f} of {_count(self.cpus, 'core')}"
        if (self.waited or 0) > WAITED:
            return f"Threads waited for one of {_count(self.cpus, 'core')} for {self.waited:.0%} of the time"
        return None

    @property
    def has_other_load(self) -> bool:
        """Whether other programs hold cores that the threads would use."""
        return self.others is not None and self.others > HELD and self.threads + self.others > self.cpus + HELD


def describe_contention(cores: CoreUse, seconds_by_threads: Mapping[int, float], model: str = "eager") -> str:
    """Describe why threads wait for a core, and how long a call takes as a result. No full stop ends the text.

    Args:
        cores: how the CPUs were shared.
        seconds_by_threads: seconds per call by number of threads, the default number first, on one scale.
        model: name of the model that is called.
    """
    (first, taken), *others = [(_count(n, "thread"), seconds(each)) for n, each in seconds_by_threads.items()]
    costs = "".join(f", with {threads} {each}" for threads, each in others)
    return f"{cores.cause or 'All cores are free'}: {model} with {first} takes {taken} a call{costs}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
