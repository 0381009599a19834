"""Keep numbers on the GPU that a model reads into Python only to compute with them on the GPU again.

`h / h.abs().mean().item()` makes the host wait, and a replayed graph would divide by the number of its recording. Here
`item()` returns a `Number`, in float64 like Python's numbers. So the call can be captured, and each replay computes
with its own number. `item` is replaced only while a graph is recorded, as a replay runs no Python.

A number supports only the operations whose results are the same for a Python number, for every value. It is added to,
subtracted from, multiplied with and divides a tensor of float32 or float64 that has dimensions, or is divided by one.
Among numbers it is added, subtracted and multiplied. All else is refused, with the line. Python's own quotients and
powers raise or turn complex where a tensor's do not. Kernels round a number first if the tensor is of half precision.
And a comparison, a format, a size or `math` needs the number after all. Integers are not left there, as they are
counted with. Code that asks only for the type of a number (`isinstance(x, float)`) is not noticed. A quotient by a
number is a product with its inverse on a GPU, and by a tensor a quotient: hence it is "same-precision".
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchwise._torch.dispatch import NO_SUBCLASSES
from torchwise.compile.cuda_graphs.capture_errors import place_of
from torchwise.compile.cuda_graphs.recorded_graph import DEVICE
from torchwise.compile.tensor_reads import answering
from torchwise.compile.uncompiled_reason import no_effect
from torchwise.errors import UnsupportedError
from torchwise.workload import pytree

AMONG_NUMBERS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "neg": torch.neg,
    "abs": torch.abs,
}
"""Arithmetic of numbers alone, by PyTorch's names. In place it has an underscore behind, which gives a new number."""
WITH_TENSORS = ("add", "sub", "mul", "div", "true_divide", "__rsub__", "__rdiv__", "add_", "sub_", "mul_", "div_")
WIDE = (torch.float32, torch.float64)


class Number(torch.Tensor):
    """A number for Python that stays where it was read: a tensor without dimensions, float64."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute as Python does with numbers.

        Raises:
            UnsupportedError: the result would differ, or the operation needs the number itself.
        """
        name = getattr(func, "__name__", str(func))
        others = [arg for arg in args if not isinstance(arg, Number)]
        among = AMONG_NUMBERS.get(name.removesuffix("_"))
        with NO_SUBCLASSES.get()():
            if all(type(other) in (int, float) for other in others) and not kwargs:
                if among is not None:
                    return among(*args).as_subclass(Number)
                if name == "__rsub__":  # a Python number minus this one
                    return torch.sub(args[1], args[0]).as_subclass(Number)
            elif all(map(_is_wide, others)) and name in WITH_TENSORS and not kwargs:
                if isinstance(args[0], Number) and name.endswith("_"):  # n *= x rebinds n
                    return getattr(torch, name[:-1])(*args)
                return func(*args)
        raise UnsupportedError(f"Python needs the value of a number on the GPU, for {name.strip('_')}")

    def __hash__(self) -> int:
        """Refuse to serve as a key, as the value is not known here."""
        raise UnsupportedError("Python needs the value of a number on the GPU, for a set or the keys of a dict")


def keep_numbers_on_gpu(call: Callable[..., Any], device: str = DEVICE) -> Callable[..., Any]:
    """Return `call` with the floating-point numbers that it reads from tensors on the device left there.

    Raises (on call):
        UnsupportedError: it reads none, or does something with one that only Python can, or returns one.
    """

    @functools.wraps(call)
    def with_numbers(*args: Any, **kwargs: Any) -> Any:
        stayed = 0

        def item(tensor: torch.Tensor) -> Any:
            nonlocal stayed
            is_number = tensor.device.type == device and tensor.is_floating_point() and tensor.numel() == 1
            if isinstance(tensor, Number) or not is_number:
                return NotImplemented
            stayed += 1
            copied = tensor.detach().reshape(()).to(torch.float64, copy=True)  # later writes change no number
            return copied.as_subclass(Number)

        try:
            with answering(lambda _: NotImplemented, item):
                answer = call(*args, **kwargs)
        except UnsupportedError as error:
            raise UnsupportedError(f"{error}, at {place}" if (place := place_of(error)) else str(error)) from error
        if any(isinstance(tensor, Number) for tensor in pytree.tensors(answer)):
            raise UnsupportedError("the call returns a number that it reads from the GPU, and Python needs its value")
        if not stayed:
            raise no_effect(("transforms", "numbers_on_gpu"), "the call reads no number from a tensor there")
        return answer

    return with_numbers


def _is_wide(other: Any) -> bool:
    """Whether arithmetic with a number has the same result as with Python's: of the tensor's dtype, rounded once."""
    if type(other) not in (torch.Tensor, torch.nn.Parameter):
        return False
    return other.dtype in WIDE and other.dim() > 0
