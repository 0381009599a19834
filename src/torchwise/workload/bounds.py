"""Refuse values outside of an operator's bounds before it runs: on a GPU they end the whole process, not one call.

The CPU's operators raise an `IndexError`, and a program goes on. A CUDA kernel fails an assertion instead, after which
nothing more can be computed in the process ("device-side assert triggered"). A cache that is full is met in that way,
and so are made-up inputs that a model does not take.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from torchwise._torch.dispatch import EagerMode, OpOverload
from torchwise.workload.module_state import kept_state, preserve_generators
from torchwise.workload.workload import Example


class OutOfBoundsError(IndexError):
    """An operator was about to read or write outside of a tensor, or to draw from no distribution."""


class Bound(NamedTuple):
    """Values, of which each must be at least `low` and at most `high`."""

    values: torch.Tensor
    low: float
    high: float


Arguments = Mapping[str, Any]


def _along_dim(given: Arguments) -> Iterator[Bound]:
    yield Bound(given["index"], 0, _find_size(given) - 1)


def _along_dim_from_both_ends(given: Arguments) -> Iterator[Bound]:
    size = _find_size(given)
    yield Bound(given["index"], -size, size - 1)


def _find_size(given: Arguments) -> int:
    return int(given["self"].shape[given["dim"]]) if given["self"].dim() else 1


def _in_table(given: Arguments) -> Iterator[Bound]:
    yield Bound(given["indices"], 0, given["weight" if "weight" in given else "self"].shape[0] - 1)


def _in_bags(given: Arguments) -> Iterator[Bound]:
    """Yield the bounds of bags, each of which begins where the one before it ends."""
    yield from _in_table(given)
    yield Bound(given["offsets"], 0, given["indices"].numel())
    yield Bound(given["offsets"].diff(), 0, math.inf)


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
    yield Bound(target if (ignored := given.get("ignore_index")) is None else target[target != ignored], 0, classes - 1)


def _of_several_classes(given: Arguments) -> Iterator[Bound]:
    yield Bound(given["target"], -1, given["self"].shape[-1] - 1)


def _in_output(given: Arguments) -> Iterator[Bound]:
    yield Bound(given["indices"], 0, math.prod(given["output_size"]) - 1)


def _times(given: Arguments) -> Iterator[Bound]:
    """Yield the bounds of how often each element is repeated, and of the sum, if a caller says what it is."""
    repeats, size = given["repeats"], given.get("output_size")
    yield Bound(repeats, 0, math.inf)
    if size is not None:
        yield Bound(repeats.sum(), size, size)


def _share(*names: str) -> Callable[[Arguments], Iterator[Bound]]:
    def find(given: Arguments) -> Iterator[Bound]:
        yield from (Bound(given[name], 0.0, 1.0) for name in names)

    return find


def _rate(given: Arguments) -> Iterator[Bound]:
    yield Bound(given["self"], 0.0, math.inf)


def _weights(given: Arguments) -> Iterator[Bound]:
    yield Bound(given["self"], 0.0, torch.finfo(given["self"].dtype).max)
    yield Bound(given["self"].sum(-1) > 0, 1, 1)


def _as_many(given: Arguments) -> Iterator[Bound]:
    mask = given["mask"].expand(torch.broadcast_shapes(given["mask"].shape, given["self"].shape))
    yield Bound(mask.sum(), 0, given["source"].numel())


def _asserted(given: Arguments) -> Iterator[Bound]:
    yield Bound(given["self"] != 0, 1, 1)


BOUNDS: dict[str, Callable[[Arguments], Iterator[Bound]]] = {
    **dict.fromkeys(("index_select", "index_copy", "index_add", "index_reduce"), _along_dim),
    "index_fill": _along_dim_from_both_ends,
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), _along_dim),
    **dict.fromkeys(("embedding", "embedding_renorm"), _in_table),
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _in_bags),
    **dict.fromkeys(("index", "index_put", "_unsafe_index", "_unsafe_index_put", "_index_put_impl"), _at_places),
    **dict.fromkeys(("take", "put"), _in_all),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss"), _of_classes),
    "multilabel_margin_loss_forward": _of_several_classes,
    **dict.fromkeys(("max_unpool2d", "max_unpool3d"), _in_output),
    "repeat_interleave.Tensor": _times,
    **dict.fromkeys(("bernoulli.", "bernoulli.out"), _share("self")),
    "bernoulli.Tensor": _share("p"),
    "binary_cross_entropy": _share("self", "target"),
    "poisson": _rate,
    "multinomial": _weights,
    "masked_scatter": _as_many,
    **dict.fromkeys(("_assert_async", "_functional_assert_async"), _asserted),
}
"""What bounds an operator's values, by its name in `aten` without the underscore of its form in place.

Some kernels of a GPU check nothing, and read or write outside of their tensors. Those that are rare in models are not
here: attention over packed sequences, and alignments (CTC).
"""


class RefuseOutOfBounds(EagerMode):
    """Raises an `OutOfBoundsError` before an operator runs with values outside of its bounds. It waits for the GPU.

    Attributes:
        has_refused: whether it did. A model may catch the error, and go on as it does where the CPU raises it.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.has_refused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at the arguments of an operator, and run it."""
        kwargs = kwargs or {}
        if (within := self._decompose(func, args, kwargs)) is not NotImplemented:
            return within
        try:
            refuse_broken_bound(func, args, kwargs)
        except OutOfBoundsError:
            self.has_refused = True
            raise
        return func(*args, **kwargs)

    def _decompose(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the operators within a composite operator, which inference mode would pass on as a whole."""
        if not torch.is_inference_mode_enabled() or not isinstance(func, OpOverload):
            return NotImplemented
        with self:
            return func.decompose(*args, **kwargs)


def refuse_broken_bound(func: Any, args: Any, kwargs: Any) -> None:
    """Look at the values that an operator is about to be given.

    Raises:
        OutOfBoundsError: some are outside of its bounds.
    """
    if broken := _find_broken_bound(func, args, kwargs):
        raise OutOfBoundsError(f"{func} was given values outside of {broken.low:g} to {broken.high:g}")


def _find_broken_bound(func: Any, args: Any, kwargs: Any) -> Bound | None:
    if (schema := getattr(func, "_schema", None)) is None:  # such as `cond`, into which no mode looks
        return None
    space, _, name = schema.name.rstrip("_").partition("::")
    find = BOUNDS.get(name) or BOUNDS.get(f"{name}.{schema.overload_name}") if space == "aten" else None
    if find is None or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):
        return None
    given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    try:
        return next((bound for bound in find(given) if _is_broken(bound)), None)
    except Exception:  # fake tensors and those of other classes may have no values, or refuse to be compared
        return None


def _is_broken(bound: Bound) -> bool:
    values = bound.values if bound.values.is_floating_point() else bound.values.long()
    return not bool(((values >= bound.low) & (values <= bound.high)).all())


def ends_process() -> bool:
    """Whether values outside of bounds may end this process: it has used a GPU."""
    return bool(torch.cuda.is_initialized())


def refuse_out_of_bounds() -> AbstractContextManager[object]:
    """Return a context in which operators raise an error themselves on every device, as they do on the CPU."""
    return RefuseOutOfBounds() if ends_process() else nullcontext()


def takes_within_bounds(call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Make a call, and return whether it stayed within bounds. Where operators raise errors themselves, it did.

    Raises:
        Exception: the call raises it.
    """
    if not ends_process():
        call(*args, **kwargs)
        return True
    with RefuseOutOfBounds() as mode:
        try:
            call(*args, **kwargs)
        except Exception:  # a model may raise anything, also in answer to a refusal
            if not mode.has_refused:
                raise
    return not mode.has_refused


def count_calls_within_bounds(call: Callable[..., Any], example: Example, wanted: int) -> int:
    """Return how many of the wanted successive calls stay within bounds, without changing any state.

    Where operators raise an error themselves, those are all: the caller meets the error. They are all, too, if the
    calls raise anything else.
    """
    if not ends_process():
        return wanted
    device, copy = "cuda" if torch.cuda.is_initialized() else "cpu", example.clone()
    with preserve_generators(device), kept_state(call, copy.args, copy.kwargs), torch.no_grad():
        for number in range(wanted):
            try:
                if not takes_within_bounds(call, copy.args, copy.kwargs):
                    return number
            except Exception:  # a model may raise anything
                break
    return wanted
