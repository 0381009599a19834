"""One plan that could be tried next: its possible saving, its costs, and why it may not be worth its trial."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.plan import EAGER, Choice, Plan
from torchwise.plan.workload_spec import DEFAULT_CALLS
from torchwise.records import format as show
from torchwise.study.gain_model import WeightedStudies
from torchwise.study.history import History

MIN_GAIN = 0.02
"""A choice that could at best save less than this share of the leader's time is not tried: noise would decide."""
HOPE = 0.5
"""Expected saving of a choice as a share of its bound: on the reference workloads few saved more.

Its compiling and its trial must be paid from that, or the search would cost more than it finds.
"""
_PARTS = {
    "all": "the whole call",
    "gemm": "matrix products and convolutions",
    "conv": "convolutions",
    "attention": "fused attention",
    "launch": "the gaps between kernels",
    "memory": "memory alone",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One plan that could be tried: its base, its choice, its possible saving and its cost."""

    plan: Plan
    base: Plan
    choice: Choice
    gain_s: float  # per call, over the leader, at the very best
    overhead_s: float  # of compiling, over all restarts
    trial_s: float  # of trying it
    is_own_precision: bool = False  # fewer bits without a lower precision near the leader (`iter_own_precision`)

    @property
    def is_replacement(self) -> bool:
        """Whether it takes the place of another value that the base has. All numbers of threads come at once."""
        field = self.choice.field
        return field not in ("transforms", "options", "threads") and getattr(self.base, field) != getattr(EAGER, field)

    def expect_saving_s(self, history: History, studies: WeightedStudies) -> float:
        """Return the seconds per call that it is expected to save over the leader, by past studies.

        Compiling counts, by the calls over which it is spread.
        """
        leader = history.incumbent()
        compiling_s = (history.overhead_of(leader) - self.overhead_s) / history.workload.calls
        best_s = history.seconds_of(leader) + compiling_s  # it has to be quicker than that
        if best_s <= 0:
            return 0.0
        return min(studies.expect_saving_s(self.plan, best_s), self.gain_s + compiling_s)

    def problem(self, history: History) -> str | None:
        """Return why it is not worth trying, or None if its possible saving pays for compiling and for the trial."""
        leader = history.incumbent()
        if late := history.ran_out(self.plan):
            return f"compiling it takes longer than {format_estimate(late.seconds)}, as {late.plan} showed"
        short = self.choice.target_cost == "memory" and not history.eager_fits_memory
        # Bounds are of time, and tell nothing of memory, or of a property that eager lacks.
        if history.workload.objective == "memory" or short or history.eager_lack:
            return (
                None if self.overhead_s < history.economics.baseline_cost else "compiling takes longer than all calls"
            )
        if self.choice.target_cost == "compile":
            saved = history.overhead_of(self.base) - self.overhead_s
            if saved < max(MIN_GAIN * history.cost_of(leader), self.trial_s) or self.base != leader:
                most = format_estimate(max(saved, 0))
                return f"it could save at most {most} of compiling; its trial takes {format_estimate(self.trial_s)}"
            return None
        leader_s = history.seconds_of(leader)
        if self.gain_s < MIN_GAIN * leader_s:
            gain = max(self.gain_s, 0.0) / leader_s
            return (
                f"it acts on {_PARTS[self.choice.target_cost]}, and could save at most {gain:.1%} of the leader's time"
            )
        closes = self.choice.target_cost == "launch" and self.choice.field != "options"  # a graph closes measured gaps
        hope = 1.0 if closes else HOPE
        saved = hope * self.gain_s * history.workload.calls
        extra_s = self.overhead_s - history.overhead_of(leader)  # the leader need not be compiled then
        # The search has a budget of its own. Calls that nobody stated are no reason to end it before.
        trial_s = self.trial_s if history.workload.calls != DEFAULT_CALLS else 0.0
        if saved < extra_s + trial_s:
            calls = f"{history.workload.calls:,} calls"
            would = f"it would save about {format_estimate(saved)} over {calls}, which is less than "
            trial = f"{format_estimate(trial_s)} for the trial"
            if extra_s <= 0:  # it compiles in less time than the leader, by less than its trial takes
                return f"{would}{trial}"
            return f"{would}{format_estimate(extra_s)} of extra compile time{f' plus {trial}' if trial_s else ''}"
        return None


def format_estimate(seconds: float) -> str:
    """Return an estimate in words, without digits that it does not have, and without an exponent."""
    return f"{seconds:.3g} s" if 0.1 <= abs(seconds) < 999.5 else show.seconds(seconds)
