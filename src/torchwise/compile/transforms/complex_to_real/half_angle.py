"""Sine and cosine of one angle are taken from the tangent of its half, for millions of float32 angles on a GPU.

With t = tan(a/2), cos a = (1 − t²) / (1 + t²) and sin a = 2t / (1 + t²): one reduction of the angle in place of two.
Each reduction brings a branch for large angles, which the compiler cannot join. So a loop over sources of a field takes
81.5 machine instructions for one of them in place of 91.5. (`benchmarks/instructions.py`, for a Hopper GPU, torch 2.11)

On a CPU the result is right to 2e-7 of the number on the unit circle. Sine and cosine by themselves are right to 6e-8.
On a GPU its tangent decides. The angle itself was rounded before, by as much if it is beyond 4. A cosine near its zero
keeps that error, but not its own last places. That is why a model's cosines of real numbers stay as they are. Fewer
angles than a large reduction of `apart` stay, too: nothing shows a gain there.
"""

from __future__ import annotations

import torch

from torchwise.compile.transforms.complex_to_real.layout import DEVICE, MIN_ELEMENTS
from torchwise.compile.transforms.complex_to_real.registry import Recorder

aten = torch.ops.aten

PARTS = aten.cos.default, aten.sin.default


def take_half_angles(graph: torch.fx.Graph, recorder: Recorder) -> None:
    """Replace each cosine and sine of one and the same large tensor, if rules for complex numbers wrote both."""
    for node in list(graph.nodes):
        if node.target not in PARTS or not _is_meant(node.meta["val"]):
            continue
        angle = node.args[0]
        users = [user for user in angle.users if user in recorder.written and user.users]
        cosines, sines = ([user for user in users if user.target is part] for part in PARTS)
        if not cosines or not sines:
            continue
        with graph.inserting_before(node), recorder:  # the first of them: the others come after it
            tangent = (0.5 * recorder.bind(angle)).tan()
            square = tangent * tangent
            scale = (1 + square).reciprocal()
            halves = (1 - square) * scale, 2 * tangent * scale
        for old, new in zip((cosines, sines), halves, strict=True):
            for one in old:
                one.replace_all_uses_with(recorder.node_of(new))


def _is_meant(value: torch.Tensor) -> bool:
    return value.device.type == DEVICE and value.dtype is torch.float32 and value.numel() >= MIN_ELEMENTS
