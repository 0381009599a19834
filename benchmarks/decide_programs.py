"""How soon searches decide on twelve programs on a CPU, or eight on a GPU: curves of each, and their medians.

Each program is measured by `time_to_decide.py`: a search, then every plan that a search of effort --space could try and
that has at most --choices choices, then the plans near the best once more in one process. The summary has the medians
that matter: the share of the time to try everything after which the search is within 2 % of the best, and the seconds
of the whole search, with its profile of the model and its comparisons of plans. "With profile" are the seconds from the
begin of a search to its first verified plan that is faster than eager. All other seconds are those of trials.

A run that is cut off continues with the same command and --date: programs that are done are not measured again, and
finished trials of others are kept. After --seconds nothing further starts.

Run it: python benchmarks/decide_programs.py --label xeon-2cpu --seconds 7200
    or: python benchmarks/decide_programs.py --device cuda --label h200 --beside 4 --seconds 1700
Effort quick takes some 5 minutes a program on two cores. --programs runs some of them.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from on_gpus import UNFINISHED

SERVED = "benchmarks/served_targets.py"
PROGRAMS = (
    *(f"{SERVED}:{name}" for name in ("convnet", "mlp", "lstm", "recommender", "mobilenet_v2", "sentence_encoder")),
    *("zoo:tutorial.fusion_demo", "zoo:tutorial.many_small_ops", "zoo:ivhl.field_superposition@small"),
    *("zoo:spinlock.operator@small", "zoo:energy_flow.neuron@small", "hf:distilbert-base-uncased@length=128"),
)
GPU_PROGRAMS = (
    *(f"{SERVED}:{name}" for name in ("convnet", "mlp", "recommender")),
    *(f"benchmarks/gpu_programs_targets.py:{name}" for name in ("policy", "particles")),
    *("benchmarks/targets.py:potential", "zoo:tutorial.fusion_demo", "zoo:ivhl.vortex_field"),
)
"""Programs for a GPU. `learn_gains.py` has none of them."""
NEAR = 0.98
"""Share of the best speed from which on a search has found it."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one program.

    Attributes:
        wall_s: seconds of the whole search.
        search_s: seconds of its trials.
        whole_s: seconds of the trials of all plans.
        reached_s: seconds after which the search was near the best, or None if it never was.
        first_s: seconds after which it had a plan faster than eager, or None.
        decided: speed of its decision as a share of the best.
        first_wall_s: seconds from its begin until then, profile included, or None if it never was, or nobody knows.
    """

    wall_s: float
    search_s: float
    whole_s: float
    reached_s: float | None
    first_s: float | None
    decided: float
    first_wall_s: float | None = None

    @classmethod
    def from_curves(cls, found: dict[str, Any]) -> Result:
        """Read the file of `time_to_decide.py`."""
        search, whole = found["curves"]["search"], found["curves"]["everything"]
        reached = (seconds for seconds, speed in search if speed >= NEAR * found["best"])
        first = (seconds for seconds, speed in search if speed > 1)
        return cls(
            found["wall_s"],
            search[-1][0],
            whole[-1][0],
            next(reached, None),
            next(first, None),
            found["decided"] / found["best"],
            found.get("first_wall_s"),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="+", metavar="TARGET", help="default: those of the device")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--gpus", help="GPUs that share the trials of all plans, as 0,1,2 (default: those visible)")
    parser.add_argument("--beside", type=int, default=1, help="processes on each GPU that try all plans")
    parser.add_argument("--effort", default="quick", help="of the search, and of each trial")
    parser.add_argument(
        "--space",
        default="thorough",
        choices=("quick", "standard", "thorough"),
        help="effort whose plans are all tried",
    )
    parser.add_argument("--choices", type=int, default=2, help="leave out plans of more choices than this")
    parser.add_argument("--budget", type=float, default=900.0, help="seconds of one program")
    parser.add_argument("--seconds", type=float, default=7200.0, help="seconds after which nothing further starts")
    parser.add_argument("--label", required=True, help="hardware, for the names of the files, such as xeon-2cpu")
    parser.add_argument("--date", default=str(datetime.date.today()), help="day in the names of the files")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    end, results, failed = time.monotonic() + options.seconds, dict[str, Result](), list[str]()
    programs = options.programs or (GPU_PROGRAMS if options.device == "cuda" else PROGRAMS)
    for program in programs:
        file, left_s = name_file(program, options), end - time.monotonic()
        if not is_done(file) and left_s > 0 and measure(program, options, left_s):
            failed.append(program)
        if file.exists():
            results[program] = Result.from_curves(json.loads(file.read_bytes()))
    lines = summarize(results, options.effort, options.space)
    if results:
        name = f"{options.date}-{options.label}-decide-programs-{options.effort}-of-{options.space}.md"
        options.out.joinpath(name).write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    if failed:
        parser.exit(1, f"not measured: {', '.join(failed)}\n")
    if left := [program for program in programs if not is_done(name_file(program, options))]:
        parser.exit(UNFINISHED, f"not measured to their end: {', '.join(left)}; the same command goes on\n")


def is_done(file: Path) -> bool:
    """Whether a program has its curves, with every plan that was to be tried."""
    return file.exists() and not json.loads(file.read_bytes()).get("unfinished")


def measure(program: str, options: argparse.Namespace, left_s: float) -> int:
    """Measure one program, or go on with it, and return the exit code. Nothing further starts once no time is left."""
    command = [sys.executable, str(Path(__file__).with_name("time_to_decide.py")), program]
    budget_s = min(options.budget, left_s)
    command += ["--effort", options.effort, "--space", options.space, "--choices", str(options.choices)]
    command += ["--budget", f"{budget_s:.1f}"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0") if options.device == "cuda" else ""
    command += ["--device", options.device, "--gpus", options.gpus or visible, "--beside", str(options.beside)]
    command += ["--label", options.label, "--date", options.date, "--out", str(options.out.resolve())]
    begun = time.monotonic()
    code = subprocess.run(command, check=False, cwd=Path(__file__).parents[1]).returncode
    print(f"{program}: {time.monotonic() - begun:.0f} s", flush=True)
    return code


def name_file(program: str, options: argparse.Namespace) -> Path:
    """Return the file of a program's curves."""
    from time_to_decide import name_stem

    stem = name_stem(program, options.effort, options.date, options.label, options.space)
    return Path(f"{options.out / stem}.json")


def summarize(results: dict[str, Result], effort: str, space: str) -> list[str]:
    """Return the table of the programs, and the medians."""
    lines = [
        f"# Time to decide, effort {effort}, beside the plans of effort {space}",
        "",
        "| program | search | its trials | all plans | faster after | with profile | near the best after | share "
        "| decision |",
        f"|{'---|' * 9}",
    ]
    for program, one in results.items():
        cells = [f"{seconds:.0f} s" for seconds in (one.wall_s, one.search_s, one.whole_s)]
        walled = "–" if one.first_s is not None and one.first_wall_s is None else describe(one.first_wall_s)
        cells += [describe(one.first_s), walled, describe(one.reached_s)]
        share = "–" if one.reached_s is None else f"{one.reached_s / max(one.whole_s, 1e-9):.0%}"
        lines.append(f"| {' | '.join([program, *cells, share, f'{one.decided:.1%}'])} |")
    if not results:
        return [*lines, "", "No program is measured yet."]
    shares = [
        float("inf") if one.reached_s is None else one.reached_s / max(one.whole_s, 1e-9) for one in results.values()
    ]
    median_s = statistics.median(one.wall_s for one in results.values())
    walls = [one.first_wall_s for one in results.values() if one.first_wall_s is not None]
    first = (
        f"A faster plan is there {statistics.median(walls):.0f} s after the begin, profile included" if walls else ""
    )
    return [
        *lines,
        "",
        f"Medians of {len(results)} programs: {median_s:.0f} s for a search, and near the best after "
        f"{statistics.median(shares):.0%} of the time of all plans.",
        *([f"{first} (median of {len(walls)})."] if walls else []),
    ]


def describe(seconds: float | None) -> str:
    """Return seconds in words, or "never"."""
    return "never" if seconds is None else f"{seconds:.0f} s"


if __name__ == "__main__":
    main()
