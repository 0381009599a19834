"""Run a list of GPU jobs, tests and benchmarks in parallel, until a time is up.

    python benchmarks/on_gpus.py benchmarks/jobs/h200.toml OUT --seconds 1600 [--only WORD…] [--skip WORD…]

Every job is a shell command in its own process group with a GPU and an even share of the CPU cores. So a crash costs
one job. Its output goes to OUT/NAME.log, and its exit status to OUT/jobs.json. Finished jobs do not run again. Jobs
that take all GPUs come first, and others start in the order of the list. In a command {out} is the folder, {gpus} the
number of its GPUs and {all} of all GPUs. {left} is the number of seconds left, less a minute. python is the interpreter
that runs this.

The fields of a job are name, run, needs, gpus and alone. needs is the seconds that must be left for it to start. gpus
is "one", or "all" for a job alone on the host. alone means nothing else on its GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from core_shares import shares_of

GRACE_S = 10.0
POLLED_S = 0.1
UNFINISHED = 75
"""Exit code of a job that kept what it measured, and has more to do: EX_TEMPFAIL of sysexits.h. It is run again."""
"""Seconds for a job to write its results when the time is up."""


@dataclass(frozen=True)
class Job:
    """One command of the list."""

    name: str
    run: str
    needs: float = 60.0
    gpus: str = "one"
    alone: bool = False


@dataclass
class Lane:
    """A GPU (or all) with a share of the cores, and its running jobs."""

    gpus: list[str]
    cores: set[int]
    running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = field(default_factory=dict)

    def takes(self, job: Job, beside: int) -> bool:
        """Return whether the job may start here now."""
        alone = job.alone or any(other.alone for other, _, _ in self.running.values())
        return not self.running if alone else len(self.running) < beside


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", help="as 0,1; all there are where left out")
    parser.add_argument("--beside", type=int, default=2, help="jobs on one GPU at once")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--only", nargs="+", default=[""])
    parser.add_argument("--skip", nargs="+", default=[])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that no job outlives this
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    gpus = options.gpus.split(",") if options.gpus else present()
    done = read_finished(options.out)
    text = options.jobs.read_text().replace("{all}", str(len(gpus)))
    jobs = [Job(**job) for job in tomllib.loads(text)["job"]]
    jobs = [job for job in jobs if any(word in job.name for word in options.only) and job.name not in done]
    jobs = [job for job in jobs if not any(word in job.name for word in options.skip)]
    cores = sorted(os.sched_getaffinity(0))
    lanes = [Lane([gpu], share) for gpu, share in zip(gpus, shares_of(cores, len(gpus)), strict=True)]
    for job in [job for job in jobs if job.gpus == "all"]:
        work([job], [Lane(gpus, set(cores))], 1, end, options.out)
    work([job for job in jobs if job.gpus != "all"], lanes, options.beside, end, options.out)


def present() -> list[str]:
    """Return the numbers of the available GPUs."""
    if given := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return given.split(",")
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    return [str(number) for number, _ in enumerate(re.findall(r"^GPU ", listed, re.MULTILINE))]


def read_finished(out: Path) -> dict[str, dict[str, float]]:
    file = out / "jobs.json"
    found: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.exists() else {}
    return found


def work(pending: list[Job], lanes: list[Lane], beside: int, end: float, out: Path) -> None:
    """Run the jobs in order on the lanes, until all ended or the time is up."""
    try:
        while (pending or any(lane.running for lane in lanes)) and time.monotonic() < end:
            for lane in lanes:
                reap(lane, out)
                for job in startable(pending, lane, beside, end):
                    pending.remove(job)
                    lane.running[job.name] = (job, start(job, lane, end, out), time.monotonic())
            if not any(lane.running for lane in lanes):
                break  # waiting jobs need more time than is left
            time.sleep(POLLED_S)
    finally:
        stop(lanes, out)


def stop(lanes: list[Lane], out: Path) -> None:
    """Interrupt running jobs with their process groups, and kill those that take too long."""
    for lane in lanes:
        reap(lane, out)
    running = {name: process for lane in lanes for name, (_, process, _) in lane.running.items()}
    for process in running.values():
        os.killpg(process.pid, signal.SIGINT)
    last = time.monotonic() + GRACE_S
    for name, process in running.items():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(last - time.monotonic(), 0.1))
        with contextlib.suppress(ProcessLookupError):  # its children may ignore an interrupt
            os.killpg(process.pid, signal.SIGKILL)
        print(f"{name}: the time limit was reached", flush=True)


def startable(pending: list[Job], lane: Lane, beside: int, end: float) -> Iterator[Job]:
    """Yield jobs while the first one that fits the time left may start on this lane."""
    while job := next((job for job in pending if job.needs <= end - time.monotonic()), None):
        if not lane.takes(job, beside):
            return
        yield job


def start(job: Job, lane: Lane, end: float, out: Path) -> subprocess.Popen[bytes]:
    left = f"{max(end - time.monotonic() - 60, 0):.0f}"
    command = job.run.replace("{out}", str(out)).replace("{gpus}", str(len(lane.gpus))).replace("{left}", left)
    place = Path(sys.executable).parent
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": ",".join(lane.gpus),
        "PATH": f"{place}{os.pathsep}{os.environ['PATH']}",
    }
    print(f"{job.name}: starts on {','.join(lane.gpus)}", flush=True)
    with (out / f"{job.name}.log").open("wb") as log:
        return subprocess.Popen(
            ["bash", "-c", command],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: os.sched_setaffinity(0, lane.cores),
        )


def reap(lane: Lane, out: Path) -> None:
    """Record the finished jobs."""
    for name, (_, process, begun) in list(lane.running.items()):
        if process.poll() is None:
            continue
        del lane.running[name]
        if process.returncode == UNFINISHED:
            print(f"{name}: not finished; it goes on when this is run again", flush=True)
            continue
        took = round(time.monotonic() - begun)
        (out / "jobs.json").write_text(
            json.dumps(read_finished(out) | {name: {"exit_code": process.returncode, "seconds": took}}, indent=1)
        )
        print(f"{name}: exit code {process.returncode} after {took} s", flush=True)


if __name__ == "__main__":
    main()
