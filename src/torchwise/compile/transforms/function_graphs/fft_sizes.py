"""Convolutions by Fourier transforms are padded to a length that is quick to transform.

Libraries have code for lengths of small prime factors. Other lengths take more work, by Bluestein's algorithm (1970) or
the like, and a longer transform may be the quicker one. Where both signals together are no longer than the transform,
nothing wraps around, and more zeros at the end change nothing before them.

A product of spectra that something else reads, too, or that wraps around, is left alone, as is a filter whose spectrum
is an input: its length is fixed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from torchwise.compile.transforms.function_graphs.nodes import (
    VALUE,
    argument,
    is_only_for,
    name_of,
    value_of,
)

FORWARD = {"fft_irfft": "fft_rfft", "fft_ifft": "fft_fft"}
"""The transforms by the names of their inverses."""
FACTORS = (2, 3, 5, 7)
"""The prime factors for which MKL, pocketfft and cuFFT have code of their own."""
MAX_GROWTH = 1.25
"""Length after padding, as a multiple of the one before."""


def rewrite(graph: Graph) -> int:
    """Pad convolutions, and return how many."""
    return sum(_pad(graph, node) for node in list(graph.nodes) if name_of(node) in FORWARD)


def find_quick_length(length: int) -> int:
    """Return the least length from this one on whose prime factors are small."""
    while True:
        rest = length
        for factor in FACTORS:
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 1


def _pad(graph: Graph, inverse: Node) -> bool:
    product = inverse.args[0] if inverse.args else None
    answer = value_of(inverse)
    if answer is None or not isinstance(product, Node) or name_of(product) != "mul" or product.kwargs:
        return False
    spectra = [one for one in product.args if isinstance(one, Node)]
    length = answer.shape[-1] if _is_plain(inverse, answer.dim()) else None
    if len(spectra) != 2 or spectra[0] is spectra[1] or not isinstance(length, int):
        return False
    lengths = [_find_signal(one, FORWARD[name_of(inverse)], length) for one in spectra]
    is_read = all(map(is_only_for, (*spectra, product), (product, product, inverse)))
    if None in lengths or not is_read or sum(lengths) - 1 > length:  # type: ignore[arg-type]
        return False
    quick = find_quick_length(length)
    if quick == length or quick > MAX_GROWTH * length:
        return False
    for node in (*spectra, inverse):
        node.args, node.kwargs = (node.args[0], quick), {}
    for node in (*spectra, product, inverse):
        node.meta[VALUE] = _compute(node)
    with graph.inserting_after(inverse):
        part = graph.call_method("narrow", (inverse, -1, 0, length))
    with graph.inserting_after(part):
        whole = graph.call_method("contiguous", (part,))  # as the transform of this length lies, for views of it
    inverse.replace_all_uses_with(whole, delete_user_cb=lambda user: user is not part)
    part.meta[VALUE], whole.meta[VALUE] = inverse.meta[VALUE].narrow(-1, 0, length), answer
    return True


def _find_signal(spectrum: Node, name: str, length: int) -> int | None:
    """Return the length of the signal of a spectrum, or None if it is no transform of this length."""
    signal, value = (value_of(spectrum.args[0]), value_of(spectrum)) if spectrum.args else (None, None)
    if name_of(spectrum) != name or signal is None or value is None or not _is_plain(spectrum, signal.dim()):
        return None
    own, given = signal.shape[-1], argument(spectrum, 1, "n")
    if not isinstance(own, int) or (own if given is None else given) != length:
        return None
    return min(own, length)


def _is_plain(node: Node, dims: int) -> bool:
    """Whether it transforms the last dimension, without a scale of its own."""
    is_last = argument(node, 2, "dim", -1) in (-1, dims - 1)
    return is_last and argument(node, 3, "norm") in (None, "backward") and node.kwargs.get("out") is None


def _compute(node: Node) -> torch.Tensor:
    """Return a node's tensor without data, computed anew."""
    given: Any = torch.fx.map_arg(node.args, value_of)
    if name_of(node) == "mul":
        return given[0] * given[1]  # type: ignore[no-any-return]
    return node.target(*given)  # type: ignore[operator, no-any-return]
