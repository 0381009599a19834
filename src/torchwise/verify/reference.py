"""The reference: the model in float64, drawing the same random numbers that eager draws in its own precision.

Source of the idea of a float64 yardstick: PyTorch's own benchmarks (`torch._dynamo.utils.same` with `fp64_ref`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from torchwise.workload.copying import deep_copy
from torchwise.workload.workload import Example

if TYPE_CHECKING:
    import torch

WIDE_ARRAYS = {"f": "float64", "c": "complex128"}
"""Dtype of the reference for arrays of NumPy, by the kind of theirs."""


def float64_of(call: Callable[..., Any], device: str | None = None) -> Callable[..., Any]:
    """Return a copy of a module in float64 / complex128; a function as it is, for its inputs decide its precision.

    Args:
        call: a module or a function.
        device: where the copy is to be; None for where the module is.

    Raises:
        WorkloadError: it cannot be copied; the caller falls back to eager.
    """
    import torch

    if not isinstance(call, torch.nn.Module):
        return call
    reference: torch.nn.Module = deep_copy(
        call, convert=lambda tensor: widened(tensor.to(device) if device else tensor)
    )
    if device:
        reference.to(device)  # which a class may override
    reference._apply(widened)  # likewise
    return reference


def widen(example: Example) -> Example:
    """Return the example in float64 / complex128; integers and booleans stay."""
    wide: Example = example.clone(widened)
    return wide.map_tensors(lambda t: t, lambda array: array.astype(WIDE_ARRAYS.get(array.dtype.kind, array.dtype)))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Return a floating tensor in float64, a complex one in complex128, any other as it is."""
    import torch

    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


@contextlib.contextmanager
def as_reference() -> Iterator[None]:
    """Run what is inside in float64 throughout, with random numbers drawn in float32 and then widened."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with MatchedNoise():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.set_default_dtype(before)


class MatchedNoise(TorchDispatchMode):
    """Draws in float32 whatever is asked for in float64: then one seed gives eager and reference the same noise.

    PyTorch's generators give other numbers for another dtype, so without this a stochastic model could be compared
    with its reference in distribution only.

    What asks for a narrower dtype by name gets float64 too: `outputs.float()` before a loss, written for autocast,
    would round the reference, or leave it in two dtypes that no backward pass takes.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Redirect the operators that draw; pass every other on."""
        import torch

        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if name in _LIKE and (asked := kwargs.get("dtype") or args[0].dtype) in (torch.float64, *_wide()):
            return widened(func(args[0], *args[1:], **{**kwargs, "dtype": _drawn_in(asked)}))
        if name in _IN_PLACE and args[0].dtype is torch.float64:
            drawn = func(args[0].float(), *_narrowed(args[1:]), **kwargs)
            return args[0].copy_(drawn)
        if name == "normal" and "dtype" not in [argument.name for argument in func._schema.arguments]:
            return widened(func(*_narrowed(args), **kwargs))
        if name in _FACTORIES and (asked := kwargs.get("dtype") or torch.float64) in (torch.float64, *_wide()):
            return widened(func(*args, **{**kwargs, "dtype": _drawn_in(asked)}))
        if name == "bernoulli" and args[0].dtype is torch.float64:
            return func(args[0].float(), *args[1:], **kwargs).double()
        if name == "native_dropout" and args[0].dtype is torch.float64:
            kept, mask = func(args[0].float(), *args[1:], **kwargs)
            del kept
            scale = 1.0 / (1.0 - args[1]) if args[1] < 1 else 0.0
            return args[0] * mask * scale, mask
        if kwargs.get("dtype") in _wide():
            kwargs = {**kwargs, "dtype": _wide()[kwargs["dtype"]]}
        return func(*args, **kwargs)


_LIKE = {"randn_like", "rand_like"}
_IN_PLACE = {"normal_", "uniform_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"}
_FACTORIES = {"randn", "rand", "normal"}


@functools.cache
def _wide() -> dict[Any, torch.dtype]:
    """Return the dtype of the reference for each that is narrower."""
    import torch

    narrow = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64)
    return {**narrow, torch.complex64: torch.complex128, torch.complex32: torch.complex128}


def _drawn_in(asked: torch.dtype) -> torch.dtype:
    """Return the dtype in which eager draws what the reference is asked for."""
    import torch

    return torch.float32 if asked is torch.float64 else asked


def _narrowed(args: Any) -> Any:
    import torch

    return [a.float() if isinstance(a, torch.Tensor) and a.dtype is torch.float64 else a for a in args]
