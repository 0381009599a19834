"""Benchmarks as a real run leaves them, and a launcher that answers as its workers would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from builders import CREATED_AT, EAGER_S, HERE, PASSED, WRONG, a_measurement, an_inspection, samples
from torchwise.plan import Plan
from torchwise.plan.workload_spec import Roofline, WorkloadSpec
from torchwise.records import Costs, Failure, FailureKind, Measurement, codec
from torchwise.records.benchmark import Benchmark, Peaks, Performance, Row, RowState
from torchwise.records.listener import Listener
from torchwise.trial.job import Restart

PEAKS = Peaks(4e12, {"float32": 5e13, "bfloat16": 8e14})
ROOFLINE = Roofline(flops=1e9, bytes=1.24e9)
"""0.31 ms of copying on `PEAKS`: 2.5 % of eager's time."""
PROCESSES = 5
CRASH = Failure(FailureKind.DIED, "compile", "SIGSEGV")
HANG = Failure(FailureKind.TIMED_OUT, "compile", "passed its limit of 300 s")


def a_spec(target: str = "zoo:tutorial.fusion_demo@small", **changes: Any) -> WorkloadSpec:
    return WorkloadSpec(target, **{"device": "cuda", **changes})


def a_performance(speedup: float = 1.5, *, seed: int = 0, slowness: float = 1.0, **changes: Any) -> Performance:
    """Return the findings of five workers: this much faster than eager, on a machine `slowness` times as slow."""
    measurement, *repeats = [
        Measurement(samples(EAGER_S * slowness / speedup, seed=place), samples(EAGER_S * slowness, seed=place + 1))
        for place in range(seed + 1, seed + 1 + PROCESSES)
    ]
    fields: dict[str, Any] = {
        "costs": Costs(38.2, 4.1, 312 << 20, 280 << 20),
        "verdict": PASSED,
        "measurement": measurement,
        "repeats": () if "measurement" in changes else tuple(repeats),
        "overwrites": False,
        "dtype": "float32",
        "roofline": ROOFLINE,
    }
    return Performance(**{**fields, **changes})


def a_row(contender: str = "default", speedup: float | None = 1.5, *, target: str = "", **changes: Any) -> Row:
    """Return a timed row. `changes` may name fields of the performance, too. Without a speed-up, the row has none."""
    inner = {key: changes.pop(key) for key in (*Performance.__slots__, "seed", "slowness") if key in changes}
    spec = changes.pop("workload", None) or (a_spec(target) if target else a_spec())
    performance = None if speedup is None else a_performance(speedup, **inner)
    return Row(spec, contender, **{"performance": performance, **changes})


def ours(speedup: float = 1.7, duel: float | None = 1.13, **changes: Any) -> Row:
    """Return Torchwise's row, this much faster than its rival max-autotune, in five processes."""
    repeats = [] if duel is None else [a_measurement(duel, seed=50 + number) for number in range(1, PROCESSES)]
    fields: dict[str, Any] = {
        "plan": Plan(backend="inductor", capture="call"),
        "search_s": 43.2,
        "rival": None if duel is None else "max-autotune",
        "duel": None if duel is None else a_measurement(duel, seed=50),
        "duel_repeats": tuple(repeats),
    }
    return a_row("torchwise", speedup, **{**fields, **changes})


def some_rows(target: str = "zoo:tutorial.fusion_demo@small") -> tuple[Row, ...]:
    """Return one row for each way in which a contender can end."""
    failed: dict[str, Any] = {"speedup": None, "state": RowState.FAILED, "target": target}
    return (
        a_row("eager", 1.0, target=target, costs=Costs(0.0, 0.0, 280 << 20, 280 << 20)),
        a_row("default", 1.3, target=target),
        a_row("reduce-overhead", 1.4, target=target, overwrites=True),
        a_row("max-autotune", 1.5, target=target, costs=Costs(512.0, 18.0, 350 << 20, 280 << 20)),
        a_row("aot-inductor", 3.0, target=target, verdict=WRONG),
        a_row("thunder", failure=CRASH, reason=str(CRASH), **failed),
        a_row("openvino", None, target=target, state=RowState.MISSING, reason="openvino runs on the CPU here"),
        ours(target=target),
    )


def a_benchmark(rows: tuple[Row, ...] | None = None, **changes: Any) -> Benchmark:
    fields: dict[str, Any] = {"environment": HERE, "peaks": PEAKS, "rows": some_rows() if rows is None else rows}
    return Benchmark(created_at=CREATED_AT, **{**fields, **changes})


Answer = str | Failure | BaseException


@dataclass
class Workers:
    """A launcher whose workers answer from `contends`, by contender or (target, contender), or else 1.5 times.

    Attributes:
        contends: the results of contests.
        plain: the answer or error for a target whose inspection fails.
        duels: the results of duels by rival, for rivals whose result is not `duel`.
        jobs: a word for each job that was run, in order.
        after: called after each job.
    """

    contends: dict[Any, Performance | Failure] = field(default_factory=dict)
    plain: dict[str, Answer] = field(default_factory=dict)
    warm: float | Failure = 4.1
    duel: Measurement | Failure = field(default_factory=lambda: a_measurement(1.13))
    duels: dict[str, Measurement | Failure] = field(default_factory=dict)
    peaks: Peaks | Failure = PEAKS
    jobs: list[str] = field(default_factory=list)
    after: Callable[[str], None] = lambda _: None

    def run(self, job: Any, limits: Any, on_stage: Callable[[str], None]) -> str | Failure:
        on_stage("load")
        word, answer = self._answer(job)
        self.jobs.append(word)
        self.after(word)
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, (str, Failure)) else codec.to_json(answer)

    def _answer(self, job: Any) -> tuple[str, Any]:
        task = job.task.rpartition(":")[2]
        if task == "survey":
            return task, self.peaks
        if task in ("inspect", "check", "try"):  # of the search, too
            target = job.workload.target
            answer = CRASH if task == "try" else self.plain.get(target, an_inspection())
            return f"{task} {target}", answer
        target, name = job.job.workload.target, job.contender
        if task == "contend":
            return f"{target} {name}", self.contends.get((target, name), self.contends.get(name, a_performance()))
        answer: Any = self.duels.get(job.rival, self.duel)
        if task == "warm":
            answer = self.warm if isinstance(self.warm, Failure) else Restart(self.warm, self._again(name))
        return f"{task} {target} {name}" + (f" {job.rival}" if job.rival else ""), answer

    def _again(self, name: str) -> Measurement:
        """Return another process's measurements of a contender."""
        found = self.contends.get(name)
        return found.measurement if isinstance(found, Performance) else a_performance().measurement


class Heard(Listener):
    """A listener that remembers the rows it heard of."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.targets: list[tuple[str, int, int]] = []
        self.steps: list[str] = []
        self.benchmark: Benchmark | None = None

    def start_target(self, workload: WorkloadSpec, number: int, total: int) -> None:
        self.targets.append((workload.target, number, total))

    def start_step(self, name: str) -> None:
        self.steps.append(name)

    def finish_row(self, benchmark: Benchmark, row: Row) -> None:
        self.rows.append(row)
        self.benchmark = benchmark

    def update_row(self, benchmark: Benchmark, row: Row) -> None:
        self.rows = [row if heard.key == row.key else heard for heard in self.rows]
        self.benchmark = benchmark


def fail_row(row: Row) -> Row:
    """Return a timed row, turned into one that failed."""
    return replace(row, performance=None, state=RowState.FAILED, failure=CRASH, reason=str(CRASH))
