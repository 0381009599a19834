"""One request to benchmark."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.errors import InputError
from torchwise.plan import Numerics, Plan
from torchwise.plan.workload_spec import DEFAULT_CALLS, WorkloadSpec
from torchwise.records.benchmark import TORCHWISE
from torchwise.study import Request
from torchwise.study.request import check_times_calls

LIMIT_S = 300.0
"""Time limit for one contender on one target. The longest compilation of a reference workload took 238 s."""


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request to benchmark.

    Attributes:
        targets: the targets to run.
        contenders: names, as `torchwise.bench.contenders.find` takes them.
        device: "cpu" or "cuda".
        mode: "inference" or "training".
        objective: "latency" or "throughput".
        effort: "quick", "standard" or "thorough". It sets the width of intervals and the extent of Torchwise's search.
        calls: expected number of calls, for Torchwise's decision.
        allow: the loosest numerics that Torchwise may use.
        seed: seed of weights and inputs.
        limit_s: time limit in seconds for one contender on one target.
        budget_s: seconds after which no further contender starts, or None for no limit.
        warm: whether to measure the first call with warm caches, too, in a second process.
        plans: plans for Torchwise to choose from without a search, or empty for a search.
        cold: whether to time contenders with cold processor caches, too.
    """

    targets: tuple[str, ...]
    contenders: tuple[str, ...]
    device: str = "cpu"
    mode: str = "inference"
    objective: str = "latency"
    effort: str = "standard"
    calls: int = DEFAULT_CALLS
    allow: Numerics = Numerics.SAME_PRECISION
    seed: int = 0
    limit_s: float = LIMIT_S
    budget_s: float | None = None
    warm: bool = True
    plans: tuple[Plan, ...] = ()
    cold: bool = False

    def __post_init__(self) -> None:
        if not self.targets:
            raise InputError("no target is given, but a benchmark needs at least one: a family, a name or a suite")
        if self.objective not in ("latency", "throughput"):
            raise InputError(f"objective is {self.objective!r}, but must be latency or throughput")
        if self.cold:
            check_times_calls(self.objective)
        for name in ("limit_s", "budget_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"{name.removesuffix('_s')} is {value!r} s, but must be above 0")
        if self.plans and TORCHWISE not in self.contenders:
            raise InputError(
                f"plans are for the contender torchwise, but the contenders are {', '.join(self.contenders)}"
            )
        # Refuse invalid values and plans before the hardware is measured.
        self.study(self.workload(self.targets[0]))

    def study(self, workload: WorkloadSpec) -> Request:
        """Return the request for Torchwise's study of one target.

        Raises:
            InputError: a plan is not permitted or not supported.
        """
        limit_s = self.limit_s if self.plans else None  # a search has its effort's limits
        return Request(workload, self.allow, self.effort, plans=self.plans or None, limit_s=limit_s)

    def workload(self, target: str) -> WorkloadSpec:
        """Return the specification of the workload for one target.

        Raises:
            WorkloadError: device, mode, calls or objective are invalid.
        """
        return WorkloadSpec(
            target,
            device=self.device,  # type: ignore[arg-type]
            mode=self.mode,  # type: ignore[arg-type]
            objective=self.objective,  # type: ignore[arg-type]
            calls=self.calls,
            seed=self.seed,
        )
