"""Passes over a rewritten graph that suit it to a GPU: reductions without interleaving, and sines from half angles."""

from __future__ import annotations

import torch

from torchwise.compile.transforms.complex_to_real.pairs import Recorder

aten = torch.ops.aten

DEVICE = "cuda"
MIN_ELEMENTS = 1 << 22
"""Reduced elements below which a kernel of its own does not pay.

The limit lies between the two fields of `split_interleaves`, where costs and gains are alike.
"""
FARTHEST = 16
"""Maximum number of nodes between a reduction and its interleaving: more would be computed twice."""


def split_interleaves(graph: torch.fx.Graph, recorder: Recorder) -> None:
    """Replace each interleaving of two reduced parts by a choice between them, place by place, in a kernel of its own.

    Inductor chooses how a reduction loops by the places of its results. Results that go to every second place look
    scattered to it, and it takes blocks of few rows. The field of 100 sources at 1 048 576 points then takes 617
    microseconds. With its parts apart it takes 340, of which interleaving is 14. At 8192 points and 50 sources the
    second kernel costs more than it gains: 12.2 against 8.1 (one H200, torch 2.11). Values computed element by element
    are interleaved as they are written.
    """
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


MIN_ANGLES = MIN_ELEMENTS
"""Angles below which nothing shows a gain."""
_PARTS = aten.cos.default, aten.sin.default


def take_half_angles(graph: torch.fx.Graph, recorder: Recorder) -> None:
    """Replace each cosine and sine of one and the same large tensor, if rules for complex numbers wrote both.

    With t = tan(a/2), cos a = (1 − t²) / (1 + t²) and sin a = 2t / (1 + t²). One reduction of the angle takes the place
    of two. Each reduction brings a branch for large angles, which the compiler cannot join. So a loop over sources of a
    field takes 81.5 machine instructions for one of them in place of 91.5. (`benchmarks/instructions.py`, for a Hopper
    GPU, torch 2.11)

    On a CPU the result is right to 2e-7 of the number on the unit circle. Sine and cosine by themselves are right to
    6e-8. On a GPU its tangent decides. The angle itself was rounded before, by as much if it is beyond 4. A cosine near
    its zero keeps that error, but not its own last places. That is why a model's cosines of real numbers stay as they
    are.
    """
    for node in list(graph.nodes):
        if node.target not in _PARTS or not _are_angles(node.meta["val"]):
            continue
        angle = node.args[0]
        users = [user for user in angle.users if user in recorder.written and user.users]
        cosines, sines = ([user for user in users if user.target is part] for part in _PARTS)
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


def _are_angles(value: torch.Tensor) -> bool:
    return value.device.type == DEVICE and value.dtype is torch.float32 and value.numel() >= MIN_ANGLES
