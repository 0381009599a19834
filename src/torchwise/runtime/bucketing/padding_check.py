"""Verify that padding changes no output, by running the model itself on unpadded and padded inputs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchwise.compile.signature import is_plain, plain_key
from torchwise.errors import BaselineError, InputError, InternalError, format_error, is_count
from torchwise.keywords import checked_keywords
from torchwise.records.shown import Shown
from torchwise.runtime.bucketing.padding import Carrier, Padder, Padding, tensors_by_path
from torchwise.verify import is_stochastic, mismatch
from torchwise.verify.observe import Observation, draws, observe
from torchwise.verify.reference import as_reference_beside_others, float64_of, widen
from torchwise.workload import Example, Workload
from torchwise.workload.bounds import refuse_out_of_bounds
from torchwise.workload.module_state import kept_state, preserve_generators
from torchwise.workload.workload import as_args, as_kwargs

logger = logging.getLogger("torchwise")

DRAWS = 2
"""Number of generated inputs besides the example, used in turn."""
PLAIN_ERROR = 1e-4
"""Relative error of a Python float that counts as rounding, as the float was most likely computed in float32."""
FLOAT64_ERROR = 1e-6
"""Error in float64 that counts as rounding, as a model may compute parts in float32 for any input."""


@dataclass(frozen=True, slots=True)
class VerifiedPadding(Shown):
    """A verified rule, which changes no output.

    Attributes:
        padding: the rule, with its outputs.
        buckets: the sizes to pad to, ascending.
        example: inputs from which others are made.
        cases: number of compared pairs of answers.
        in_float64: whether some pairs were in float64, in which rounding hides nothing.
    """

    padding: Padding
    buckets: tuple[int, ...]
    example: Example
    cases: int
    in_float64: bool

    def __repr__(self) -> str:
        sizes = ", ".join(map(str, self.buckets))
        return f"<VerifiedPadding to {sizes}: {self.cases} pairs of answers agree>"


@checked_keywords()
def verify_padding(
    model: Callable[..., Any],
    args: Any,
    kwargs: dict[str, Any] | None = None,
    *,
    padding: Padding,
    buckets: Sequence[int],
) -> VerifiedPadding:
    """Verify that padding to `buckets` changes outputs of `model` by no more than rounding, or refuse the rule.

    For each bucket, the model runs on inputs of the smallest, a middle and the largest size, unpadded and padded.
    Outputs, inputs after the call and buffers must agree in form and value. If the model can run in float64, the
    smallest size is compared in float64, too. Small contributions of padded places could pass for rounding in float32.

    The verification holds for the model's current weights and mode, and for values in the example's range. It warns of
    an input whose values are all above its fill value. A maximum over such an input would pass, and be wrong for lower
    values.

    Args:
        model: an `nn.Module` or a function. It runs without gradients, and its state is restored.
        args: example arguments of the largest size to expect, from which shorter and longer ones are made.
        kwargs: example keyword arguments.
        padding: the rule.
        buckets: sizes to pad to.

    Raises:
        InputError: padding changes an answer, the rule does not fit the model or the example, or a bucket is no size.
        BaselineError: the model raises on inputs of one of the sizes.
        InternalError: Torchwise fails on them, and the model does not.
    """
    buckets = _check_buckets(buckets, padding)
    example = Example(as_args(args), as_kwargs(kwargs or {}))
    if not Padder(model, padding).size_of(example.args, example.kwargs):
        raise InputError("the size of the example is 0, but must be at least 1: other sizes are made from it")
    _warn_of_one_side(model, padding, example)
    device = "cuda" if any(tensor.is_cuda for tensor in example.tensors()) else "cpu"
    with preserve_generators(device), refuse_out_of_bounds():  # a program goes on after a refusal
        return _verify_sizes(model, padding, buckets, example)


def _verify_sizes(
    model: Callable[..., Any], padding: Padding, buckets: tuple[int, ...], example: Example
) -> VerifiedPadding:
    cases = [(size, bucket) for low, bucket in _ranges(buckets, padding.least) for size in _pick_sizes(low, bucket)]
    if not cases:
        return VerifiedPadding(padding, buckets, example, 0, False)
    padding = with_outputs(model, padding, example, (buckets[-1] - 1, buckets[-1]))
    padder, drawn = Padder(model, padding), draws(Workload(model, (example,)), DRAWS)
    most = cases[-1][0]
    answer_at(model, padder.resize(example, most), most)  # which raises if the model fails
    _refuse_noise(model, padder.resize(example, most))
    for number, (size, bucket) in enumerate(cases):
        given = padder.resize(drawn[number % len(drawn)], size)
        _refuse(_difference(model, padder, given, bucket, seed=number), model, padding, size, bucket)
    sharp = _verify_in_float64(model, padder, buckets, example)
    return VerifiedPadding(padding, buckets, example, len(cases) + sharp, sharp > 0)


def _verify_in_float64(model: Callable[..., Any], padder: Padder, buckets: tuple[int, ...], example: Example) -> int:
    """Compare in float64 at the sizes with most padding, and return the number of comparisons."""
    done = 0
    try:
        precise = float64_of(model)
    except Exception:  # a module may not allow copies: the rest of the verification still holds
        return done
    for low, bucket in _ranges(buckets, padder.padding.least):
        if low >= bucket:
            continue
        try:
            found = _difference(precise, padder, widen(padder.resize(example, low)), bucket, seed=0, precise=True)
        except Exception:  # a model may be unable to run in float64: likewise
            continue
        done += 1
        _refuse(found and f"{found}, in float64", model, padder.padding, low, bucket)
    return done


def _difference(
    model: Callable[..., Any], padder: Padder, given: Example, bucket: int, *, seed: int, precise: bool = False
) -> str | None:
    """Return the difference between the answers to unpadded and padded inputs, or None."""
    size = padder.size_of(given.args, given.kwargs)

    def call_padded(*args: Any, **kwargs: Any) -> Any:
        more, named = padder.pad(args, kwargs, bucket - size)
        return padder.cut(model(*more, **named), size, bucket)

    try:
        theirs = observe(model, model, given, seed=seed, under=as_reference_beside_others() if precise else None)
    except Exception as error:  # the model may raise any error
        answer_at(model, given, size)  # raises if the model fails without padding
        raise InternalError(
            f"Torchwise failed, and not the model, on inputs of size {size}: {format_error(error)}"
        ) from error
    try:
        ours = observe(call_padded, model, given, seed=seed, under=as_reference_beside_others() if precise else None)
    except Exception as error:  # the model may raise any error on padded inputs
        if precise:
            raise
        return f"it raises {type(error).__name__}: {error}"
    return mismatch(ours, theirs, FLOAT64_ERROR if precise else 0.0) or _plainly_differs(ours, theirs)


def _plainly_differs(ours: Observation, theirs: Observation) -> str | None:
    """Compare values that are no tensors: a spot check skips them, but a number may be the size of the padded input."""
    for (name, mine), (_, plain) in zip(ours.leaves, theirs.leaves, strict=True):
        if isinstance(mine, torch.Tensor) or name not in ours.outputs:
            continue
        if not is_plain(mine):
            return f"{name} is of type {type(mine).__name__}, which cannot be searched for outputs to cut back"
        close = isinstance(mine, float) and isinstance(plain, float) and math.isclose(mine, plain, rel_tol=PLAIN_ERROR)
        if plain_key(mine) != plain_key(plain) and not close:
            return f"{name} is {mine!r}, without padding {plain!r}"
    return None


def _refuse_noise(model: Callable[..., Any], example: Example) -> None:
    @torch.no_grad()
    def call() -> Any:
        given = example.clone()
        return model(*given.args, **given.kwargs)

    if is_stochastic(call, model)[0]:
        raise InputError(
            "the model's answers differ from call to call, so that none can be compared with the answer to padded "
            "inputs: if it has dropout, call model.eval() first"
        )


def _warn_of_one_side(model: Callable[..., Any], padding: Padding, example: Example) -> None:
    """Warn if an input's values all lie on one side of its fill value, except for masks and chosen fill values."""
    for carrier in list_one_sided(model, padding, example):
        logger.warning(
            "torchwise: all values of %s lie on one side of %g, with which it is padded: the verification holds "
            "for such alone; give an example with values of both signs if others may come, or the fill itself",
            carrier,
            carrier.fill,
        )


def list_one_sided(model: Callable[..., Any], padding: Padding, example: Example) -> list[Carrier]:
    """List the inputs whose values all lie on one side of their fill value, without masks and chosen fill values."""
    found = []
    for carrier, given in Padder(model, padding).find_inputs(example):
        chosen = {carrier.position, carrier.name} & set(padding.fill)
        if chosen or not given.is_floating_point() or not given.numel():
            continue
        low, high = (bound.item() for bound in given.detach().float().aminmax())
        if low != high and (low > carrier.fill or high < carrier.fill):
            found.append(carrier)
    return found


def _refuse(found: str | None, model: Callable[..., Any], padding: Padding, size: int, bucket: int) -> None:
    if not found:
        return
    training = getattr(model, "training", False)
    way = "call model.eval() first" if training else "give every input that marks the padding, such as a mask"
    raise InputError(f"padding {[*padding.inputs]} from {size} to {bucket} changes the answer: {found}; {way}")


def _check_buckets(buckets: Sequence[int], padding: Padding) -> tuple[int, ...]:
    found = tuple(sorted(set(buckets)))
    if not found:
        raise InputError("buckets is empty, but there must be at least one size to pad to")
    for bucket in found:
        if not is_count(bucket):
            raise InputError(f"a bucket is {bucket!r}, but must be a whole number of at least 1")
    if padding.most is not None and found[-1] > padding.most:
        raise InputError(f"a bucket is {found[-1]}, but the rule pads to at most {padding.most}")
    return found


def _ranges(buckets: tuple[int, ...], least: int) -> list[tuple[int, int]]:
    """Return each bucket with the smallest size that is padded to it."""
    return [(max(before + 1, least), bucket) for before, bucket in zip((0, *buckets), buckets, strict=False)]


def _pick_sizes(low: int, bucket: int) -> list[int]:
    return sorted({size for size in (low, (low + bucket) // 2, bucket - 1) if low <= size < bucket})


Proof = VerifiedPadding  # as pickles of earlier versions name it


Shapes = dict[str, tuple[int, ...]]


def with_outputs(model: Callable[..., Any], padding: Padding, example: Example, sizes: tuple[int, int]) -> Padding:
    """Return the rule with its outputs filled in: every output dimension that equals the size.

    The model runs at two sizes without gradients, and its buffers are restored. A rule that names its outputs stays.

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
            message = f"the model raised {type(error).__name__} on inputs of size {size}: {error}"
            raise BaselineError(f"{message}; leave out such sizes by least and most of the rule") from error


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
