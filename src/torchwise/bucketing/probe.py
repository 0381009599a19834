"""Find the outputs that carry the size, by running the model at two sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from torchwise.bucketing.padder import Padder, tensors_by_path
from torchwise.bucketing.padding import Padding
from torchwise.errors import BaselineError, InputError
from torchwise.workload import Example
from torchwise.workload.module_state import kept_state

Shapes = dict[str, tuple[int, ...]]


def with_outputs(model: Callable[..., Any], padding: Padding, example: Example, sizes: tuple[int, int]) -> Padding:
    """Return the rule with its outputs filled in: every output dimension that equals the size.

    Args:
        model: the model, which runs twice without gradients. Its buffers are restored.
        padding: the rule. It is returned unchanged if it names its outputs.
        example: inputs, to be resized to each of the sizes.
        sizes: two different sizes.

    Raises:
        BaselineError: the model raises at one of the sizes.
        InputError: an output's growth differs from the size's, or the number of outputs differs between the sizes.
    """
    if padding.outputs is not None:
        return padding
    padder = Padder(model, padding)
    short, long = (_shapes(model, padder.resize(example, size), size) for size in sizes)
    if list(short) != list(long):
        odd = min(set(short) ^ set(long), default="an order of its own")
        raise InputError(
            f"the answer has {odd or 'a lone tensor'} at only one of the sizes {sizes[0]} and {sizes[1]}: padding "
            "needs the same outputs at every size"
        )
    found = {path: _find_size_dims(path, short[path], long[path], sizes) for path in short}
    return replace(padding, outputs={path: dims for path, dims in found.items() if dims})


def make_size_error(size: int, error: Exception) -> BaselineError:
    """Return the error to raise if the model itself fails at a size."""
    message = f"the model raised {type(error).__name__} on inputs of size {size}: {error}"
    return BaselineError(f"{message}; leave out such sizes by least and most of the rule")


def answer_at(model: Callable[..., Any], example: Example, size: int) -> Any:
    """Run the original model once on inputs of a size, and restore its state.

    Raises:
        BaselineError: the model raises.
    """
    given = example.clone()
    with torch.no_grad(), kept_state(model, given.args, given.kwargs):
        try:
            return model(*given.args, **given.kwargs)
        except Exception as error:  # a model may raise any error, and the size may be beyond its limit: name it
            raise make_size_error(size, error) from error


def _shapes(model: Callable[..., Any], example: Example, size: int) -> Shapes:
    answer = answer_at(model, example, size)
    return {path: tuple(tensor.shape) for path, tensor in tensors_by_path(answer)}


def _find_size_dims(
    path: str, short: tuple[int, ...], long: tuple[int, ...], sizes: tuple[int, int]
) -> tuple[int, ...]:
    if len(short) == len(long):
        dims = tuple(dim for dim, pair in enumerate(zip(short, long, strict=True)) if pair[0] != pair[1])
        if all((short[dim], long[dim]) == sizes for dim in dims):
            return dims
    raise InputError(
        f"output{path} has shape {short} at size {sizes[0]} and {long} at size {sizes[1]}: only a dimension that is as "
        "long as the size can be cut back; return it with the size as a dimension of its own"
    )
