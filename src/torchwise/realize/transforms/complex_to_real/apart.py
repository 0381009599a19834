"""What a large reduction gives is written part by part, and interleaved by a kernel of its own; on a GPU alone.

Inductor chooses how a reduction loops by where its results go. Results that go to every second place look scattered to
it, and it takes blocks of few rows: the field of 100 sources at 1 048 576 points then takes 617 microseconds, and with
its parts apart 340, of which interleaving is 14. At 8192 points and 50 sources the second kernel costs more than it
gains: 12.2 beside 8.1 (one H200, torch 2.11). What is computed element by element is interleaved as it is written.
"""

from __future__ import annotations

import torch

from torchwise.realize.transforms.complex_to_real.recorder import Recorder

aten = torch.ops.aten

DEVICE = "cuda"
LEAST = 1 << 22
"""Elements that are reduced, below which a kernel of its own does not pay: between the two fields above, where what it
costs and what it gains are alike."""
FARTHEST = 16
"""Nodes between a reduction and what is interleaved of it, beyond which nobody looks: they would be computed twice."""


def interleave_apart(graph: torch.fx.Graph, recorder: Recorder) -> None:
    """Replace each interleaving of two parts that reductions gave by a choice between them, place by place."""
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
    """Whether a large reduction gave a part, whatever was then done to it element by element."""
    size = part.meta["val"].numel()
    waiting, seen = [part], {part}
    while waiting and len(seen) <= FARTHEST:
        node = waiting.pop()
        given = [source for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
        if torch.Tag.reduction in getattr(node.target, "tags", ()):
            return any(source.meta["val"].numel() >= LEAST for source in given)
        before = [source for source in given if source.meta["val"].numel() == size and source not in seen]
        waiting += before
        seen.update(before)
    return False
