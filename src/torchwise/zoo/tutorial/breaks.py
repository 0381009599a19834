"""Graph breaks: five ways in which ordinary Python between two layers stops a compiler from seeing both.

Each program is y = W₂ g(tanh(W₁ x)), with its own g. tanh is odd and the layers have no biases, so that −x mirrors the
hidden values of x. See https://docs.pytorch.org/docs/stable/torch.compiler_faq.html#graph-breaks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from torchwise.errors import WorkloadError
from torchwise.workload import Example, Workload
from torchwise.zoo.random_inputs import Request
from torchwise.zoo.tutorial.basics import make_mirrored_examples, make_workload, normal_examples

KNOTS = (-1.0, -0.5, 0.0, 0.5, 1.0)
CURVE = (-0.8, -0.6, 0.1, 0.6, 0.8)
"""A measured response, as instruments come with: the value at each knot, and straight lines in between."""

NEGLIGIBLE = 1e-3
"""The largest value of a term that is worth no further one."""


class TwoLayers(nn.Module):
    """y = W₂ g(tanh(W₁ x)) with square W₁ and W₂, where g is `transform_hidden`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width, bias=False)
        self.second = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, width) to the same shape."""
        y: torch.Tensor = self.second(self.transform_hidden(torch.tanh(self.first(x))))
        return y

    def transform_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Map (batch, width), with values in (−1, 1), to the same shape."""
        raise NotImplementedError


class LastLine:
    """A stream that keeps the last line printed to it, so that a program which prints on every call floods nothing."""

    def __init__(self) -> None:
        self.line = ""

    def write(self, text: str) -> int:
        """Take some text. The end of a line, which `print` writes on its own, is not kept."""
        if text.strip():
            self.line = text
        return len(text)


class BreakPrint(TwoLayers):
    """g(h) = h, with a `print` on the way: output that must come in the order of the program.

    That the line is printed is its point, and a side effect. It is the built-in `print`, as everybody writes it while
    debugging, but to a stream of its own. It prints a shape, for a value would make the host wait for it, too.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.log = LastLine()

    def transform_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return `hidden` as it is."""
        print(f"hidden values: {tuple(hidden.shape)}", file=self.log)
        return hidden


class BreakItem(TwoLayers):
    """g(h) = h / mean |h|, where the mean passes through a Python number. No gradient flows through it.

    `torch.compile(fullgraph=True)` captures it from PyTorch 2.13 on. Without that option, and before, the graph breaks.
    """

    def transform_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scale `hidden` to a mean absolute value of one."""
        size = hidden.abs().mean().item()
        return hidden / size


class BreakBranch(TwoLayers):
    """g(h) = 2 h if the mean of h is above 0, and h / 2 if it is not: an `if` whose answer lies in the data."""

    def transform_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Double or halve `hidden`."""
        if hidden.mean() > 0:
            return hidden * 2
        return hidden / 2


class BreakNumpy(TwoLayers):
    """g(h) is interpolated in a table by NumPy, on the host. No gradient flows through it.

    PyTorch traces the NumPy functions that it has itself, and then nothing breaks. It has no `numpy.interp`
    (https://docs.pytorch.org/docs/stable/torch.compiler_faq.html#does-numpy-work-with-torch-compile).
    """

    def transform_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Interpolate `CURVE` over `KNOTS`."""
        values = hidden.detach().cpu().numpy()
        read = np.interp(values, KNOTS, CURVE)  # in float64, for any input
        return torch.from_numpy(read).to(hidden)


class BreakList(TwoLayers):
    """g(h) = h + h · h/2 + h · (h/2)² + …, the terms in a list that grows until the last one is negligible.

    A list that grows by a known number of items is traced, and then nothing breaks. Here the data decide, term by
    term, and PyTorch compiles anew for each length of the list, up to its recompilation limit. The series is
    geometric: g(h) = h / (1 − h/2), but for the terms left out, at most 1e-3 together.
    """

    def transform_hidden(self, hidden: torch.Tensor) -> torch.Tensor:
        """Sum the series."""
        terms = [hidden]
        while terms[-1].abs().max() > NEGLIGIBLE:
            terms.append(terms[-1] * hidden / 2)
        return torch.stack(terms).sum(dim=0)


def build_break_print(request: Request, *, batch: int, width: int) -> Workload:
    """Build `BreakPrint` on activations of shape (batch, width), of unit variance."""
    return _build(request, BreakPrint, batch, width, flops=0)


def build_break_item(request: Request, *, batch: int, width: int) -> Workload:
    """Build `BreakItem` on activations of shape (batch, width), of unit variance."""
    return _build(request, BreakItem, batch, width, flops=3)  # the absolute value, the mean, the division


def build_break_branch(request: Request, *, batch: int, width: int) -> Workload:
    """Build `BreakBranch` on two inputs of shape (batch, width), x and −x, which take one branch each."""
    return _build(request, BreakBranch, batch, width, flops=2, examples=make_mirrored_examples)  # the mean, the product


def build_break_numpy(request: Request, *, batch: int, width: int) -> Workload:
    """Build `BreakNumpy` on activations of shape (batch, width), of unit variance.

    Raises:
        WorkloadError: NumPy has no such dtype.
    """
    if request.dtype not in (torch.float16, torch.float32, torch.float64):
        raise WorkloadError(
            f"dtype is {request.dtype}, but {request.name} must be torch.float16, torch.float32 or torch.float64: "
            "NumPy has no other floating-point types"
        )
    # Three comparisons to find the interval, and a difference, a product and a sum in it.
    return _build(request, BreakNumpy, batch, width, flops=6)


def build_break_list(request: Request, *, batch: int, width: int) -> Workload:
    """Build `BreakList` on activations of shape (batch, width), of unit variance."""
    # About ten terms, as each is at most half of the one before: two products, the test's two, and a sum for each.
    return _build(request, BreakList, batch, width, flops=50)


def _build(
    request: Request,
    kind: type[TwoLayers],
    batch: int,
    width: int,
    *,
    flops: int,
    examples: Callable[[Request, tuple[int, ...], int], tuple[Example, ...]] = normal_examples,
) -> Workload:
    """Build a program whose `transform_hidden` does so many FLOPs for each value, none of them through memory."""
    model = request.draws().module(lambda: kind(width)).eval()
    draw = functools.partial(examples, request, (batch, width))
    # Per value: a product and a sum per weight, twice, tanh, and the operations of `transform_hidden`.
    work = batch * width * (4 * width + 1 + flops)
    return make_workload(request, model, draw, work, values=2 * width * width + 2 * batch * width)
