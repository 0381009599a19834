"""Fourteen models that people serve: Torchwise's decision side by side with the other ways to run them.

Every contender runs in processes of its own, verified and timed against eager in alternation, by `torchwise bench`.
There is one benchmark for each level of numbers:

- fp32: the float32 model. Torchwise may use what keeps its precision.
- bf16: the model in bfloat16, for all contenders.
- int8: the float32 model. Torchwise and int8-dynamic may use numbers of fewer bits, within a relative error of
  --tolerance.
- fp8: the same for the model in bfloat16, beside which all other ways stay in bfloat16.

On a CPU the other ways are Inductor, OpenVINO and ONNX Runtime, and on a GPU (--device cuda) Inductor in three modes.

A contender that is not installed is a row that says so. A run that is cut off continues with the same command on the
same day, or with --date and its day: finished rows are kept. If every benchmark fails, the exit code is 1. After each
run the summary is printed, and written beside the results: how much faster Torchwise is than plain Inductor, and where
it is over 2 % behind the best other way.

Run it: python benchmarks/served_models.py --label xeon-2cpu --budget 60
It takes some minutes a model and level on two cores, and prints them. --models and --seconds run a part of it.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchwise.bench.contenders import load_contenders
from torchwise.records import format as show
from torchwise.records.benchmark import EAGER, TORCHWISE, Benchmark, Row
from torchwise.records.scale import Scale, scale_of
from torchwise.records.statistics import Interval, ratio_of

FILE = "benchmarks/served_targets.py"
HF = {
    "bert_base": "hf:bert-base-uncased@length=128",
    "distilbert": "hf:distilbert-base-uncased@length=128",
    "t5_encoder": "hf:t5-small@length=128",
    "gpt2_decode": "hf:gpt2@decode,length=128",
}
MODELS = (
    *("convnet", "lstm", "mlp", "recommender", "mobilenet_v2", "sentence_encoder", "t5_encoder", "gpt2_decode"),
    *("resnet50", "distilbert", "unet", "whisper_encoder", "bert_base", "vit_base"),
)
"""The quickest first, so that a run that is cut off has most of them."""
ON_GPUS = ("feed_forward",)
"""Models that would take minutes a call on a CPU."""
INDUCTOR = "default"
CALLS = 10_000_000
"""As many as for the other results of this folder: the speed decides, and not the time to compile."""
BEHIND = 0.98
"""Torchwise counts as behind below this share of the best other way's speed."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of numbers.

    Attributes:
        is_bf16: whether the model itself is in bfloat16.
        allow: the loosest numerics that Torchwise may use.
        others: the other ways to run the model on each device. Those that this version does not know are left out, and
            named.
    """

    is_bf16: bool
    allow: str
    others: Mapping[str, tuple[str, ...]]

    def list_contenders(self, device: str) -> tuple[str, ...]:
        """Return all ways to run the model on a device."""
        return (EAGER, *self.others[device], TORCHWISE)


MODES = (INDUCTOR, "reduce-overhead", "max-autotune")
COMPILERS = {"cpu": (INDUCTOR, "openvino", "onnxruntime"), "cuda": MODES}
LEVELS = {
    "fp32": Level(False, "same-precision", COMPILERS),
    "bf16": Level(True, "same-precision", COMPILERS),
    "int8": Level(False, "quantized", {"cpu": (INDUCTOR, "int8-dynamic"), "cuda": MODES}),
    "fp8": Level(True, "quantized", COMPILERS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=(*MODELS, *ON_GPUS), metavar="MODEL", help="default: all")
    parser.add_argument("--levels", default="fp32", help=f"comma-separated: {', '.join(LEVELS)}")
    parser.add_argument("--device", default="cpu", choices=tuple(COMPILERS))
    parser.add_argument("--budget", type=float, default=60.0, help="seconds of each search of Torchwise")
    parser.add_argument("--seconds", type=float, default=2000.0, help="seconds after which no further row starts")
    parser.add_argument("--effort", default="standard", help="of each search")
    parser.add_argument(
        "--tolerance", type=float, default=0.05, help="relative error that levels int8 and fp8 may have"
    )
    parser.add_argument("--label", required=True, help="hardware, for the names of the files, such as xeon-2cpu")
    parser.add_argument("--date", default=str(datetime.date.today()), help="day in the names of the files")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    for name in options.levels.split(","):
        if name not in LEVELS:
            parser.error(f"level is {name!r}, but must be one of {', '.join(LEVELS)}")
    codes = list[int]()
    for name in options.levels.split(","):
        file = options.out / f"{options.date}-{options.label}-served-{name}.json"
        codes += run(name, file, options, end)
        if file.exists():
            lines = summarize(Benchmark.from_json(file.read_bytes()), name)
            file.with_suffix(".md").write_text("\n".join(lines) + "\n")
            print("\n".join(lines))
    if codes and all(codes):
        parser.exit(1, "every benchmark failed\n")


def run(name: str, file: Path, options: argparse.Namespace, end: float) -> list[int]:
    """Run the missing rows of one level, model by model, until `end`, and return the exit codes."""
    level, known = LEVELS[name], load_contenders()
    if unknown := [one for one in level.list_contenders(options.device) if one not in known]:
        print(f"{name}: this version has no contender {', '.join(unknown)}")
    contenders = ",".join(one for one in level.list_contenders(options.device) if one in known)
    codes = list[int]()
    for model in options.models or (*MODELS, *(ON_GPUS if options.device == "cuda" else ())):
        if (left := end - time.monotonic()) <= 0:
            break
        command = [
            sys.executable,
            "-m",
            "torchwise.cli",
            "bench",
            name_target(model, level),
            "--device",
            options.device,
        ]
        command += ["--contenders", contenders, "--allow", level.allow, "--effort", options.effort, "--no-warm"]
        command += ["--search-budget", str(options.budget), "--budget", f"{left:.0f}", "--resume", str(file)]
        command += ["--calls", str(CALLS), "--no-keep"]
        if level.allow == "quantized":
            command += ["--tolerance", str(options.tolerance)]
        environment = {**os.environ, "COLUMNS": "160"}
        begun = time.monotonic()
        codes.append(subprocess.run(command, check=False, cwd=Path(__file__).parents[1], env=environment).returncode)
        print(f"{name}, {model}: {time.monotonic() - begun:.0f} s", flush=True)
    return codes


def name_target(model: str, level: Level) -> str:
    """Return a model's target in the numbers of a level."""
    if model in HF:
        return HF[model] + (",dtype=bfloat16" if level.is_bf16 else "")
    return f"{FILE}:{model}{'_bf16' if level.is_bf16 else ''}"


def summarize(benchmark: Benchmark, name: str) -> list[str]:
    """Return the lines of a level's summary."""
    level, rows, device = LEVELS[name], [], benchmark.environment.device
    over_inductor, over_best, behind = list[Interval](), list[Interval](), list[str]()
    for model in (*MODELS, *ON_GPUS):
        found = [one for one in benchmark.workloads if one.target == name_target(model, level)]
        scales = [scale_of(benchmark, workload) for workload in found]
        if not scales:
            continue
        speeds = find_speeds(scales[0])
        rows.append(describe_model(model, benchmark.select_rows(found[0]), scales[0], level, device))
        if TORCHWISE not in speeds:
            continue
        if INDUCTOR in speeds:
            over_inductor.append(ratio_of(speeds[TORCHWISE], speeds[INDUCTOR]))
        if best := compare_best(scales[0]):
            over_best.append(best[1])
            if best[1].mid < BEHIND:
                behind.append(f"- {model}: {show.speedup(best[1])} the speed of {best[0]}")
    gpu = f"{benchmark.environment.gpu}, " if device == "cuda" else ""
    heads = ["model", "eager", *level.others[device], TORCHWISE, "plan", "over the best other"]
    return [
        f"# Served models, {name}",
        "",
        f"{gpu}{benchmark.environment.cpu}, {benchmark.environment.cpus} CPUs, PyTorch {benchmark.environment.torch}. "
        "Speed-ups are over eager, with 95 % intervals.",
        "",
        f"| {' | '.join(heads)} |",
        f"|{'---|' * len(heads)}",
        *rows,
        "",
        f"Torchwise over plain Inductor: {describe_mean(over_inductor)}. Over the best other way: "
        f"{describe_mean(over_best)}.",
        "",
        *(behind or [f"Torchwise is nowhere over {1 - BEHIND:.0%} behind the best other way."]),
    ]


def describe_model(model: str, rows: tuple[Row, ...], scale: Scale, level: Level, device: str) -> str:
    """Return a row of the table. A contender that was not timed, or whose answers are not right, has its state."""
    by_name, speeds = {row.contender: row for row in rows}, find_speeds(scale)
    cells = [model, show.seconds(scale.eager_s)]
    for name in (*level.others[device], TORCHWISE):
        row = by_name.get(name)
        state = row.answers[0] if row else "not run"
        cells.append(show.speedup(speeds[name]) if name in speeds else state)
    own, best = by_name.get(TORCHWISE), compare_best(scale)
    cells.append(str(own.plan) if own and own.plan else show.NONE)
    cells.append(f"{show.speedup(best[1])} ({best[0]})" if best else show.NONE)
    return f"| {' | '.join(cells)} |"


def find_speeds(scale: Scale) -> dict[str, Interval]:
    """Return the speed-ups over eager of the contenders with right answers."""
    return {one.row.contender: one.speedup for one in scale.rows if one.row.is_right}


def compare_best(scale: Scale) -> tuple[str, Interval] | None:
    """Return the best other way and Torchwise's speed over it: in one process where the two had a duel."""
    speeds = find_speeds(scale)
    others = {name: speed for name, speed in speeds.items() if name != TORCHWISE}
    if TORCHWISE not in speeds or not others:
        return None
    name = max(others, key=lambda other: others[other].mid)
    own = next(one.row for one in scale.rows if one.row.contender == TORCHWISE)
    if own.is_its_rival and name == EAGER:
        return name, Interval(1.0, 1.0, 1.0)
    duel = scale.duel_ratio(own) if own.rival == name else None
    return name, duel or ratio_of(speeds[TORCHWISE], others[name])


def describe_mean(ratios: Sequence[Interval]) -> str:
    """Return the geometric mean of the ratios that have a figure, and their number."""
    mids = [ratio.mid for ratio in ratios if ratio.is_usable]
    left = f", too uncertain on {len(ratios) - len(mids)} more" if len(mids) < len(ratios) else ""
    if not mids:
        return f"no figure yet{left}"
    mean = math.exp(sum(map(math.log, mids)) / len(mids))
    return f"{show.ratio(mean)} (geometric mean of {show.pluralize(len(mids), 'model')}{left})"


if __name__ == "__main__":
    main()
