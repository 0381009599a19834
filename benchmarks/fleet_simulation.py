"""Simulate searches over 10, 100 and 1,000 devices: the limits of the store, the samplers and the artifacts.

    python benchmarks/fleet_simulation.py [--store URL] [--json FILE]

First it measures, on the store at URL, the requests of a search per trial, the seconds of a sampler, and the size of an
artifact. The store is a new SQLite file by default, or an empty PostgreSQL database. Then it simulates a sweep in which
each device runs its own studies, one after another. Every assumption is an option, and is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import simpy
from store_scale import a_study, a_trial, claim_and_release

from torchwise.plan import Numerics, Plan, PlanSpace
from torchwise.records import Study, StudyState
from torchwise.store import LeaseOwner, Storage, StudyKey, open_storage
from torchwise.study.caches import HEARTBEAT_S
from torchwise.study.history import History
from torchwise.study.samplers import StagedSampler

FLEETS = (1, 10, 100, 1000)
TRIALS = 16
"""Trials of a study, the maximum of effort standard."""
RUNS = 30
SPREAD = 0.5
MEAN = math.exp(SPREAD**2 / 2)
"""Mean of the log-normal distribution of trial lengths, whose median is 1."""


@dataclass(frozen=True, slots=True)
class Service:
    """The seconds of requests without other load, and the parallelism of the store.

    Attributes:
        read: reading a study with its trials, as a search does before each proposal.
        write: one short transaction, such as a claim, a result or a heartbeat.
        share: share of a request's seconds that blocks other requests: 1 for sequential requests, less for parallel
            ones.
        think: making a sampler's proposal.
        artifact_bytes: size of a decided plan's artifact.
        bandwidth: bytes per second of the artifacts' storage.
    """

    read: float
    write: float
    share: float
    think: float
    artifact_bytes: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for a fleet of some size.

    Attributes:
        devices: number of devices.
        trials_per_hour: finished trials per hour.
        efficiency: the same, relative to the rate if the store and the sampler took no time.
        store_busy: share of the time in which the store was at its limit.
        wait_s: 95th percentile of a request's wait for the store, in seconds.
        roll_out_s: seconds until all devices have one artifact, requested at the same time.
    """

    devices: int
    trials_per_hour: float
    efficiency: float
    store_busy: float
    wait_s: float
    roll_out_s: float


class Fleet:
    """A sweep over some devices, each of which searches for one target after another."""

    def __init__(self, service: Service, devices: int, trial_s: float, seed: int = 0) -> None:
        self._service, self._devices, self._trial_s = service, devices, trial_s
        self._random = random.Random(seed)
        self._world = simpy.Environment()
        self._store = simpy.Resource(self._world)
        self._waits: list[float] = []
        self._busy, self._ended = 0.0, 0

    def run(self, hours: float) -> Outcome:
        """Run for a number of simulated hours."""
        for _ in range(self._devices):
            self._world.process(self._device())
            self._world.process(self._heartbeats())
        span = hours * 3600
        self._world.run(until=span)
        rate = self._ended / hours
        ideal = self._devices * 3600 / self._trial_s
        waits = sorted(self._waits) or [0.0]
        return Outcome(
            self._devices,
            rate,
            rate / ideal,
            self._busy / span,
            waits[int(0.95 * (len(waits) - 1))],
            self._devices * self._service.artifact_bytes / self._service.bandwidth,
        )

    def _device(self) -> Generator[simpy.Event, Any, None]:
        """Search study after study, with the requests of `study/search_loop.py` for each trial, in order."""
        yield self._world.timeout(self._random.uniform(0, self._trial_s))  # devices do not start in step
        service = self._service
        while True:
            for _ in range(TRIALS):
                yield from self._ask(service.write)  # reclaim trials of dead processes
                yield from self._ask(service.read)
                yield self._world.timeout(service.think)  # in the search's own process: no other waits for it
                yield from self._ask(service.write)  # claim
                yield from self._ask(service.read)
                yield self._world.timeout(self._random.lognormvariate(0, SPREAD) * self._trial_s / MEAN)
                yield from self._ask(service.write)  # result
                yield from self._ask(service.read)
                self._ended += 1
            yield from self._ask(service.write)  # decision

    def _heartbeats(self) -> Generator[simpy.Event, Any, None]:
        while True:
            yield self._world.timeout(HEARTBEAT_S)
            yield from self._ask(self._service.write)

    def _ask(self, seconds: float) -> Generator[simpy.Event, Any, None]:
        asked = self._world.now
        with self._store.request() as turn:
            yield turn
            self._waits.append(self._world.now - asked)
            yield self._world.timeout(seconds * self._service.share)
            self._busy += seconds * self._service.share
        yield self._world.timeout(seconds * (1 - self._service.share))


def most_devices(service: Service, trial_s: float) -> int:
    """Return the number of devices that keeps the store busy all the time: more devices finish no more trials."""
    each = 3 * service.read + (3 + 1 / TRIALS) * service.write
    return int(1 / service.share / (each / trial_s + service.write / HEARTBEAT_S))


def measure_service(url: str, artifact_bytes: float, bandwidth: float, clients: int) -> Service:
    """Time the store at `url` and a sampler, here and now."""
    with open_storage(url) as storage:
        study = fill_study(storage)
        read = middle(lambda: storage.get_study(study.id))
        write = middle(lambda: claim_then_release(storage, study.id)) / 2
        think = middle(lambda: propose_next(study))
    share = min(1 / side_by_side(url, study.id, clients) / (read + 2 * write), 1.0)
    return Service(read, write, share, think, artifact_bytes, bandwidth)


def fill_study(storage: Storage) -> Study:
    """Make a study with as many trials as a search of effort standard leaves."""
    example = a_study(0)
    study = storage.create_study(StudyKey.from_study(example), replace(example, state=StudyState.RUNNING))
    for number in range(TRIALS):
        trial = storage.claim_trial(study.id, Plan(threads=number + 1), "worth a try", LeaseOwner.current())
        if trial is not None:
            storage.finish_trial(study.id, replace(a_trial(number), number=trial.number))
    return storage.get_study(study.id)


def claim_then_release(storage: Storage, study: int) -> None:
    """Do two writes of a trial, with a plan that no other process has."""
    claim_and_release(storage, study, Plan(threads=1000 + os.getpid()))


def propose_next(study: Study) -> object:
    """Request a sampler's next proposal, given half of the trials."""
    known = tuple(study.trials[: TRIALS // 2])
    space = PlanSpace("cpu", "inference", study.inspection.traits, Numerics.SAME_PRECISION, "standard")
    return StagedSampler(space).ask(History(study.workload, study.inspection, known))


def middle(call: Callable[[], object]) -> float:
    """Return the median seconds of some runs."""
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def side_by_side(url: str, study: int, clients: int) -> float:
    """Return the store's rate per second of two writes and a read, requested by `clients` processes."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(clients) as pool:
        return sum(pool.starmap(cycles, [(url, study)] * clients))


def cycles(url: str, study: int, seconds: float = 5.0) -> float:
    """Alternate two writes and a read, and return their rate per second."""
    count = 0
    with open_storage(url) as storage:
        storage.get_study(study)
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            claim_then_release(storage, study)
            storage.get_study(study)
            count += 1
        return count / (time.perf_counter() - start)


def table(service: Service, outcomes: list[Outcome], trial_s: float) -> Iterator[str]:
    """Yield the lines of measurements, assumptions and results."""
    yield (
        f"measured: read {service.read * 1e3:.2f} ms, write {service.write * 1e3:.2f} ms, of which {service.share:.0%} "
        f"one after another; a proposal {service.think * 1e3:.2f} ms"
    )
    yield (
        f"assumed: a trial of {trial_s:g} s, {TRIALS} a study; artifacts of {service.artifact_bytes / 1e6:g} MB, "
        f"read at {service.bandwidth / 1e9:g} GB/s"
    )
    yield f"{'devices':>8}{'trials/h':>12}{'efficiency':>12}{'store busy':>12}{'waits, p95':>13}{'roll-out':>11}"
    for o in outcomes:
        yield (
            f"{o.devices:>8,}{o.trials_per_hour:>12,.0f}{o.efficiency:>12.1%}{o.store_busy:>12.1%}"
            f"{o.wait_s * 1e3:>10.1f} ms{o.roll_out_s:>9.2f} s"
        )
    yield f"the store is busy all the time from {most_devices(service, trial_s):,} devices on"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", default="", help="URL of an empty store; a new SQLite file where none is given")
    parser.add_argument("--trial-s", type=float, default=20.0, help="mean seconds of a trial")
    parser.add_argument("--artifact-mb", type=float, default=10.0, help="megabytes of a package")
    parser.add_argument("--bandwidth", type=float, default=1.25, help="GB/s of the place of artifacts: 10 Gbit/s")
    parser.add_argument("--clients", type=int, default=4, help="processes that ask the store at once, to time it")
    parser.add_argument("--hours", type=float, default=0.5, help="simulated")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        url = options.store or f"{folder}/fleet.db"
        service = measure_service(url, options.artifact_mb * 1e6, options.bandwidth * 1e9, options.clients)
    outcomes = [Fleet(service, devices, options.trial_s).run(options.hours) for devices in FLEETS]
    print("\n".join(table(service, outcomes, options.trial_s)))
    if options.json:
        found = {"service": asdict(service), "trial_s": options.trial_s, "fleets": [asdict(o) for o in outcomes]}
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
