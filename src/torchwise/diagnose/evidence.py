"""The evidence that the finders read, the fixes that they have tried, and savings that nobody timed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchwise.diagnose.kernels import Profiled
from torchwise.diagnose.op_trace import OpTrace, ReadKind
from torchwise.diagnose.stages import Code
from torchwise.errors import PlanError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import DEFAULT_CALLS
from torchwise.records import Interval, Measurement
from torchwise.records.compile_events import Break, CompileEvents, Frame
from torchwise.records.explanation import Basis, Execution, Kernel, Saving

COMPILED = Plan(backend="inductor")


@dataclass(frozen=True, slots=True)
class Evidence:
    """All evidence about one run.

    Attributes:
        device: "cpu" or "cuda".
        plan: of the run, or None for `torch.compile` with its defaults.
        measurement: of the run against eager.
        watched: the compiler's events.
        code: the calls in the generated code.
        execution: where the time of a steady call goes.
        profiled: the profiler's view of a steady call.
        observed: the trace of the original model's operators.
        has_rnn: whether the model has an RNN among its submodules.
        has_static_form: whether the model declares a static form.
        varying: sizes in which the examples differ: the tensor, as the code names it, and the dimension.
        calls: expected calls in each process. Seconds that are saved once are divided by them.
    """

    device: str
    plan: Plan | None
    measurement: Measurement
    watched: CompileEvents
    code: Code
    execution: Execution
    profiled: Profiled
    observed: OpTrace
    has_rnn: bool = False
    has_static_form: bool = False
    varying: tuple[tuple[str, int], ...] = ()
    calls: int = DEFAULT_CALLS

    @property
    def base(self) -> Plan:
        """The plan that fixes are added to."""
        return COMPILED if self.plan is None else self.plan

    def with_choice(self, name: str, value: str) -> Plan | None:
        """Return that plan with one choice more, or None if the plan excludes the choice."""
        try:
            return self.base.with_choice(name, value)
        except PlanError:
            return None

    @property
    def captured(self) -> Plan | None:
        """The plan that captures the call, chosen by the reads of GPU data in Python, or None if the run is captured.

        Reads of a bool or a count split the capture. Numbers can stay on the GPU, but only in eager.
        """
        if self.device != "cuda" or self.base.capture != "none":
            return None
        reads = {wait.reads for wait in self.observed.waits}
        if reads and reads <= {ReadKind.BOOL, ReadKind.COUNT}:
            return self.with_choice("capture", "branches")
        if reads == {ReadKind.SCALAR}:
            base, transforms = self.base, ("numbers_on_gpu",)
            return Plan(base.precision, base.memory_format, transforms, capture="call")
        return self.with_choice("capture", "call")

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels of one call, the longest first."""
        return self.profiled.kernels


@dataclass(frozen=True, slots=True)
class HeldNumber:
    """A number that a submodule holds.

    Attributes:
        root: the model, as its code names it, such as "self".
        path: the submodule's path in the model, or "" for the model itself.
        name: the number's attribute.
    """

    root: str
    path: str
    name: str

    @property
    def holder(self) -> str:
        """The submodule, as the model's code names it."""
        return f"{self.root}.{self.path}" if self.path else self.root


@dataclass(frozen=True, slots=True)
class Fix:
    """A possible way to keep a function from being recompiled, which is tried on a copy of the model.

    Attributes:
        kind: "setting" of PyTorch, "dynamic" shapes, or "mark" for inputs whose dimensions are marked as dynamic. With
            "hoist", guards leave out the varying value, as if the caller kept it. With "tensor", a number becomes a
            tensor.
        code: the code of the fix, as it is printed.
        advice: the recommendation as a sentence, for a fix that helps.
        sources: the varying values, as PyTorch names them.
        number: for "tensor", the number that becomes a tensor.
        of: the function that is recompiled.
    """

    kind: Literal["setting", "dynamic", "mark", "hoist", "tensor"]
    code: str
    advice: str
    sources: tuple[str, ...] = ()
    number: HeldNumber | None = None
    of: Frame | None = None


def make_estimate(low: float, mid: float, high: float, how: str) -> Saving:
    """Return a saving that was not timed."""
    return Saving(Interval(low, mid, high), Basis.ESTIMATED, how)


def estimate_compile_saving(evidence: Evidence, among: int) -> Saving:
    """Estimate the saving from compiling a function that runs as written: fusion, and the time between kernels.

    Args:
        evidence: of the run.
        among: how many functions share the saving.
    """
    execution = evidence.execution
    fusible = sum(kernel.seconds for kernel in evidence.kernels if not kernel.generated and not kernel.flops) / 2
    upper = (fusible + execution.call_s.mid * execution.host_share) / among
    return make_estimate(
        0.0,
        upper / 2,
        upper,
        "compiling the uncompiled code saves at most the time in which no kernel runs, and half the time of the "
        "kernels that could be fused",
    )


def place_of_line(graph_break: Break) -> str:
    """Return the key of a rewritten line: a program may have the same line twice."""
    return f"{graph_break.file}:{graph_break.line}: {graph_break.fix.line if graph_break.fix else ''}"
