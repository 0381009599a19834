"""Evidence as a worker would collect it, without any fault, and potential savings that nobody has to wait for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from torchwise import environment
from torchwise.diagnose.evidence import Code, Evidence, Fix
from torchwise.diagnose.kernels import Profiled
from torchwise.diagnose.op_trace import OpTrace
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Interval, Measurement
from torchwise.records.compile_events import Break, Compilation, CompileEvents
from torchwise.records.explanation import (
    Basis,
    Capturable,
    Execution,
    Explanation,
    Finding,
    FixTrial,
    Kernel,
    Limits,
    Saving,
    SourceLocation,
    Stage,
)

CALL_S = 100e-6
COMPILATION = Compilation("0/0", "forward", "model.py", 10, 5.0, guards=40)


def price(mid: float, *, basis: Basis = Basis.MEASURED, once_s: float = 0.0) -> Saving:
    return Saving(Interval(mid * 0.9, mid, mid * 1.1), basis, "somehow", once_s)


def potential_saving(found: Finding) -> Saving:
    """Return the potential saving of a finding, which must have one."""
    assert found.saving is not None
    return found.saving


def evidence(**changes: Any) -> Evidence:
    """A call of 100 µs that has one good kernel, few guards, and is twice as fast as eager."""
    kernel = Kernel("cpp_fused_0", 1.0, 95e-6, 1000.0, None, 0.9, generated=True)
    clean = Evidence(
        device="cpu",
        plan=None,
        measurement=Measurement((CALL_S,) * 5, (2 * CALL_S,) * 5),
        watched=CompileEvents(5.0, compilations=(COMPILATION,)),
        code=Code(1, Counter(), Counter()),
        execution=Execution(Interval(CALL_S, CALL_S, CALL_S), 95e-6, 2e-6, 40, 1.0),
        profiled=Profiled((kernel,), 95e-6, 2e-6, 1.0, 1.0),
        observed=OpTrace(operators=5),
    )
    return replace(clean, **changes)


class FixedPrices:
    """Gives every fix the saving it was told, and keeps the questions."""

    def __init__(
        self,
        found: Saving | None = None,
        a_break: Interval | None = None,
        unguarded: Saving | None = None,
        fixes: dict[str, FixTrial] | None = None,
    ) -> None:
        self.asked: list[Any] = []
        self.failures: dict[Plan | str, str] = {}
        self._fixes = fixes or {}
        self._found, self._break, self._unguarded = found, a_break, unguarded or found

    def measure_plan(self, plan: Plan) -> Saving | None:
        self.asked.append(plan)
        return self._found

    def measure_without_guards(self) -> Saving | None:
        self.asked.append("no guards of modules")
        return self._unguarded

    def measure_setting(self, setting: str) -> Saving | None:
        self.asked.append(setting)
        return self._found

    def measure_line(self, found: Break) -> Saving | None:
        assert found.fix is not None
        self.asked.append(found.fix.line)
        return self._found

    def try_fix(self, fix: Fix) -> FixTrial | None:
        self.asked.append(fix.kind)
        return self._fixes.get(fix.kind)

    def measure_break(self) -> Interval | None:
        self.asked.append("a break")
        return self._break


def explanation(*findings: Finding, **changes: Any) -> Explanation:
    seen = evidence()
    whole = Explanation(
        workload=WorkloadSpec("model.py:factory"),
        environment=environment.detect("cpu"),
        plan=None,
        measurement=seen.measurement,
        stages=(Stage("graph capture", 1.5, "1 function", "1 graph of 4 nodes"),),
        execution=seen.execution,
        kernels=seen.kernels,
        findings=findings,
        capturable=Capturable(None, ("there are no CUDA graphs on a CPU",)),
        compile_events=seen.watched,
        notes=("the machine is noisy",),
        seconds=12.0,
        limits=Limits(1e10, 1e11),
    )
    return replace(whole, **changes)


def make_finding(kind: str = "guards", found: Saving | None = None, **changes: Any) -> Finding:
    place = SourceLocation("/home/me/model.py", 12, "forward", "if h.mean() > 0:")
    return replace(Finding(kind, f"{kind} cost time", "because", "mend it", found, (place,)), **changes)
