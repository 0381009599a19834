"""Family `ivhl`: two tensor networks of quantum gravity, one spread out and one dense.

A HaPPY network tiles the hyperbolic plane with pentagons, four at each corner, and puts a tensor on each. Source:
Pastawski, Yoshida, Harlow and Preskill, https://arxiv.org/abs/1503.06237. Its tensors here are random, as in Hayden et
al., https://arxiv.org/abs/1601.01694. A GFT network is the interaction of group field theory: five tetrahedra glued to
the boundary of a 4-simplex (Ooguri, https://arxiv.org/abs/hep-th/9205090), for many of them at once.

Let entries have variance n^(−1/2), where n is the number of entries that a tensor has along its inner legs. Then each
number in the result has mean square 1: the average of ΠT T* over the tensors ties the two copies of every leg together.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.ivhl.complexes import complex_dtype, complex_normal
from torchwise_models.zoo.ivhl.network import Legs, TensorNetwork, flops_of, greedy_path

SIDES = 5
"""Sides of a tile, and vertices of the complete graph of the tetrahedra in a 4-simplex."""


def happy_tiling(tiles: int) -> tuple[tuple[int, int], ...]:
    """Return the inner edges of the first `tiles` pentagons of the tiling {5, 4}, as pairs of their numbers.

    Numbers run from the centre, 0, outwards in rings. In every ring, pentagons that are neighbours along it touch at a
    corner: beyond that lies one pentagon that they share. Beyond each of their other sides lies one of its own.
    """
    edges = [(0, tile) for tile in range(1, 1 + SIDES)]
    ring = [(tile, SIDES - 1) for tile in range(1, 1 + SIDES)]  # with the number of sides that face outwards
    count = 1 + SIDES
    while count < tiles:
        outer: list[tuple[int, int]] = []
        for (tile, free), (following, _) in zip(ring, ring[1:] + ring[:1], strict=True):
            alone = range(count, count + free - 2)
            shared = count + free - 2
            edges += [(tile, child) for child in alone] + [(tile, shared), (following, shared)]
            outer += [(child, SIDES - 1) for child in alone] + [(shared, SIDES - 2)]
            count = shared + 1
        ring = outer
    return tuple(edge for edge in edges if max(edge) < tiles)


def happy_legs(tiles: int) -> tuple[tuple[Legs, ...], Legs]:
    """Return the legs of a HaPPY network's tensors and its open leg: the logical index of the central tile.

    First comes one tensor for each tile, in order, with a leg for each of its five sides. The logical indices of the
    other tiles are pinned, and so left out. Then comes one tensor for each tile at the boundary: the boundary state on
    its outer sides.
    """
    edges = happy_tiling(tiles)
    sides: list[list[int]] = [[] for _ in range(tiles)]
    for leg, edge in enumerate(edges):
        for tile in edge:
            sides[tile].append(leg)
    labels = itertools.count(len(edges))
    outer = [tuple(itertools.islice(labels, SIDES - len(own))) for own in sides]
    logical = (next(labels),)
    inner = [(*own, *beyond) for own, beyond in zip(sides, outer, strict=True)]
    inner[0] += logical
    return (*inner, *filter(None, outer)), logical


def gft_legs() -> tuple[tuple[Legs, ...], Legs]:
    """Return the legs of the five tetrahedra of a 4-simplex, and the open one, 0, which counts the simplices.

    Each tetrahedron has four triangles and shares one of them with each other tetrahedron: the ten legs are 1 to 10.
    """
    pairs = list(itertools.combinations(range(SIDES), 2))
    own = (tuple(leg for leg, pair in enumerate(pairs, start=1) if tetrahedron in pair) for tetrahedron in range(SIDES))
    return tuple((0, *legs) for legs in own), (0,)


def build_tensor_network(request: Request, *, tiles: int, bond: int) -> Workload:
    """Build a HaPPY network of so many tiles, every leg of dimension `bond`. The result has shape (bond,).

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    legs, open_legs = happy_legs(tiles)
    return _build(request, legs, open_legs, {leg: bond for own in legs for leg in own})


def build_gft_network(request: Request, *, simplices: int, bond: int) -> Workload:
    """Build the amplitudes, (simplices,), of so many 4-simplices with `bond` states on each triangle.

    Raises:
        WorkloadError: the dtype is neither float32 nor float64.
    """
    legs, open_legs = gft_legs()
    return _build(request, legs, open_legs, {leg: bond for own in legs for leg in own} | {0: simplices})


def _build(request: Request, legs: Sequence[Legs], open_legs: Legs, sizes: dict[int, int]) -> Workload:
    complex_dtype(request)
    path = greedy_path(legs, open_legs, sizes)
    examples = functools.partial(_examples, request, tuple(legs), open_legs, sizes)
    numbers = sum(math.prod(sizes[leg] for leg in some) for some in (*legs, open_legs))
    return Workload(
        TensorNetwork(legs, open_legs, path),
        examples(request.seed),
        name=request.name,
        # Every tensor is read once and the result written; what lies between may stay on the chip.
        roofline=Roofline(flops_of(legs, open_legs, path, sizes), bytes=2.0 * request.dtype.itemsize * numbers),
        reseed=examples,
    )


def _examples(
    request: Request, legs: tuple[Legs, ...], open_legs: Legs, sizes: dict[int, int], seed: int
) -> tuple[Example, ...]:
    draws = request.draws(seed)
    inner = [math.prod(sizes[leg] for leg in some if leg not in open_legs) for some in legs]
    tensors = [
        complex_normal(draws, *(sizes[leg] for leg in some), scale=count**-0.25)
        for some, count in zip(legs, inner, strict=True)
    ]
    return (Example(tuple(tensors)),)
