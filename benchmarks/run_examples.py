"""Run each program of `examples/programs/` as it is, tuned by `torchwise run --tune`, and by its plans with `--apply`.

Standard output and exit code must be equal each time. `--tune` must end within its budget, 15 % and the time that the
program takes. Then the program runs alone and by its plans, in alternation, each time in a fresh process. Its own work
is timed: from its first line to its last, with all libraries loaded before. A script of the same name does that, and
is run as it is, too. The ratio is the median over pairs, with its interval, of the wall clock and of processor time,
which other programs disturb less. The start-up is the time that the command takes longer around that.

It exits with 1 if anything differs, a search is late, or a program is surely slower by its plans. With --out it keeps
the line of each program, and the same command goes on with the others: no program is begun after --seconds, and the
exit code is then 3.

Run it: python benchmarks/run_examples.py --budget 120 --out run-examples.json [PROGRAM...]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchwise import environment
from torchwise.records.statistics import median_interval
from torchwise.runtime.program.decisions import read_decisions

FOLDER = Path(__file__).parents[1] / "examples" / "programs"
LATE = 1.15
UNFINISHED = 3
STARTS_S = 30.0
"""Seconds in which a search starts, imports and ends its workers, beside the program's time and the budget."""
LIBRARIES = ("torch", "transformers", "diffusers", "pytorch-lightning", "accelerate", "fastapi", "ray", "timm")
TIMED = """
import json, runpy, time
program, file = {program!r}, {file!r}
runpy.run_path(program, run_name="imported")
began, busy = time.perf_counter(), time.process_time()
runpy.run_path(program, run_name="__main__")
times = time.perf_counter() - began, time.process_time() - busy
with open(file, "w") as stream:
    json.dump(times, stream)
"""
"""A script that runs a program, and writes the times of its own work into a file."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", help="names, by default all that can run here")
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rounds", help="the argument of each program, by default its own")
    parser.add_argument("--calls", help="as for torchwise run --tune")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no program is begun")
    parser.add_argument("--out", type=Path, help="a file for the lines, to go on from")
    options = parser.parse_args()
    versions = [f"{name} {version}" for name in LIBRARIES if (version := version_of(name))]
    print(
        f"{environment.detect('cpu').cpu}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {', '.join(versions)}"
    )
    known = json.loads(options.out.read_text()) if options.out and options.out.exists() else {}
    end = time.monotonic() + options.seconds
    for file in sorted(file for file in FOLDER.glob("*.py") if is_asked_for(file, options.programs)):
        if file.stem not in known:
            if time.monotonic() > end:
                return UNFINISHED
            known[file.stem] = try_program(file, options)
            if options.out:
                options.out.write_text(json.dumps(known, indent=1) + "\n")
        print(known[file.stem]["line"], flush=True)
    return 0 if all(one["is_well"] for one in known.values()) else 1


def version_of(library: str) -> str | None:
    try:
        return importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_asked_for(file: Path, names: list[str]) -> bool:
    return not names or file.stem in names


def try_program(file: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run a program in all ways, and return a line that says what was found, and whether it is well."""
    words = [str(file), *([options.rounds] if options.rounds else [])]
    alone, alone_s = run([sys.executable, *words])
    if alone.returncode:
        *_, reason = ["no message", *alone.stderr.decode().splitlines()]
        lacks_library = reason.startswith(ModuleNotFoundError.__name__)
        line = f"{file.stem}: {'cannot run here' if lacks_library else 'FAILED'}: {reason}"
        return {"line": line, "is_well": lacks_library}
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store.db"
        torchwise = [sys.executable, "-m", "torchwise"]
        asked = ["--budget", str(options.budget), *(["--calls", options.calls] if options.calls else [])]
        tuned, tuned_s = run([*torchwise, "run", "--tune", *asked, "--store", store, *words])
        is_late = tuned_s > alone_s + LATE * options.budget + STARTS_S
        timed = [write_timed(file, folder), *words[1:]]
        applied = [*torchwise, "run", "--apply", "--store", store, *timed]
        pairs = [
            time_pair([sys.executable, *timed], applied, folder, number % 2 == 0) for number in range(options.pairs)
        ]
        plans = [f"{name}: {newest.plan}" for name, (newest, *_) in read_decisions(file.name, store).items()]
    ends = [tuned, *(each.end for pair in pairs for each in pair)]
    is_same = all((end.stdout, end.returncode) == (alone.stdout, 0) for end in ends)
    ratio = median_interval([plain.own_s / by_plan.own_s for plain, by_plan in pairs])
    busy = median_interval([plain.busy_s / by_plan.busy_s for plain, by_plan in pairs])
    own_s = statistics.median(plain.own_s for plain, _ in pairs)
    start_s = statistics.median(by_plan.around_s - plain.around_s for plain, by_plan in pairs)
    speed = f"{ratio.mid:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
    by_processor = f"{busy.mid:.2f} [{busy.low:.2f}, {busy.high:.2f}]"
    line = (
        f"{file.stem}: {'same output' if is_same else 'OUTPUT DIFFERS'}, alone {alone_s:.1f} s, with --tune "
        f"{tuned_s:.1f} s{' TOO LATE' * is_late}, own work {own_s:.2f} s, with --apply {speed} times as fast, by "
        f"processor time {by_processor}, start-up {start_s:.2f} s; {'; '.join(plans)}"
    )
    return {"line": line, "is_well": is_same and not is_late and min(ratio.high, busy.high) >= 1}


def run(words: list[str]) -> tuple[subprocess.CompletedProcess[bytes], float]:
    """Run a command, and return its end and its seconds."""
    begun = time.perf_counter()
    end = subprocess.run(words, capture_output=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    return end, time.perf_counter() - begun


@dataclass(frozen=True)
class Timed:
    """The end of a run, the seconds of the program's own work, on the clock and of processors, and all other ones."""

    end: subprocess.CompletedProcess[bytes]
    own_s: float
    busy_s: float
    around_s: float


def time_pair(alone: list[str], applied: list[str], folder: str, is_alone_first: bool) -> tuple[Timed, Timed]:
    """Run a program alone and by its plans."""
    if is_alone_first:
        return time_program(alone, folder), time_program(applied, folder)
    by_plan = time_program(applied, folder)
    return time_program(alone, folder), by_plan


def write_timed(program: Path, folder: str) -> str:
    """Write the script that times a program, under the same name, and return its path."""
    script = Path(folder) / program.name
    script.write_text(TIMED.format(program=str(program), file=f"{folder}/times.json"))
    return str(script)


def time_program(words: list[str], folder: str) -> Timed:
    """Run a program, alone or by `torchwise`, and time it."""
    end, whole_s = run(words)
    if end.returncode:
        raise SystemExit(f"{words} ended with {end.returncode}: {end.stderr.decode()}")
    own_s, busy_s = json.loads(Path(f"{folder}/times.json").read_text())
    return Timed(end, own_s, busy_s, whole_s - own_s)


if __name__ == "__main__":
    raise SystemExit(main())
