"""Programs of a Llama and a Stable Diffusion: by `torchwise run --apply`, and by each mode of `torch.compile` by hand.

The programs of `benchmarks/programs/` do not name Torchwise. Each runs as it is, with `torchwise run --tune` once, with
`--apply`, and with its own option --compile for each mode. One run of each fills the caches. Then all contenders run in
turn, each time in a fresh process. Two ratios to the program as it is are told: by the time of the whole process, and
by that of a round of the second half, in which nothing starts any more (their median). Their intervals are over the
turns. The runs that fill the caches are not timed, so those that choose nothing by timing kernels run at once.

Tokens and images are compared with those of the program as it is. By the plans they may be no further off than by the
modes, or by 0.001.

A run that is cut off continues with the same command: what it has done is in the folder --out. --seconds bounds it. The
exit code is 1 if a program fails, answers are wrong, or `--apply` is surely slower than the best mode; 3 if it has not
ended yet.

Run it: python benchmarks/run_programs.py --device cuda --size large --dtype bfloat16 --out programs-h100
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchwise import environment
from torchwise.records import format as show
from torchwise.records.statistics import median_interval
from torchwise.runtime.program.decisions import Decisions, read_decisions

FOLDER = Path(__file__).parent / "programs"
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
SIZES = {
    "tiny": {"llama": "", "stable_diffusion": "--widths 8 16 --side 16 --steps 2 --rounds 2"},
    "medium": {
        "llama": "--width 2048 --layers 8 --heads 32 --vocabulary 32000 --prompt 128 --tokens 128 --rounds 12",
        # Its calls take longer than the start of a compiled plan, as it is not put in place before.
        "stable_diffusion": "--widths 160 320 640 --blocks 1 --prompt 77 --prompt-width 768 --side 384 "
        "--steps 20 --rounds 60",
    },
    "large": {
        "llama": "--width 2048 --layers 16 --heads 32 --vocabulary 32000 --prompt 128 --tokens 128 --rounds 20",
        "stable_diffusion": "--widths 320 640 1280 1280 --blocks 1 --prompt 77 --prompt-width 768 --side 512 "
        "--steps 20 --rounds 20",
    },
}
ALONE, APPLY = "as it is", "--apply"
CLOSE = 0.001
UNFINISHED = 3
Run = dict[str, float]


class OutOfTimeError(Exception):
    """The seconds of this command are spent, and the next one continues."""


@dataclass(frozen=True)
class Clock:
    """The seconds that are left of those for the whole command."""

    end: float

    def left_s(self) -> float:
        """Return them.

        Raises:
            OutOfTimeError: there are none.
        """
        if (left_s := self.end - time.monotonic()) <= 0:
            raise OutOfTimeError
        return left_s


class Results:
    """The measurements so far, in a file that is written after each run."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}

    def of(self, program: str) -> dict[str, Any]:
        """Return what is known of a program, to be changed in place."""
        found: dict[str, Any] = self._found.setdefault(program, {"runs": {}, "away": {}})
        return found

    def keep(self) -> None:
        """Write the file."""
        self._file.write_text(json.dumps(self._found, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", help="llama, stable_diffusion, by default both")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of each search")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of this command")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--calls", help="as for torchwise run --tune, by default those of the program")
    parser.add_argument("--out", type=Path, default=Path("programs"), help="the folder of all that is kept")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    results, clock = Results(options.out / "results.json"), Clock(time.monotonic() + options.seconds)
    lines, code = [describe_machine(options)], 0
    for program in options.programs or SIZES["tiny"]:
        try:
            measure(program, options, results, clock)
        except OutOfTimeError:
            code = UNFINISHED
        text, is_well = summarize(program, results.of(program), options)
        lines += text
        code = code if is_well else 1
    (options.out / "summary.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return code


def describe_machine(options: argparse.Namespace) -> str:
    found = environment.detect(options.device)
    hardware = found.gpu if options.device == "cuda" else f"{found.cpu}, {os.cpu_count()} CPUs"
    return f"{hardware}, torch {torch.__version__}, {options.size}, {options.dtype}, load {os.getloadavg()[0]:.1f}"


def measure(program: str, options: argparse.Namespace, results: Results, clock: Clock) -> None:
    """Do the rest of the work for a program.

    Raises:
        OutOfTimeError: not all of it.
    """
    found = results.of(program)
    commands = list_commands(program, options)
    if "tuned_s" not in found:
        began = time.monotonic()
        words = [*torchwise("--tune", options), "--budget", str(options.budget)]
        words += ["--calls", options.calls] if options.calls else []
        run([*words, *commands[ALONE][1:]], options, clock)
        found["tuned_s"] = time.monotonic() - began
        results.keep()
    if not find_decisions(program, options):  # the budget ended before: there is nothing to apply
        commands[APPLY] = commands[ALONE]
    fill_caches(program, commands, options, results, clock)
    for turn in range(options.turns):
        for name, command in commands.items():
            runs = found["runs"].setdefault(name, [])
            if turn >= len(runs):
                runs.append(time_program(command, options.out / "answer.pt", options, clock))
                results.keep()


def fill_caches(
    program: str, commands: dict[str, list[str]], options: argparse.Namespace, results: Results, clock: Clock
) -> None:
    """Run each contender once, and compare its answer.

    Raises:
        OutOfTimeError: not all of them.
    """
    away = results.of(program)["away"]
    files = {name: options.out / f"{program}-{place}.pt" for place, name in enumerate(commands)}
    alone = [name for name in commands if name == APPLY or "max-autotune" in name]
    for names in ([name for name in commands if name not in alone], *([name] for name in alone)):
        left = [name for name in names if name not in away]
        with ThreadPoolExecutor(max(len(left), 1)) as pool:
            started = {name: pool.submit(time_program, commands[name], files[name], options, clock) for name in left}
        for name, run in started.items():
            if run.exception() is None:
                away[name] = compare(files[name], files[ALONE])
                results.keep()
        for run in started.values():
            run.result()


def list_commands(program: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """Return the command of each contender."""
    sizes = SIZES[options.size][program].split()
    script = [str(FOLDER / f"{program}.py"), "--device", options.device, "--dtype", options.dtype, *sizes]
    alone = [sys.executable, *script]
    by_hand = {mode: [*alone, "--compile", mode] for mode in options.modes}
    return {ALONE: alone, **by_hand, APPLY: [*torchwise("--apply", options), *script]}


def torchwise(flag: str, options: argparse.Namespace) -> list[str]:
    return [sys.executable, "-m", "torchwise", "run", flag, "--store", str(options.out / "store.db")]


def run(command: list[str], options: argparse.Namespace, clock: Clock) -> None:
    """Run a command to its end.

    Raises:
        OutOfTimeError: it did not end in time.
        SystemExit: it failed.
    """
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(options.out.absolute() / "inductor"), "HF_HUB_OFFLINE": "1"}
    log = options.out / f"{len(list(options.out.glob('*.log')))}-{threading.get_ident()}.log"
    with log.open("w") as stream:  # no pipe: its workers would hold it open
        process = subprocess.Popen(
            command, stdout=stream, stderr=stream, env={**os.environ, **caches}, start_new_session=True
        )
        try:
            code = process.wait(clock.left_s())
        except subprocess.TimeoutExpired:
            raise OutOfTimeError from None
        finally:
            if process.poll() is None:  # with its workers, also on Ctrl-C
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}: {log.read_text()[-2000:]}")


def time_program(command: list[str], file: Path, options: argparse.Namespace, clock: Clock) -> Run:
    with contextlib.suppress(FileNotFoundError):
        file.unlink()
    began = time.perf_counter()
    run([*command, "--save", str(file)], options, clock)
    whole_s = time.perf_counter() - began
    rounds = torch.load(file)["rounds_s"]
    return {"whole_s": whole_s, "round_s": statistics.median(rounds[len(rounds) // 2 :])}


def compare(file: Path, right: Path) -> float:
    """Return how far an answer is away: the share of other tokens, or the relative error of an image."""
    answer, wanted = (torch.load(one)["answer"] for one in (file, right))
    if not wanted.is_floating_point():
        return float((answer != wanted).double().mean())
    return float((answer - wanted).double().norm() / wanted.double().norm())


def summarize(program: str, found: dict[str, Any], options: argparse.Namespace) -> tuple[list[str], bool]:
    """Return the lines about a program, and whether nothing is wrong."""
    runs, away = found["runs"], found["away"]
    lines = ["", f"{program}: tuned in {show.seconds(found.get('tuned_s'))}, {describe_plans(program, options)}"]
    names = (ALONE, APPLY, *options.modes)
    if not all(runs.get(name) for name in names):
        return [*lines, "not measured to its end: the same command goes on"], True
    if (turns := min(len(runs[name]) for name in names)) < options.turns:
        lines.append(f"  {turns} of {options.turns} turns: the same command goes on")
    for name, several in runs.items():
        whole, last = (show.speedup(divide(runs[ALONE], several, key)) for key in ("whole_s", "round_s"))
        middle = (show.seconds(statistics.median(one[key] for one in several)) for key in ("whole_s", "round_s"))
        lines.append(f"  {name}: {' a run, '.join(middle)} a round; {whole} and {last}; answer {away[name]:.2g} off")
    best = min(options.modes, key=lambda mode: statistics.median(one["whole_s"] for one in runs[mode]))
    whole, last = (divide(runs[best], runs[APPLY], key) for key in ("whole_s", "round_s"))
    lines.append(f"  --apply over {best}: {show.speedup(whole)} by the run, {show.speedup(last)} by the round")
    is_right = away[APPLY] <= max(CLOSE, *(away[mode] for mode in options.modes))
    is_fast = whole.high >= 1 or options.size == "tiny"  # which is only tried: nothing pays in so short a run
    return [*lines, *([] if is_right else ["  WRONG ANSWER"])], is_right and is_fast


def describe_plans(program: str, options: argparse.Namespace) -> str:
    decisions = find_decisions(program, options)
    return "; ".join(f"{name}: {newest.plan}" for name, (newest, *_) in decisions.items()) or "no plan"


def find_decisions(program: str, options: argparse.Namespace) -> Decisions:
    store = options.out / "store.db"
    return read_decisions(f"{program}.py", str(store)) if store.exists() else {}


def divide(slow: list[Run], fast: list[Run], key: str) -> Any:
    return median_interval([one[key] / other[key] for one, other in zip(slow, fast, strict=False)])


if __name__ == "__main__":
    raise SystemExit(main())
