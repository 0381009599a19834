"""A made-up machine that can time any plan at once, so that a whole search runs in milliseconds.

A call is matrix products, pointwise work and gaps between kernels. Every choice stretches or shrinks some of them,
never by more than it promises (`Choice.keeps`). The effect of a choice depends on the seed alone.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import pytest
from sketches import FAILED, PASSED, an_inspection, make_measurement

from torchwise.plan import EAGER, Numerics, Plan, PlanSpace
from torchwise.plan.choice import CHOICES, load_choices
from torchwise.plan.rules import CUDA_GRAPH_MODES
from torchwise.plan.space import compile_factor_of
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Costs, Failure, FailureKind, Trial, TrialState
from torchwise.study.history import BETWEEN_S, History
from torchwise.study.samplers import Sampler, StagedSampler

TRAITS = frozenset({"module", "floating", "float32", "gemm", "conv", "repeated_blocks", "several_shapes"})
NOISE = 0.004
"""Half the interval of every measured speed-up."""

BESIDE_S = 3.0
"""Seconds of every trial beside its compiling."""


@dataclass
class Machine:
    """A model on a machine, drawn from a seed.

    Attributes:
        seed: of everything.
        device: "cpu" or "cuda". Only with "cuda" the gaps between kernels are long, and measured.
        baseline_s: seconds per call of eager.
        failing: share of the compiled plans that die.
        wrong: share of the plans that give a wrong answer.
    """

    seed: int
    device: str = "cuda"
    baseline_s: float = 2e-3
    failing: float = 0.0
    wrong: float = 0.0
    shares: dict[str, float] = field(init=False)
    compile_s: float = field(init=False)

    def __post_init__(self) -> None:
        launch = self._draw("launch", 0.0, 0.8 if self.device == "cuda" else 0.1)
        gemm = (1 - launch) * self._draw("gemm", 0.05, 0.9)
        self.shares = {"gemm": gemm, "conv": gemm * self._draw("conv", 0.0, 1.0), "launch": launch}
        self.compile_s = self._draw("compile", 3.0, 40.0)

    def _draw(self, name: str, low: float, high: float) -> float:
        return low + (high - low) * _uniform(f"{self.seed} {name}")

    @property
    def operators(self) -> int:
        """Operators of one call. On a CPU their number bounds the gaps, under every plan."""
        return math.ceil(1.5 * self.shares["launch"] * self.baseline_s / BETWEEN_S)

    def parts(self, plan: Plan) -> tuple[float, float]:
        """Return the seconds per call of work and of gaps."""
        draw = self._draw
        gemm, launch = self.shares["gemm"], self.shares["launch"]
        conv, point = self.shares["conv"], 1 - gemm - launch
        if plan.memory_format != "preserve":
            gemm += conv * (draw("channels_last", 0.4, 1.5) - 1)
        if plan.precision == "tf32":
            gemm *= draw("tf32", 0.3, 1.0)
        if plan.precision == "bf16":
            gemm, point = gemm * draw("bf16", 0.2, 1.2), point * draw("bf16 point", 0.5, 1.1)
        if plan.precision.startswith("autocast"):
            gemm, point = gemm * draw(plan.precision, 0.4, 1.2), point * draw("casts", 1.0, 1.3)
        if plan.backend != "eager":
            point, launch = point * draw("fused", 0.2, 1.1), launch * draw("fewer", 0.3, 1.2)
        if plan.backend not in ("eager", "inductor"):
            gemm *= draw(plan.backend, 0.5, 1.3)
        if "max-autotune" in plan.mode:
            gemm *= draw("autotune", 0.6, 1.0)
        if plan.option("freezing"):
            gemm *= draw("freezing", 0.5, 1.1)
        for name in ("max_autotune_pointwise", "coordinate_descent_tuning"):
            point *= draw(name, 0.8, 1.05) if plan.option(name) else 1.0
        if plan.option("cpp_wrapper"):
            launch *= draw("cpp_wrapper", 0.3, 1.05)
        if plan.option("combo_kernels"):
            launch *= draw("combo_kernels", 0.5, 1.1)
        if plan.scope == "regional":
            point, launch = point * draw("regional", 1.0, 1.2), launch * draw("regional", 1.0, 1.3)
        if plan.shapes == "dynamic":
            point *= draw("dynamic", 1.0, 1.2)
        if plan.capture != "none" or plan.mode in CUDA_GRAPH_MODES:
            point, launch = point + draw("copies", 0.0, 0.05), launch * draw("graph", 0.0, 0.1)
        work = (gemm + point) * (draw("threads", 0.5, 2.0) if plan.threads else 1.0)
        return work * self.baseline_s, launch * self.baseline_s

    def seconds(self, plan: Plan) -> float:
        """Return the seconds per call, as they truly are."""
        return sum(self.parts(plan))

    def overhead(self, plan: Plan, restarts: int) -> float:
        """Return the seconds of compiling, as they truly are."""
        cold, warm = self._compiles(plan)
        return cold + (restarts - 1) * warm

    def _compiles(self, plan: Plan) -> tuple[float, float]:
        cold = compile_factor_of(plan) * self.compile_s * self._draw(f"cold {plan.id}", 0.9, 1.1)
        return cold, 0.3 * cold

    def works(self, plan: Plan) -> bool:
        """Whether the plan neither dies nor gives a wrong answer."""
        return self._failure(plan) is None and self._draw(f"wrong {plan.id}", 0, 1) >= self.wrong

    def _failure(self, plan: Plan) -> Failure | None:
        if plan.backend == "eager" or self._draw(f"failing {plan.id}", 0, 1) >= self.failing:
            return None
        return Failure(FailureKind.DIED, "compile", "SIGSEGV")

    def run(self, number: int, plan: Plan) -> Trial:
        """Try a plan, as a worker would."""
        cold, warm = self._compiles(plan)
        seconds = cold + BESIDE_S
        if failure := self._failure(plan):
            return Trial(number, plan, TrialState.FAIL, failure=failure, seconds=seconds)
        if not self.works(plan):
            return Trial(number, plan, TrialState.COMPLETE, verdict=FAILED, costs=Costs(cold), seconds=seconds)
        work, gaps = self.parts(plan)
        speed = self.baseline_s / (work + gaps)
        found = make_measurement(speed * (1 - NOISE), speed * (1 + NOISE))
        busy = found.candidate_time.mid * work / (work + gaps) if self.device == "cuda" else None
        found = make_measurement(speed * (1 - NOISE), speed * (1 + NOISE), busy_s=busy)
        return Trial(
            number,
            plan,
            TrialState.COMPLETE,
            measurement=found,
            repeats=(found,) * 4,
            verdict=PASSED,
            costs=Costs(cold, warm),
            seconds=seconds,
        )


@dataclass
class Search:
    """One whole search on one machine."""

    machine: Machine
    space: PlanSpace
    calls: int = 10_000_000
    restarts: int = 1
    history: History = field(init=False)

    def __post_init__(self) -> None:
        spec = WorkloadSpec("live:model", device=self.machine.device, calls=self.calls, restarts=self.restarts)  # type: ignore[arg-type]
        machine = self.machine
        inspection = an_inspection(
            machine.baseline_s, traits=self.space.traits, shares=machine.shares, operators=machine.operators
        )
        self.history = History(spec, inspection, ())

    def run(self, sampler: Sampler | None = None, each: Callable[[History, Plan], None] | None = None) -> History:
        """Ask and try until the sampler ends."""
        sampler = sampler or StagedSampler(self.space)
        while (proposal := sampler.ask(self.history)) is not None:
            if each:
                each(self.history, proposal.plan)
            trial = self.machine.run(len(self.history.trials), proposal.plan)
            self.history = History(self.history.workload, self.history.inspection, (*self.history.trials, trial))
        return self.history

    def cost(self, plan: Plan) -> float:
        """Return the true cost of a plan over all calls and restarts."""
        return self.machine.overhead(plan, self.restarts) + self.calls * self.machine.seconds(plan)

    def best(self) -> Plan:
        """Return the plan of least true cost among all working plans that can be reached."""
        return min((plan for plan in reachable(self.space) if self.machine.works(plan)), key=self.cost)


@functools.cache
def _uniform(name: str) -> float:
    """Return a number in [0, 1) that depends on nothing but the name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest()) / 2**48


def reachable(space: PlanSpace) -> frozenset[Plan]:
    """Return every plan that neighbours lead to from eager, with the choices that are there now."""
    return _list_reachable(space, frozenset(choice.key for choice in space.choices()))


@functools.cache
def _list_reachable(space: PlanSpace, _open: frozenset[tuple[str, object]]) -> frozenset[Plan]:
    found, waiting = {EAGER}, deque([EAGER])
    while waiting:
        for plan, _ in space.neighbours(waiting.popleft()):
            if plan not in found:
                found.add(plan)
                waiting.append(plan)
    return frozenset(found)


@contextlib.contextmanager
def installed(*packages: str) -> Iterator[None]:
    """Have only the choices that need no package, or these, whatever is installed here."""
    needed = {key: choice for key, choice in _AS_DECLARED.items() if choice.packages}
    with pytest.MonkeyPatch.context() as patch:
        for key, choice in needed.items():
            is_there = bool(set(choice.packages) & set(packages))
            patch.setitem(CHOICES, key, replace(choice, packages=() if is_there else (_NOT_THERE,)))
        yield


_NOT_THERE = "no_package_of_this_name"
_AS_DECLARED = dict(load_choices())


def a_space(
    device: str = "cuda",
    allow: str = "reordered",
    effort: str = "standard",
    mode: str = "inference",
    traits: frozenset[str] = TRAITS,
) -> PlanSpace:
    """Return the space of a workload with every trait of those that open choices."""
    return PlanSpace(device, mode, traits, Numerics.of(allow), effort)
