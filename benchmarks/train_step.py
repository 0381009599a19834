"""A training step in one CUDA graph (`torchwise.captured_step`) against eager and the modes of `torch.compile`.

The step has 6 pre-norm transformer layers of width 512 with 8 heads, batch 16 x 128, bf16 autocast, cross entropy and
AdamW.

1. Agreement: each contender trains from the same weights on the same batches. It is timed only if its losses over 12
   steps follow those of eager within bf16's error.
2. Time: all contenders that agree run in one process, round by round in turn, a few steps each. Each turn waits for its
   end. Milliseconds per step are medians. Ratios over the captured steps are paired within rounds, with 95 % bootstrap
   intervals.
3. With --max-autotune, that mode is compiled and timed in a separate process with a time limit. Only its median is
   reported.

Run it: python benchmarks/train_step.py --label h200 --out benchmarks/results
Results go to --out as JSON and Markdown.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchwise

OURS = ("captured eager", "captured compiled")
MODES = ("eager", "default", "reduce-overhead")
AUTOTUNE = "max-autotune"
SHAPE = (16, 128, 64)
CLASSES = 10
AGREEING_STEPS = 12
TOLERANCE = 0.05
"""Tolerance for a loss near 2.3. bf16 has 8 bits, and twelve steps of AdamW amplify rounding differences."""
ROUNDS = 40
STEPS_A_TURN = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--label", help="hardware, for the names of the files; the GPU's name where left out")
    parser.add_argument("--out", type=Path, default=Path("."))
    parser.add_argument("--max-autotune", action="store_true", help="time that mode, too, in a process of its own")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for that process")
    parser.add_argument("--small", action="store_true", help="one narrow layer and few rounds, to try the script")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--alone", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    if options.alone:
        Path(options.alone).write_text(json.dumps(alone(options)))
        return
    result = measure(options)
    if options.max_autotune:
        result[AUTOTUNE] = time_autotune(options)
    write(result, options)
    print(table(result))


class Training:
    """A model, its optimizer, and the step of one contender."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        width, layers = (64, 1) if options.small else (512, 6)
        layer = torch.nn.TransformerEncoderLayer(
            width, 8, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True, device=options.device
        )
        body = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        for parameter in body.parameters():  # the layers of an encoder start as copies: give each its own weights
            if parameter.dim() > 1:
                torch.nn.init.xavier_uniform_(parameter)
        edge = torch.nn.Linear(SHAPE[-1], width), torch.nn.Linear(width, CLASSES)
        self.model = torch.nn.Sequential(edge[0], body, edge[1]).to(options.device)
        cuda = options.device == "cuda"
        # Each contender has a suitable optimizer: fused is PyTorch's fastest, and capture must count on the GPU.
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), 1e-4, fused=True, capturable=cuda and name.startswith("captured")
        )
        self.forward = self._forward(name)
        self.step: Callable[..., torch.Tensor] = self._run_step
        if name.startswith("captured"):
            self.step = torchwise.captured_step(self._run_step, self.model, self.optimizer)

    def _forward(self, name: str) -> Callable[..., torch.Tensor]:
        if name in ("eager", "captured eager"):
            return self.model
        return torch.compile(self.model, mode="default" if name == "captured compiled" else name)

    def _run_step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(x.device.type, torch.bfloat16):
            logits = self.forward(x)
        loss = torch.nn.functional.cross_entropy(logits.float().view(-1, CLASSES), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def batches(count: int, device: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    rows = SHAPE[0] * SHAPE[1]
    drawn = [
        (torch.randn(SHAPE, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator))
        for _ in range(count)
    ]
    return [(x.to(device), y.to(device)) for x, y in drawn]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    batches_ = batches(AGREEING_STEPS, options.device)
    trainings, losses, first, dropped = {}, {}, {}, {}
    for name in (*MODES, *OURS):
        try:
            start = time.perf_counter()
            training = Training(name, options)
            taken = [training.step(*batch).clone() for batch in batches_[:2]]
            wait(options.device)
            first[name] = time.perf_counter() - start
            taken += [training.step(*batch).clone() for batch in batches_[2:]]
            losses[name] = torch.stack(taken).tolist()
        except Exception as error:  # one contender may raise any error, but the others are still timed
            dropped[name] = f"{type(error).__name__}: {error}"[:300]
            continue
        off = max(abs(a - b) for a, b in zip(losses[name], losses["eager"], strict=True))
        if off > TOLERANCE or not np.isfinite(losses[name]).all():
            dropped[name] = f"its losses differ from eager's by up to {off:.4f}, more than {TOLERANCE}"
            continue
        trainings[name] = training
    rounds = alternate({name: training.step for name, training in trainings.items()}, batches_, options)
    return {
        "ms": {name: interval(np.array(samples)) for name, samples in rounds.items()},
        "ratios": {
            ours: {
                other: interval(np.array(rounds[other]) / np.array(rounds[ours])) for other in rounds if other != ours
            }
            for ours in OURS
            if ours in rounds
        },
        "first_two_steps_s": first,
        "losses": losses,
        "dropped": dropped,
        "torch": torch.__version__,
        "hardware": hardware(options.device),
    }


def alternate(
    steps: dict[str, Callable[..., Any]], batches_: list[tuple[torch.Tensor, torch.Tensor]], options: argparse.Namespace
) -> dict[str, list[float]]:
    """Return milliseconds per step of each turn, by contender. The order of turns changes from round to round."""
    rounds: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    for step in steps.values():
        turn(step, batches_, options.device)
    for number in range(3 if options.small else ROUNDS):
        shift = number % len(order)
        for name in order[shift:] + order[:shift]:
            rounds[name].append(turn(steps[name], batches_, options.device))
    return rounds


def turn(step: Callable[..., Any], batches_: list[tuple[torch.Tensor, torch.Tensor]], device: str) -> float:
    step(*batches_[0])  # so that no turn pays for the previous one (caches, clocks)
    wait(device)
    start = time.perf_counter()
    for number in range(STEPS_A_TURN):
        step(*batches_[number % len(batches_)])
    wait(device)
    return (time.perf_counter() - start) / STEPS_A_TURN * 1e3


def time_autotune(options: argparse.Namespace) -> dict[str, Any]:
    """Time `max-autotune` in a separate process, which may exceed its time limit."""
    file = Path(options.out, "max-autotune.tmp.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--alone", str(file), "--device", options.device]
    command += ["--small"] if options.small else []
    start = time.perf_counter()
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=options.limit)
    except subprocess.TimeoutExpired:
        return {"error": f"was not ready within {options.limit:.0f} s"}
    if done.returncode:
        return {"error": done.stderr[-300:]}
    result: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return {**result, "wall_s": time.perf_counter() - start}


def alone(options: argparse.Namespace) -> dict[str, Any]:
    batches_ = batches(AGREEING_STEPS, options.device)
    training = Training(AUTOTUNE, options)
    losses = [training.step(*batch).clone().item() for batch in batches_]
    turns = [turn(training.step, batches_, options.device) for _ in range(3 if options.small else ROUNDS)]
    return {"ms": interval(np.array(turns)), "losses": losses}


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def hardware(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def interval(samples: np.ndarray) -> dict[str, float]:
    draws = np.random.default_rng(0).integers(0, len(samples), (2000, len(samples)))
    low, high = np.quantile(np.median(samples[draws], axis=1), (0.025, 0.975))
    return {"low": float(low), "mid": float(np.median(samples)), "high": float(high)}


def write(result: dict[str, Any], options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    label = options.label or hardware(options.device).replace(" ", "-")
    stem = f"{datetime.date.today()}-{label}-train-step"
    Path(options.out, f"{stem}.json").write_text(json.dumps(result, indent=1))
    Path(options.out, f"{stem}.md").write_text(table(result) + "\n")


def table(result: dict[str, Any]) -> str:
    """Return a table of contenders, with their times relative to the better captured step."""
    ms = result["ms"]
    best = min((name for name in OURS if name in ms), key=lambda name: ms[name]["mid"], default=None)
    lines = [f"Training step, {result['hardware']}, torch {result['torch']}", ""]
    lines += [f"| contender | ms per step | over {best} | first two steps, s |", "|---|---|---|---|"]
    for name, spread in sorted(ms.items(), key=lambda row: -row[1]["mid"]):
        ratio = result["ratios"][best].get(name) if best else None
        shown = "" if ratio is None else f"{ratio['mid']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        lines.append(f"| {name} | {spread['mid']:.3f} | {shown} | {result['first_two_steps_s'][name]:.1f} |")
    if extra := result.get(AUTOTUNE):
        shown = extra.get("error") or f"{extra['ms']['mid']:.3f} [{extra['ms']['low']:.3f}, {extra['ms']['high']:.3f}]"
        lines.append(f"| {AUTOTUNE} (alone) | {shown} | | {extra.get('wall_s', 0):.1f} in all |")
    lines += [f"| {name} | {reason} | | |" for name, reason in result["dropped"].items()]
    modes = [name for name in MODES if name in ms]
    if best and modes:
        mode = min(modes, key=lambda name: ms[name]["mid"])
        ratio = result["ratios"][best][mode]
        lines += ["", f"Best mode {mode} over {best}: {ratio['mid']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
