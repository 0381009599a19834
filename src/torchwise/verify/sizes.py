"""Choose the sizes to try: one at a time at the edges of tiles, and all together at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import torch

Sizes = dict[str, int]
Ranges = Mapping[str, tuple[int, int]]
SIZES = (1, 2, 3, 7, 8, 31, 33, 64, 97, 127, 128, 129, 256, 257)
"""Sizes to try: one, odd and prime ones, and those around the edges of tiles."""
RANDOM = 2
"""Draws of all sizes over their whole ranges, and of large ones alone. No candidate can know them."""


def list_sizes(ranges: Ranges, usual: Sizes, seed: int, fits: Callable[[Sizes], bool]) -> Iterator[tuple[str, Sizes]]:
    """Yield sizes with their names: those too large are halved until they fit."""
    seen = [usual]

    def take(found: Sizes) -> bool:
        is_new = found not in seen and fits(found)
        seen.append(found)
        return is_new

    for name, (low, high) in ranges.items():
        for size in sorted({low, *(s for s in SIZES if low < s < high), high} - {usual[name]}):
            found = _halve({**usual, name: size}, name, low, fits)
            if take(found):
                yield f"{name}={found[name]}", found
    if len(ranges) > 1 and take(found := {name: low for name, (low, _) in ranges.items()}):
        yield "all sizes at their least", found
    generator = torch.Generator().manual_seed(seed % 2**62)
    for number in range(2 * RANDOM):
        draw = _draw_anywhere if number < RANDOM else _draw_large
        drawn = {name: draw(*span, float(torch.rand((), generator=generator))) for name, span in ranges.items()}
        if take(found := shrink_sizes(drawn, ranges, fits)):
            yield f"{'sizes' if number < RANDOM else 'large sizes'} at random", found


def shrink_sizes(sizes: Sizes, ranges: Ranges, fits: Callable[[Sizes], bool]) -> Sizes:
    """Halve the largest size until all fit, or none can be smaller."""
    found = dict(sizes)
    while not fits(found):
        able = [name for name in found if found[name] > max(ranges[name][0], 1)]
        if not able:
            break
        largest = max(able, key=lambda name: found[name])
        found[largest] = max(found[largest] // 2, ranges[largest][0], 1)
    return found


def _halve(sizes: Sizes, name: str, low: int, fits: Callable[[Sizes], bool]) -> Sizes:
    while not fits(sizes) and sizes[name] > max(low, 1):
        sizes = {**sizes, name: max(sizes[name] // 2, low, 1)}
    return sizes


def _draw_anywhere(low: int, high: int, share: float) -> int:
    """Return a size whose logarithm is uniform."""
    return min(high, low - 1 + int(math.exp(share * math.log(high - low + 2))))


def _draw_large(low: int, high: int, share: float) -> int:
    return high - int(share * (high - low + 1) / 2)
