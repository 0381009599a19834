"""The parts of a large reduction's result are written one by one, and a kernel of its own interleaves them, on a GPU.

Inductor chooses how a reduction loops by the places of its results. Results that go to every second place look
scattered to it, and it takes blocks of few rows. The field of 100 sources at 1 048 576 points then takes 617
microseconds. With its parts apart it takes 340, of which interleaving is 14. At 8192 points and 50 sources the second
kernel costs more than it gains: 12.2 against 8.1 (one H200, torch 2.11). Values computed element by element are
interleaved as they are written.
"""

from __future__ import annotations

import torch

from torchwise.compile.transforms.complex_to_real.recorder import Recorder

aten = torch.ops.aten

DEVICE = "cuda"
MIN_ELEMENTS = 1 << 22
"""Reduced elements below which a kernel of its own does not pay.

The limit lies between the two fields above, where costs and gains are alike.
"""
FARTHEST = 16
"""Maximum number of nodes between a reduction and its interleaving: more would be computed twice."""


def split_interleaves(graph: torch.fx.Graph, recorder: Recorder) -> None:
    """Replace each interleaving of two reduced parts by a choice between them, place by place."""
    for node in graph.find_nodes(op="call_function", target=aten.cat.default):
        parts = node.args[0]
        if len(parts) == 2 and _is_interleaving(node.meta["val"], parts) and any(map(_is_reduced, parts)):
            with graph.inserting_before(node), recorder:
                re, im = (recorder.bind(part) for part in parts)
                chosen = torch.where(torch.arange(2, device=re.device) == 0, re, im)
            node.replace_all_uses_with(recorder.node_of(chosen))
            graph.erase_node(node)


def _is_interleaving(whole: torch.Tensor, parts: tuple[torch.fx.Node, torch.fx.Node]) -> bool:
    """Whether both parts are put side by side, one element each, on a GPU."""
    return whole.device.type == DEVICE and all(part.meta["val"].shape == (*whole.shape[:-1], 1) for part in parts)


def _is_reduced(part: torch.fx.Node) -> bool:
    """Whether a part is the result of a large reduction, with any element-wise operators after it."""
    size = part.meta["val"].numel()
    waiting, visited = [part], {part}
    while waiting and len(visited) <= FARTHEST:
        node = waiting.pop()
        sources = [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
        if torch.Tag.reduction in getattr(node.target, "tags", ()):
            return any(source.meta["val"].numel() >= MIN_ELEMENTS for source in sources)
        before = [source for source in sources if source.meta["val"].numel() == size and source not in visited]
        waiting += before
        visited.update(before)
    return False
