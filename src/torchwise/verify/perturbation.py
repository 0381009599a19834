"""Measure how far rounding alone moves an answer: run a program again, with each of its roundings perturbed at random.

This is Monte Carlo arithmetic (Parker 1997). It moves the result of every operator that rounds by up to a rounding of
the precision that it computes in. The answer's move shows the program's condition, for any kind of program. Perturbing
inputs alone would not do: rounding breaks properties that no other input breaks, such as the symmetry of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from torchwise._torch.dispatch import EagerMode, OpOverload
from torchwise._torch.pytree import tree_leaves, tree_map_only
from torchwise.workload import bounds

_EXACT = """
abs absolute alias amax amin aminmax angle arange argmax argmin argsort as assert bernoulli bucketize cat cauchy ceil
channel clamp clip clone complex conj constant contiguous copy copysign count cummax cummin detach diag diagonal
dropout embedding empty eq equal exponential eye fill flip floor fmax fmin frac frexp full gather ge geometric gt
hardtanh heaviside histc im2col imag index isin item kthvalue ldexp le leaky lift local lt masked max maximum median
min minimum mode multinomial nan nanmedian narrow ne neg new nextafter nonzero normal one ones permute pin pixel
poisson positive print put rand randint randn randperm real reflection relu repeat replication resize roll rot90 round
scalar scatter searchsorted select set sgn sign slice sort split squeeze stack take threshold topk tril triu trunc
unfold uniform unique unique2 unsafe view where zero zeros
"""
EXACT = frozenset(_EXACT.split())
"""First words of the names of operators that copy, choose, compare, draw or make numbers, and round nothing."""
PRODUCTS = ("mm", "mv", "dot", "conv", "attention", "linear", "lstm", "gru", "rnn")
"""Parts of the names of operators that add up products, which PyTorch may compute in a lower precision."""
SUMS = ("sum", "mean", "norm", "var", "std", "loss", "dist", "prod", "trace")
"""Parts of the names of operators that add up all of a tensor if they receive no dimensions."""
SUM_ROUNDINGS = 0.25
"""Error of a sum of n terms added one by one, in roundings, per square root of n."""
MAX_CHANGE = 0.5
"""Relative change of a number beyond which nothing would be learnt from it."""
SEED = 20_261_125
"""A seed apart from those that programs use: noise from the same numbers as the data would not be independent of it."""


class PerturbRounding(EagerMode):
    """Moves the result of every operator that rounds by up to `roundings` of its precision, at random.

    Operators that sum or solve are moved further, the longer their sums are, and so are their inputs. If terms cancel,
    a rounding is large relative to the rest. Small whole numbers stay: they are exact for the most part, and become
    indices.

    Args:
        roundings: in units of the spacing of numbers at 1. 0 runs a program as it is, but under this mode.
        seed: seed of the perturbation. The program's own random numbers stay the same.
    """

    def __init__(self, roundings: float, seed: int = 0) -> None:
        super().__init__()
        self._roundings = roundings
        self._seed = SEED + seed
        self._generators: dict[Any, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and move the tensors that it returns or writes."""
        kwargs = kwargs or {}
        if not self._roundings or not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if _is_exact(func):
            return _call_within_bounds(func, args, kwargs)
        arguments = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
        written = list(_find_written(func, arguments))
        length = 0
        if not _is_pointwise(func):
            length = _length(func, arguments)
            kept = {id(tensor) for tensor in written}

            def perturb_input(tensor: torch.Tensor) -> torch.Tensor:
                return tensor if id(tensor) in kept else self._perturb_tensor(tensor, func, length)

            args, kwargs = tree_map_only(torch.Tensor, perturb_input, (args, kwargs))
        result = _call_within_bounds(func, args, kwargs)
        for tensor in written:
            tensor.copy_(self._perturb_tensor(tensor, func, length))
        if any(returned.alias_info is not None for returned in func._schema.returns):
            return result
        return tree_map_only(torch.Tensor, lambda tensor: self._perturb_tensor(tensor, func, length), result)

    def _perturb_tensor(self, tensor: torch.Tensor, func: Any, length: int) -> torch.Tensor:
        if not _is_rounded(tensor):
            return tensor
        values = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        spacing, in_sums = _spacings(tensor, func)
        change = min(self._roundings * (spacing + in_sums * SUM_ROUNDINGS * math.sqrt(length)), MAX_CHANGE)
        wide = values.double()
        noise = torch.empty_like(wide).uniform_(-change, change, generator=self._generator(tensor.device))
        is_whole = (wide == wide.round()) & (wide.abs() < 0.5 / spacing)
        found = (wide + torch.where(is_whole, 0.0, wide * noise)).to(values.dtype)
        return torch.view_as_complex(found) if tensor.is_complex() else found

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def _call_within_bounds(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operator on moved values, such as a share of more than 1, which end the process on a GPU.

    Raises:
        OutOfBoundsError: the operator does not take them.
    """
    if bounds.ends_process():
        bounds.refuse_broken_bound(func, args, kwargs)
    return func(*args, **kwargs)


def _name(func: Any) -> str:
    """Return an operator's name without the marks of its variants."""
    name: str = func._schema.name.partition("::")[2]
    return name.strip("_")


def _is_exact(func: Any) -> bool:
    name = _name(func)
    return func.is_view or (name.partition("_")[0] in EXACT and "_add" not in name)


def _is_pointwise(func: Any) -> bool:
    name = _name(func)
    return torch.Tag.pointwise in func.tags or name.startswith(("foreach", "fused_a", "fused_s", "to_copy"))


def _is_rounded(tensor: torch.Tensor) -> bool:
    is_floating = tensor.is_floating_point() or tensor.is_complex()
    return is_floating and tensor.layout is torch.strided and tensor.element_size() > 1 and tensor.numel() > 0


def _find_written(func: Any, arguments: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operator writes to."""
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from (t for t in tree_leaves(arguments.get(argument.name)) if isinstance(t, torch.Tensor))


def _length(func: Any, arguments: dict[str, Any]) -> int:
    """Return about how many terms an operator adds up for each number that it returns."""
    tensors = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and _is_rounded(t) and t.dim()]
    if not tensors:
        return 1
    name, longest = _name(func), max(tensors, key=lambda tensor: tensor.numel())
    dims = arguments.get("dim")
    if isinstance(dims, int) or dims:
        over = [dims] if isinstance(dims, int) else dims
        return math.prod(longest.shape[d] for d in over)
    if "normalized_shape" in arguments:
        return math.prod(arguments["normalized_shape"])
    if "mm" in name and len(tensors) > 1:
        return tensors[-2].shape[-1]
    return longest.numel() if any(word in name for word in SUMS) else max(longest.shape)


def _spacings(tensor: torch.Tensor, func: Any) -> tuple[float, float]:
    """Return the spacing of numbers at 1 in which a result is computed, and of those in which its sums run."""
    spacing = torch.finfo(tensor.dtype).eps
    if tensor.dtype in (torch.float32, torch.complex64) and any(word in _name(func) for word in PRODUCTS):
        spacing = max(spacing, _product_spacing(tensor.device))
    return spacing, min(spacing, torch.finfo(torch.float32).eps)


def _product_spacing(device: torch.device) -> float:
    """Return the spacing at 1 of the numbers that float32 is rounded to before it is multiplied, as PyTorch is set."""
    try:
        found = {"high": 2.0**-10, "medium": 2.0**-7}.get(torch.get_float32_matmul_precision(), 0.0)
    except RuntimeError:  # it was set through the newer `fp32_precision`, which this reading refuses to mix with
        found = 2.0**-10
    is_tf32 = device.type == "cuda" and torch.backends.cudnn.allow_tf32
    return max(found, 2.0**-10 if is_tf32 else 0.0)
