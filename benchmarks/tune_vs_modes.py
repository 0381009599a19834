"""Torchwise against trying by hand: eager and the three modes of `torch.compile`.

For each target, on this machine:

1. Trying by hand is timed. For each of eager, default, reduce-overhead and max-autotune, a fresh process with empty
   caches loads the model, compiles it and times it for two seconds. The sum of the wall times is the cost of trying all
   four.
2. `torchwise tune` searches, with an empty store and empty compile caches. Its wall time is measured. It expects as
   many calls as take eager --work seconds (or --calls).
3. In another process all five run side by side, round by round in turn. Each call is waited for. Ratios are paired
   within rounds, with 95 % bootstrap intervals.

Run it: python benchmarks/tune_vs_modes.py --device cuda zoo:tutorial.fusion_demo zoo:ivhl.field_superposition
Results go to --out as JSON and Markdown, after every target, so that a run that is cut off keeps what it has.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

MODES = ("eager", "default", "reduce-overhead", "max-autotune")
TARGETS = (
    "zoo:ivhl.field_superposition",
    "zoo:tutorial.fusion_demo",
    "zoo:tutorial.many_small_ops",
    "zoo:spinlock.operator",
)
ROUNDS = 60
BLOCK_S = 0.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=TARGETS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=float, default=60.0, help="seconds of eager work to expect")
    parser.add_argument("--calls", type=int, help="calls to expect, instead of --work")
    parser.add_argument("--effort", default="standard")
    parser.add_argument("--label", help="hardware, for the names of the files; the device where left out")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--step", nargs=3, metavar=("NAME", "TARGET", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        name, target, file = options.step
        Path(file).write_text(json.dumps(STEPS[name](target, options.device)))
        return
    rows = []
    for target in options.targets:
        rows.append(row := measure(target, options))
        print(json.dumps(row), flush=True)
        write(rows, options)
    print(table(rows))


def measure(target: str, options: argparse.Namespace) -> dict[str, object]:
    """Run the three steps for one target, each in new processes."""
    row: dict[str, object] = {"target": target}
    with tempfile.TemporaryDirectory() as folder:
        hand = {mode: step(f"hand-{mode}", target, options, Path(folder, "caches", mode)) for mode in MODES}
        row["by_hand"] = hand
        row["by_hand_s"] = sum(float(result["wall_s"]) for result in hand.values())
        calls = options.calls or max(round(options.work / (float(hand["eager"]["ms"]) / 1e3), -3), 1000)
        row["calls"] = int(calls)
        study = Path(folder, "study.json")
        command = ["tune", target, "--device", options.device, "--calls", str(int(calls)), "--json", str(study)]
        command += ["--effort", options.effort, "--store", f"{folder}/store.db"]
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "torchwise.cli", *command], check=False, text=True)
        row["tune_s"] = time.perf_counter() - start
        if done.returncode:
            return {**row, "error": f"tune ended with {done.returncode}"}
        decided = json.loads(study.read_text())["decision"]
        trials = json.loads(study.read_text())["trials"]
        row.update(plan=decided["plan"], reason=decided["reason"], trials=len(trials))
        row["side_by_side"] = step("side", target, options, Path(folder, "caches", "side"), decided)
    return row


def step(
    name: str, target: str, options: argparse.Namespace, caches: Path, decided: object = None
) -> dict[str, object]:
    """Run one step in a new process, so that a crash costs only that step."""
    caches.mkdir(parents=True)
    file = caches / "result.json"
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(caches), "TRITON_CACHE_DIR": str(caches / "triton")}
    environment["TORCHWISE_DECISION"] = json.dumps(decided)
    command = [sys.executable, __file__, "--device", options.device, "--step", name, target, str(file)]
    start = time.perf_counter()
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=500)
    wall = time.perf_counter() - start
    if done.returncode:
        return {"wall_s": wall, "error": done.stderr[-500:]}
    return {"wall_s": wall, **json.loads(file.read_text())}


def make_hand_step(mode: str):  # type: ignore[no-untyped-def]
    def run(target: str, device: str) -> dict[str, object]:
        import torch

        call, args = load(target, device)
        with torch.no_grad():
            fast = contender(call, mode)
            start = time.perf_counter()
            once(fast, args, device)
            first = time.perf_counter() - start
            for _ in range(3):
                once(fast, args, device)
            samples = []
            end = time.perf_counter() + 2.0
            while time.perf_counter() < end:
                samples.append(block(fast, args, device, BLOCK_S))
        return {"first_s": first, "ms": float(np.median(samples)) * 1e3}

    return run


def side_by_side(target: str, device: str) -> dict[str, object]:
    """Time Torchwise's choice and the four by hand in turn, and return paired ratios over Torchwise's time."""
    import torch

    import torchwise
    from torchwise.records import codec

    call, args = load(target, device)
    decision = codec.from_builtins(json.loads(os.environ["TORCHWISE_DECISION"]), torchwise.Decision)
    with torch.no_grad():
        racers = {"torchwise": torchwise.apply(call, decision, strict=True)}
        racers.update({mode: contender(call, mode) for mode in MODES})
        for racer in racers.values():
            for _ in range(5):
                once(racer, args, device)
        rounds: dict[str, list[float]] = {name: [] for name in racers}
        order = list(racers)
        for number in range(ROUNDS):
            turned = order[number % len(order) :] + order[: number % len(order)]
            for name in turned:
                rounds[name].append(block(racers[name], args, device, BLOCK_S))
        answered = racers["torchwise"].statistics  # type: ignore[attr-defined]
    ratios = {mode: interval(np.array(rounds[mode]) / np.array(rounds["torchwise"])) for mode in MODES}
    return {
        "ms": {name: float(np.median(samples)) * 1e3 for name, samples in rounds.items()},
        "ratio_over_torchwise": ratios,
        "answered_by_original": dict(answered.original),
        "torch": torch.__version__,
        "hardware": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
    }


STEPS = {"side": side_by_side, **{f"hand-{mode}": make_hand_step(mode) for mode in MODES}}


def contender(call, mode):  # type: ignore[no-untyped-def]
    """Return the callable that a user would write."""
    import torch

    return call if mode == "eager" else torch.compile(call, mode=mode)


def load(target: str, device: str):  # type: ignore[no-untyped-def]
    from torchwise.workload.target import load as load_target

    workload = load_target(target, device=device)
    return workload.call, workload.examples[0].args


def once(call, args, device: str) -> float:  # type: ignore[no-untyped-def]
    import torch

    start = time.perf_counter()
    call(*args)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def block(call, args, device: str, least_s: float) -> float:  # type: ignore[no-untyped-def]
    """Return the median seconds of single calls, each waited for, over a block of at least `least_s`."""
    samples = [once(call, args, device)]
    end = time.perf_counter() + least_s
    while time.perf_counter() < end:
        samples.append(once(call, args, device))
    return float(np.median(samples))


def interval(ratios: np.ndarray) -> dict[str, float]:
    draws = np.random.default_rng(0).integers(0, len(ratios), (2000, len(ratios)))
    low, high = np.quantile(np.median(ratios[draws], axis=1), (0.025, 0.975))
    return {"low": float(low), "mid": float(np.median(ratios)), "high": float(high)}


def write(rows: list[dict[str, object]], options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    stem = f"{datetime.date.today()}-{options.label or options.device}-tune-vs-modes"
    Path(options.out, f"{stem}.json").write_text(json.dumps(rows, indent=1))
    Path(options.out, f"{stem}.md").write_text(table(rows) + "\n")


def table(rows: list[dict[str, object]]) -> str:
    lines = [
        "| target | plan | ms: torchwise | " + " | ".join(MODES) + " | best / torchwise | tune s | all four s |",
        "|---" * (len(MODES) + 6) + "|",
    ]
    for row in rows:
        side = row.get("side_by_side")
        if not isinstance(side, dict) or "ms" not in side:
            lines.append(f"| {row['target']} | {row.get('error') or side} |")
            continue
        best = min(MODES, key=lambda mode: side["ms"][mode])
        ratio = side["ratio_over_torchwise"][best]
        cells = [row["target"], short(row["plan"]), f"{side['ms']['torchwise']:.4f}"]
        cells += [f"{side['ms'][mode]:.4f}" for mode in MODES]
        cells += [f"{best}: {ratio['mid']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"]
        cells += [f"{row['tune_s']:.0f}", f"{row['by_hand_s']:.0f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def short(plan: object) -> str:
    from torchwise.plan import Plan
    from torchwise.records import codec

    return str(codec.from_builtins(plan, Plan))


if __name__ == "__main__":
    main()
