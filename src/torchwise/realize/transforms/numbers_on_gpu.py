"""Numbers that stay: what a model reads from the GPU into Python, to compute with on the GPU again, is left there.

`h / h.abs().mean().item()` makes the host wait, and a graph that is replayed would divide by the number of its
recording. Here `item()` gives a tensor of no dimensions, in float64 as Python's numbers are, which arithmetic takes as
it takes a number: the result has the dtype of the other tensor. So the call can be captured, and the number is another
one on every replay. It is put in place while a graph is recorded; a replay runs no Python.

Python may do with a number what it cannot do with a tensor: print it, round it, count with it, hand it to `math`. That
asks for the number after all, which no recording survives, and the plan is refused with the line that does so. Integers
are left to that, as they are counted with. An answer that would hold the number holds a tensor, which the verdict
refuses. A quotient by a number is a product with its inverse on a GPU, and by a tensor a quotient: hence it is
"reordered".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchwise.errors import UnsupportedError
from torchwise.realize.asked import answering


def staying(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return `call` with the floating-point numbers that it reads from tensors left where they are.

    Raises (on call):
        UnsupportedError: it reads none.
    """

    @functools.wraps(call)
    def with_numbers(*args: Any, **kwargs: Any) -> Any:
        stayed = 0

        def item(tensor: torch.Tensor) -> Any:
            nonlocal stayed
            if tensor.is_cpu or not tensor.is_floating_point() or tensor.numel() != 1:
                return NotImplemented
            stayed += 1
            return tensor.detach().reshape(()).to(torch.float64, copy=True)  # what is written later changes no number

        with answering(lambda _: NotImplemented, item):
            answer = call(*args, **kwargs)
        if not stayed:
            raise UnsupportedError("numbers_on_gpu changes nothing here: the call reads no number from a tensor there")
        return answer

    return with_numbers
