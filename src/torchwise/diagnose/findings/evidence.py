"""What the finders look at, and what they ask the price of a mend from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torchwise.diagnose.kernels import Profiled
from torchwise.diagnose.observed import Observed
from torchwise.diagnose.stages import Code
from torchwise.errors import PlanError
from torchwise.plan import Plan
from torchwise.records import Interval, Measurement
from torchwise.records.explanation import Basis, Execution, Kernel, Price
from torchwise.records.watched import Watched

COMPILED = Plan(backend="inductor")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that was seen of one run.

    Attributes:
        device: "cpu" or "cuda".
        plan: that was run; None for `torch.compile` with its defaults.
        measurement: of the run against eager.
        watched: what the compiler said.
        code: what the generated code calls.
        execution: of a steady call.
        profiled: of a steady call, by the profiler.
        observed: the plain model, operator by operator.
        has_rnn: whether the model has one among its parts.
        has_static_form: whether the model declares one.
    """

    device: str
    plan: Plan | None
    measurement: Measurement
    watched: Watched
    code: Code
    execution: Execution
    profiled: Profiled
    observed: Observed
    has_rnn: bool = False
    has_static_form: bool = False

    @property
    def base(self) -> Plan:
        """The plan that mends are added to."""
        return COMPILED if self.plan is None else self.plan

    def with_choice(self, name: str, value: str) -> Plan | None:
        """Return that plan with one choice more; None where the two do not go together."""
        try:
            return self.base.with_choice(name, value)
        except PlanError:
            return None

    @property
    def captured(self) -> Plan | None:
        """The plan that captures the call, by what Python reads from the GPU in it; None where the run is captured.

        Questions cut it into pieces. Numbers can stay on the GPU, but only in eager.
        """
        if self.device != "cuda" or self.base.capture != "none":
            return None
        reads = {wait.reads for wait in self.observed.waits}
        if reads == {"yes or no"}:
            return self.with_choice("capture", "branches")
        if reads == {"number"}:
            base, transforms = self.base, ("numbers_on_gpu",)
            return Plan(base.precision, base.memory_format, transforms, capture="call")
        return self.with_choice("capture", "call")

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Of one call, the longest first."""
        return self.profiled.kernels


class Prices(Protocol):
    """Times a run with and without a mend. What cannot be priced is None, and why is noted."""

    def of_plan(self, plan: Plan) -> Price | None:
        """Return what this plan saves over the run."""

    def without_module_guards(self) -> Price | None:
        """Return what the same code saves where PyTorch asks nothing about modules and their weights."""

    def under(self, setting: str) -> Price | None:
        """Return what compiling under a setting of PyTorch saves, written as "torch._dynamo.config.x = True"."""

    def of_a_break(self) -> Interval | None:
        """Return the seconds that one graph break costs here by itself, with next to no guards and nothing to fuse."""


def estimated(low: float, mid: float, high: float, how: str) -> Price:
    """Return a price that nobody timed."""
    return Price(Interval(low, mid, high), Basis.ESTIMATED, how)
