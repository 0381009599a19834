"""Other kernels for attention and convolutions on a GPU, beside the ones that PyTorch takes by itself.

Each layer runs as it is, and by each plan of one choice. Answers are compared first. All of a layer are captured in
CUDA graphs and timed in alternation, so that kernels count, and not the host. Ratios are of the layer's own time to
that of the plan, paired within rounds, with 95 % bootstrap intervals.

Run it: python benchmarks/library_kernels.py --out library-kernels.txt      # some 30 seconds
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 - as everybody calls it

from torchwise.compile import compile_plan
from torchwise.plan import Plan
from torchwise.plan.choices.library_kernels import ATTENTION
from torchwise.records import format as show
from torchwise.records.statistics import ratio_interval
from torchwise.workload import Example

ROUNDS, CALLS = 21, 20
HEADS = {
    "BERT-base, batch 8": (8, 12, 128, 128, 64),
    "ViT-B, batch 32": (32, 12, 197, 197, 64),
    "UNet, 64 x 64": (2, 8, 4096, 4096, 40),
    "prefill of 4,096": (1, 32, 4096, 4096, 128),
    "decode over 2,048": (1, 32, 1, 2048, 128),
}
"""Batch, heads, queries, keys and features of attention."""
LAYERS = {
    "ResNet-50, 3 x 3, batch 32": ((32, 64, 56, 56), 64, 3),
    "ResNet-50, 1 x 1, batch 32": ((32, 256, 56, 56), 64, 1),
    "UNet, 3 x 3": ((2, 320, 64, 64), 320, 3),
    "one image, 7 x 7": ((1, 3, 224, 224), 64, 7),
}
"""Input, channels of the answer and size of the kernel of convolutions."""


class Attention(torch.nn.Module):
    """Fused attention alone."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the answer for queries, keys and values of (batch, heads, length, features)."""
        return F.scaled_dot_product_attention(query, key, value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file for what is printed")
    options = parser.parse_args()
    torch.manual_seed(0)
    card = f"{torch.cuda.get_device_name()}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    lines = [f"{card}, {datetime.now(UTC):%Y-%m-%d}, {ROUNDS} rounds of {CALLS} calls"]
    print(lines[0], flush=True)
    with torch.no_grad():
        for dtype in (torch.bfloat16, torch.float32):
            for name, (batch, heads, queries, keys, features) in HEADS.items():
                sizes = [(batch, heads, length, features) for length in (queries, keys, keys)]
                inputs = tuple(torch.randn(size, device="cuda", dtype=dtype) for size in sizes)
                lines.append(compare(f"{name}, {dtype}", Attention(), inputs, [*ATTENTION]))
            for name, (size, channels, kernel) in LAYERS.items():
                layer = torch.nn.Conv2d(size[1], channels, kernel, padding=kernel // 2).cuda().to(dtype)
                given = (torch.randn(size, device="cuda", dtype=dtype),)
                lines.append(compare(f"{name}, {dtype}", layer, given, ["cudnn_benchmark"]))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


def compare(name: str, layer: torch.nn.Module, inputs: tuple[Any, ...], transforms: list[str]) -> str:
    """Return the line of a layer: its own time, and the ratio of each plan."""
    plans = {one: Plan(transforms=(one,), capture="call") for one in transforms}
    racers: dict[str, Callable[..., Any]] = {}
    closed = []
    for one, plan in {"as it is": Plan(capture="call"), **plans}.items():
        compiled = compile_plan(layer, plan, Example(inputs), device="cuda", mode="inference")
        close = 0.02 if inputs[0].dtype is torch.bfloat16 else 1e-3
        torch.testing.assert_close(compiled.call(*inputs), layer(*inputs), rtol=close, atol=close)
        racers[one] = compiled.call
        closed.append(compiled.close)
    samples: dict[str, list[float]] = {one: [] for one in racers}
    names = list(racers)
    for number in range(ROUNDS):
        turn = number % len(names)
        for one in names[turn:] + names[:turn]:
            samples[one].append(time_calls(racers[one], inputs))
    for close_graphs in closed:
        close_graphs()
    own = sorted(samples["as it is"])[ROUNDS // 2]
    found = (f"{one} {show.speedup(ratio_interval(samples['as it is'], samples[one]))}" for one in names[1:])
    line = f"{name}: {show.seconds(own)}; {', '.join(found)}"
    print(line, flush=True)
    return line


def time_calls(call: Callable[..., Any], inputs: tuple[Any, ...]) -> float:
    """Return the seconds of a call on the GPU."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call(*inputs)
    begin.record()
    for _ in range(CALLS):
        call(*inputs)
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / CALLS


if __name__ == "__main__":
    main()
