"""What the finders look at, and what they ask the price of a mend from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torchwise.diagnose.kernels import Profiled
from torchwise.diagnose.observed import Observed
from torchwise.diagnose.stages import Code
from torchwise.errors import PlanError
from torchwise.plan import Plan
from torchwise.records import Interval, Measurement
from torchwise.records.explanation import Basis, Execution, Kernel, Price, Tried
from torchwise.records.watched import Break, Frame, Watched
from torchwise.workload import DEFAULT_CALLS

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
        varying: sizes in which the examples differ: the tensor, as the code names it, and the dimension.
        calls: expected in each process, over which seconds that are saved once are spread.
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
    varying: tuple[tuple[str, int], ...] = ()
    calls: int = DEFAULT_CALLS

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

        Questions, yes or no or how many, cut it into pieces. Numbers can stay on the GPU, but only in eager.
        """
        if self.device != "cuda" or self.base.capture != "none":
            return None
        reads = {wait.reads for wait in self.observed.waits}
        if reads and reads <= {"yes or no", "how many"}:
            return self.with_choice("capture", "branches")
        if reads == {"number"}:
            base, transforms = self.base, ("numbers_on_gpu",)
            return Plan(base.precision, base.memory_format, transforms, capture="call")
        return self.with_choice("capture", "call")

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Of one call, the longest first."""
        return self.profiled.kernels


@dataclass(frozen=True, slots=True)
class Fix:
    """Something that may keep a function from being compiled anew, as it is tried on a copy of the model.

    Attributes:
        kind: "setting" of PyTorch; "dynamic" shapes; "mark" dimensions of the inputs as dynamic; "held": what varies is
            not asked about, as where the caller keeps it; "tensor": a number becomes a tensor.
        code: what is done, as it is printed.
        advice: what to do, in a sentence, where it helps.
        sources: what varies, as PyTorch names it.
        dims: of "mark", the tensors and dimensions.
        of: the function that is compiled anew.
    """

    kind: Literal["setting", "dynamic", "mark", "held", "tensor"]
    code: str
    advice: str
    sources: tuple[str, ...] = ()
    dims: tuple[tuple[str, int], ...] = ()
    of: Frame | None = None


class Prices(Protocol):
    """Times a run with and without a mend. What cannot be priced is None, and why is noted."""

    def of_plan(self, plan: Plan) -> Price | None:
        """Return what this plan saves over the run."""

    def without_module_guards(self) -> Price | None:
        """Return what the same code saves where PyTorch asks nothing about modules and their weights."""

    def under(self, setting: str) -> Price | None:
        """Return what compiling under a setting of PyTorch saves, written as "torch._dynamo.config.x = True"."""

    def of_line(self, found: Break) -> Price | None:
        """Return what the model saves with the line that a break's mend gives, which was run."""

    @property
    def failures(self) -> Mapping[Plan | str, str]:
        """How mends failed when they were tried."""

    def tried(self, fix: Fix) -> Tried | None:
        """Try a fix on a copy of the model: how often it is then compiled, whether it answers alike, what it saves."""

    def of_a_break(self) -> Interval | None:
        """Return the seconds that one graph break costs here by itself, with next to no guards and nothing to fuse."""


def estimated(low: float, mid: float, high: float, how: str) -> Price:
    """Return a price that nobody timed."""
    return Price(Interval(low, mid, high), Basis.ESTIMATED, how)


def left_to_eager(evidence: Evidence, among: int) -> Price:
    """Work out what compiling could save of a function that runs as written: fusion, and the time between kernels.

    Args:
        evidence: of the run.
        among: how many functions share what there is to save.
    """
    seen = evidence.execution
    fusible = sum(kernel.seconds for kernel in evidence.kernels if not kernel.generated and not kernel.flops) / 2
    most = (fusible + seen.call_s.mid * seen.host_share) / among
    return estimated(
        0.0,
        most / 2,
        most,
        "compiling what is left uncompiled saves at most the time in which no kernel runs, and half of the kernels "
        "that could be fused",
    )


def place_of_line(found: Break) -> str:
    """Return what a line that is written otherwise goes by: a program may have the same one twice."""
    return f"{found.file}:{found.line}: {found.mend.line if found.mend else ''}"
