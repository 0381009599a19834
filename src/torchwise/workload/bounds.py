"""Refuse values outside of an operator's bounds before it runs: on a GPU they end the whole process, not one call.

The CPU's operators raise an `IndexError`, and a program goes on. A CUDA kernel fails an assertion instead, after which
nothing more can be computed in the process ("device-side assert triggered"). A cache that is full is met in that way,
and so are made-up inputs that a model does not take.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from torchwise._torch.dispatch import TorchDispatchMode
from torchwise.workload.module_state import kept_state, preserve_generators


class OutOfBoundsError(IndexError):
    """An operator was about to read or write outside of a tensor, or to draw from no distribution."""


class Bound(NamedTuple):
    """Values, of which each must be at least `low` and at most `high`."""

    values: torch.Tensor
    low: float
    high: float


Arguments = Mapping[str, Any]


def _along_dim(given: Arguments) -> Iterator[Bound]:
    size = given["self"].shape[given["dim"]] if given["self"].dim() else 1
    yield Bound(given["index"], 0, size - 1)


def _in_table(given: Arguments) -> Iterator[Bound]:
    yield Bound(given["indices"], 0, given["weight"].shape[0] - 1)


def _in_all(given: Arguments) -> Iterator[Bound]:
    count = given["self"].numel()
    yield Bound(given["index"], -count, count - 1)


def _at_places(given: Arguments) -> Iterator[Bound]:
    """Yield the bound of each index of `x[i, :, j]`. A mask covers as many dimensions as it has itself."""
    dim = 0
    for index in given["indices"]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            dim += index.dim()
            continue
        if index is not None:
            size = given["self"].shape[dim]
            yield Bound(index, -size, size - 1)
        dim += 1


def _of_classes(given: Arguments) -> Iterator[Bound]:
    target, scores = given["target"], given["self"]
    classes = scores.shape[1 if scores.dim() > 1 else 0]
    yield Bound(target[target != given.get("ignore_index", -100)], 0, classes - 1)


def _share(name: str) -> Callable[[Arguments], Iterator[Bound]]:
    def find(given: Arguments) -> Iterator[Bound]:
        yield Bound(given[name], 0.0, 1.0)

    return find


def _weights(given: Arguments) -> Iterator[Bound]:
    yield Bound(given["self"], 0.0, torch.finfo(given["self"].dtype).max)
    yield Bound(given["self"].sum(-1), torch.finfo(given["self"].dtype).tiny, float("inf"))


def _asserted(given: Arguments) -> Iterator[Bound]:
    yield Bound(given["self"] != 0, 1, 1)


BOUNDS: dict[str, Callable[[Arguments], Iterator[Bound]]] = {
    **dict.fromkeys(("index_select", "index_copy", "index_add", "index_fill", "index_reduce"), _along_dim),
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _along_dim),
    **dict.fromkeys(("embedding", "_embedding_bag", "_embedding_bag_forward_only"), _in_table),
    **dict.fromkeys(("index", "index_put", "_unsafe_index", "_unsafe_index_put", "_index_put_impl"), _at_places),
    **dict.fromkeys(("take", "put"), _in_all),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _of_classes),
    "bernoulli.": _share("self"),
    "bernoulli.Tensor": _share("p"),
    "binary_cross_entropy": _share("self"),
    "multinomial": _weights,
    "_assert_async": _asserted,
}
"""What bounds an operator's values, by its name without the underscore of its form in place."""


class RefuseOutOfBounds(TorchDispatchMode):
    """Raises an `OutOfBoundsError` before an operator runs with values outside of its bounds. It waits for the GPU."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments of an operator, and run it."""
        kwargs = kwargs or {}
        schema = func._schema
        name = schema.name.partition("::")[2].rstrip("_")
        find = BOUNDS.get(name) or BOUNDS.get(f"{name}.{schema.overload_name}")
        if find is not None:
            given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
            for values, low, high in find(given):
                if not bool(((values >= low) & (values <= high)).all()):
                    raise OutOfBoundsError(f"{schema.name} was given values outside of {low:g} to {high:g}")
        return func(*args, **kwargs)


def ends_process() -> bool:
    """Whether values outside of bounds may end this process: it has used a GPU."""
    return bool(torch.cuda.is_initialized())


def refuse_out_of_bounds() -> AbstractContextManager[Any]:
    """Return a context that refuses values outside of bounds, if they would end this process."""
    return RefuseOutOfBounds() if ends_process() else nullcontext()


def count_calls_within_bounds(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: int
) -> int:
    """Return how many of the wanted successive calls stay within bounds, without changing any state.

    Where operators raise an error themselves, those are all: the caller meets the error. They are all, too, if the
    calls raise anything else.
    """
    if not ends_process():
        return wanted
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with preserve_generators(device), kept_state(call, args, kwargs), RefuseOutOfBounds(), torch.no_grad():
        for number in range(wanted):
            try:
                call(*args, **kwargs)
            except OutOfBoundsError:
                return number
            except Exception:  # a model may raise anything
                return wanted
    return wanted
