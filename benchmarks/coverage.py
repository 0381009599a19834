"""Do intervals have their nominal coverage, and are decisions right as often as they claim?

A model of 100 equal layers is timed against itself, and against copies of 102, 105 and 110 layers. This happens in many
fresh processes, in a search's own workers, as for a plan against eager. Groups of processes are drawn from this pool,
and given to a search's own functions. They set the number of processes, the final interval and the decision. The truth
is 1 for the model against itself, and the median over all processes for the others.

Run it: python benchmarks/coverage.py --device cpu --label xeon-2cpu --out benchmarks/results
With a competing process on one core: add --busy. The answers must become inconclusive then, and never wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchwise import environment
from torchwise.environment import Environment
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import (
    Check,
    Costs,
    Failure,
    Inspection,
    Interval,
    Measurement,
    Outcome,
    Trial,
    TrialState,
    Verdict,
    codec,
)
from torchwise.records.answer import Answer
from torchwise.study.decision import decide
from torchwise.study.history import History
from torchwise.study.pairwise import next_repeat
from torchwise.trial import Job, Limits, ProcessLauncher, ProcessSettings

LAYERS, WIDTH, ROWS = 100, 128, 32
PLANTED = (0, 2, 5, 10)
"""Additional layers per hundred, which is the slow-down in percent."""
GROUPS = 2000
PLAN = Plan(capture="call")
"""A placeholder for the candidate. It does not run."""
SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@dataclass(frozen=True, slots=True)
class Pool(codec.Document):
    """The measurements.

    Attributes:
        environment: the machine.
        effort: the effort that set the care of measurement.
        busy: whether another process competed for one core.
        date: the date.
        threads: threads of each process, or 0 for PyTorch's default.
        load: the machine's load average over a minute, after each process.
        processes: for each process, the timings of the model against longer copies, by the number of additional layers.
    """

    environment: Environment
    effort: str
    busy: bool
    date: str
    threads: int = 0
    load: tuple[float, ...] = ()
    processes: tuple[dict[str, Measurement], ...] = ()
    schema: str = "torchwise.coverage/1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--effort", default="standard", choices=list(EFFORTS))
    parser.add_argument("--processes", type=int, default=60)
    parser.add_argument("--minutes", type=float, default=60.0, help="minutes after which no further process starts")
    parser.add_argument("--threads", type=int, default=0, help="threads of each process; 0 for PyTorch's default")
    parser.add_argument("--busy", action="store_true", help="with a competing process on one core")
    parser.add_argument("--pool", type=Path, nargs="+", help="files of earlier measurements, to evaluate together")
    parser.add_argument("--label", help="hardware, for the names of the files; the device where left out")
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)  # now, so that an hour of measurement is not lost at the end
    if options.pool:  # judged as in a search of the requested effort
        pool = replace(join_pools([Pool.from_json(file.read_bytes()) for file in options.pool]), effort=options.effort)
    else:
        pool = collect(options)
    text = report(pool)
    print(text)
    busy = "-busy" if pool.busy else ""
    name = f"{pool.date}-{options.label or pool.environment.device}-coverage{busy}"
    if not options.pool or len(options.pool) > 1:
        (options.out / f"{name}.json").write_text(pool.to_json() + "\n")
    (options.out / f"{name}.txt").write_text(text)


def collect(options: argparse.Namespace) -> Pool:
    """Measure in the requested number of fresh processes."""
    here, date = environment.detect(options.device), datetime.datetime.now(datetime.UTC).date().isoformat()
    pool = Pool(here, options.effort, options.busy, date, options.threads)
    job = Job("coverage:sample", WorkloadSpec("coverage:none", device=options.device), effort=EFFORTS[options.effort])  # type: ignore[arg-type]
    if options.threads:
        settings = ProcessSettings.from_this_process()
        job = replace(job, settings=replace(settings, threads=options.threads))
    launcher, until = ProcessLauncher(), time.monotonic() + 60 * options.minutes
    with competing() if options.busy else contextlib.nullcontext():
        while len(pool.processes) < options.processes and time.monotonic() < until:
            answer = launcher.run(job, Limits.from_free_memory(600), hear)
            if isinstance(answer, Failure):
                raise SystemExit(f"a process failed: {answer}")
            found = codec.from_json(answer, dict[str, Measurement])
            if job.baseline_s is None:  # as in the profiling of a plain model, which gives eager's usual time
                job = replace(job, baseline_s=found["0"].baseline_time.mid)
                continue
            load = (*pool.load, round(os.getloadavg()[0], 2))
            pool = replace(pool, processes=(*pool.processes, found), load=load)
            results = ", ".join(f"{more}: {timed.speedup}" for more, timed in found.items())
            print(f"{len(pool.processes)}: {results}", file=sys.stderr, flush=True)
    return pool


def join_pools(pools: Sequence[Pool]) -> Pool:
    """Join the processes of several pools, if they were measured alike."""
    first, *others = pools
    for other in others:
        different = first.environment.differences(other.environment)
        if different or (first.busy, first.threads) != (other.busy, other.threads):
            raise SystemExit(
                f"the pools were measured under different conditions: {'; '.join(different) or 'busy, or threads'}"
            )
    processes = tuple(process for pool in pools for process in pool.processes)
    return replace(first, processes=processes, load=tuple(load for pool in pools for load in pool.load))


def hear(stage: str) -> None:
    """Print a worker's stage."""
    print(f"  {stage}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def competing() -> Iterator[None]:
    """Keep one core busy."""
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", SPIN, str(core)]) as process:
        try:
            yield
        finally:
            process.kill()


def sample(job: Job, stage: Callable[[str], None]) -> dict[str, Measurement]:
    """Time the model against itself and against its longer copies, in a worker."""
    import torch

    from torchwise.measure.clock import Clock
    from torchwise.measure.paired_timing import Mix, Precision, measure_pair

    if job.settings:
        job.settings.apply()
    torch.manual_seed(0)
    device = job.workload.device
    layers = [torch.nn.Linear(WIDTH, WIDTH, device=device) for _ in range(LAYERS)]
    given = torch.randn(ROWS, WIDTH, device=device)

    def model(count: int) -> Callable[[], Any]:
        chain = [layers[place % LAYERS] for place in range(count)]

        def call() -> Any:
            value = given
            for layer in chain:
                value = torch.tanh(layer(value))
            return value

        return call

    clock, precision = Clock(device), Precision(job.effort.half_width, job.effort.measure_s)
    found = {}
    with torch.no_grad():
        for more in PLANTED:
            sides = model(LAYERS), model(LAYERS + more)
            for side in (*sides, *sides):
                clock.once(side)
            stage("measure")
            mixes = [Mix((side,), (1.0,)) for side in sides]
            found[str(more)] = measure_pair(*mixes, clock, precision, expected_s=(None, job.baseline_s))
    return found


@dataclass(frozen=True, slots=True)
class Told:
    """A search's result for one group of processes: its final interval, the number of processes, and its answer."""

    speedup: Interval
    processes: int
    answer: str


def tell(group: Sequence[Measurement], here: Environment, effort: str) -> Told:
    """Process a group as a search does, one process at a time, and decide."""
    care, spec = EFFORTS[effort], WorkloadSpec("coverage:none", device=here.device, calls=10**9)
    passed = Verdict((Check("values", Outcome.PASS, "not run"),))
    trial = Trial(0, PLAN, TrialState.COMPLETE, measurement=group[0], verdict=passed, costs=Costs(0.0))
    inspection = Inspection("", "", "", (), frozenset(), group[0], 0.0)
    left = list(group[1:])
    while left and next_repeat(History(spec, inspection, (trial,)), care.processes, care.half_width, 1):
        trial = replace(trial, repeats=(*trial.repeats, left.pop(0)))
    decision = decide(History(spec, inspection, (trial,)), here)
    assert trial.speedup is not None
    answer = "no gain" if trial.is_faster is Answer.NO else "inconclusive"
    return Told(trial.speedup, len(trial.processes), answer if decision.plan.is_eager else "faster")


def swap_sides(timed: Measurement) -> Measurement:
    """Return the measurement with the sides swapped: the longer copy as the plan."""
    device = timed.baseline_device_s, timed.candidate_device_s
    swapped = replace(timed, candidate_s=timed.baseline_s, baseline_s=timed.candidate_s)
    return replace(swapped, candidate_device_s=device[0], baseline_device_s=device[1])


def report(pool: Pool) -> str:
    """Return the shares of groups whose intervals hold the truth, and of right and wrong answers."""
    here, most = pool.environment, EFFORTS[pool.effort].processes
    rng = random.Random(0)
    groups = [rng.sample(range(len(pool.processes)), most) for _ in range(GROUPS)]
    lines = [
        f"{here.gpu or here.cpu}, {here.cpus} CPUs, torch {here.torch}, {pool.date}, effort {pool.effort}: "
        f"{len(pool.processes)} processes{', with a competing process on one core' if pool.busy else ''}",
        f"threads: {pool.threads or 'PyTorch default'}; load average {min(pool.load, default=0):.1f} to "
        f"{max(pool.load, default=0):.1f}; {GROUPS} groups of at most {most} processes, drawn from them",
        "",
        f"{'plan':34} {'truth':>6} {'spread':>7} {'95 % covers':>12} {'of a search':>12} {'processes':>9} {'width':>7}"
        f"  {'faster':>7} {'no gain':>7} {'inconclusive':>12}",
    ]
    for more in PLANTED:
        timed = [process[str(more)] for process in pool.processes]
        sides = [("the model against itself", timed)] if more == 0 else []
        if more:
            longer = [swap_sides(one) for one in timed]
            sides = [(f"the model against {more} % more", timed), (f"{more} % more", longer)]
        lines += [line(name, side, groups, pool) for name, side in sides]
    lines += [
        "",
        "truth: 1 for the model against itself, else the median over all processes. spread: standard deviation of the",
        f"processes' medians. covers: share of groups of {most} processes whose interval contains the truth.",
        "of a search: the same, for the processes after which a search ends. width: median half-width of these.",
    ]
    return "\n".join(lines) + "\n"


def line(name: str, timed: list[Measurement], groups: list[list[int]], pool: Pool) -> str:
    """Return the results of one plan."""
    mids = [one.speedup.mid for one in timed]
    truth = 1.0 if name.endswith("itself") else statistics.median(mids)
    drawn = [[timed[place] for place in group] for group in groups]
    results = [tell(group, pool.environment, pool.effort) for group in drawn]
    whole = [Trial(0, PLAN, measurement=group[0], repeats=tuple(group[1:])).speedup for group in drawn]
    answers = [one.answer for one in results]
    shares = [answers.count(answer) / len(answers) for answer in ("faster", "no gain", "inconclusive")]
    return (
        f"{name:34} {truth:6.3f} {statistics.stdev(mids) / truth:7.2%} "
        f"{statistics.mean(holds(one, truth) for one in whole if one):12.1%} "
        f"{statistics.mean(holds(one.speedup, truth) for one in results):12.1%} "
        f"{statistics.mean(one.processes for one in results):9.1f} "
        f"{statistics.median(one.speedup.half_width for one in results):7.2%}  "
        f"{shares[0]:7.1%} {shares[1]:7.1%} {shares[2]:12.1%}"
    )


def holds(interval: Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


if __name__ == "__main__":
    main()
