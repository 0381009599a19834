"""Weights of fewer bits in linear layers: a step of decoding, which reads weights, and a prefill, which multiplies.

Each plan is verified and timed against eager in a process of its own, as in a search. The table has the speed-up with
its interval, and the error. The last line is the decision among all of them, for each of the two programs:

    python benchmarks/quantized.py            # some 4 minutes on two cores
    python benchmarks/quantized.py --tolerance 0.01 --budget 60
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn

import torchwise
from torchwise import environment
from torchwise.plan import Plan
from torchwise.records import format as show
from torchwise.records.candidates import rows

LAYERS, WIDTH, PREFILL = 6, 2048, 256
FORMATS = ("int8_dynamic", "int8_weights", "int4_weights")
INDUCTOR = Plan(backend="inductor")
PLANS = (
    *(Plan(transforms=(name,)) for name in FORMATS),
    INDUCTOR,
    *(INDUCTOR.with_choice("transforms", name) for name in FORMATS),
)


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))).eval()


def decode() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return a stack of large layers, and one row."""
    return make_model(), (torch.randn(1, WIDTH),)


def prefill() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """Return the same stack, and many rows."""
    return make_model(), (torch.randn(PREFILL, WIDTH),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tolerance", type=float, default=0.2, help="permitted relative error (default 0.2)")
    parser.add_argument("--budget", type=float, default=115.0, help="seconds for each program (default 115)")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    here = environment.detect(options.device)
    print(
        f"{here.gpu or here.cpu}, {here.cpus} CPUs, torch {here.torch}, {LAYERS} layers of {WIDTH} × {WIDTH}, "
        f"tolerance {options.tolerance:g}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        for number, factory in enumerate((decode, prefill)):
            run(factory.__name__, options, str(Path(folder, f"{number}.db")))


def run(name: str, options: argparse.Namespace, store: str) -> None:
    """Print the table of one program, and its decision."""
    study = torchwise.tune(
        f"{__file__}:{name}",
        plans=PLANS,
        allow="quantized",
        tolerance=options.tolerance,
        budget=options.budget,
        device=options.device,
        calls=10_000_000,
        iterations=25,
        store=store,
        progress=False,
    ).record
    print(f"## {name}\n\n| plan | speed-up (95 %) | error | answers |\n|---|---|---|---|")
    for row in rows(study):
        print(f"| {row.name} | {show.speedup(row.speedup)} | {show.relative_error(row.error)} | {row.verdict} |")
    print(f"\n{study.decision.reason if study.decision else 'No decision.'}\n", flush=True)


if __name__ == "__main__":
    main()
