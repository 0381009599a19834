"""Verify that a model answers each sample of a batch as if it were alone, by running it on both.

Batch normalisation in training mode, attention across the batch and a sum over it are such dependences. So is a buffer
that a call writes, as one call of a batch leaves other values than a call for each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchwise.errors import InputError, format_error
from torchwise.records import Outcome
from torchwise.verify.deviation import is_rounded, legible
from torchwise.verify.reference import as_reference_beside_others, float64_of, widen
from torchwise.verify.spot_check import differs
from torchwise.verify.stochastic import check_noise
from torchwise.workload import Example, pytree
from torchwise.workload.bounds import OutOfBoundsError, ends_process, takes_within_bounds
from torchwise.workload.module_state import preserve_generators
from torchwise.workload.samples import Call, split_answer, take_samples
from torchwise.workload.workload import batch_of, resize_example

Tensors = dict[str, torch.Tensor]
Many = Callable[[list[Call]], list[Any]]
"""Answers several calls of one form."""
SAMPLES = 4
"""Samples of the batch that is compared with its samples alone."""
RANDOM_SAMPLES = 8
"""Samples of a batch that are compared in distribution. As many others lie between them."""
FLOAT64_ERROR = 1e-6
"""Error in float64 that counts as rounding, as a model may compute parts in float32 for any input."""
SEED = 20_261_126
WAY_OUT = "have its calls one by one"


class NoisyError(InputError):
    """The answers differ from call to call, so that none can be compared."""


def verify_samples(
    model: Callable[..., Any], example: Example, *, alone: Callable[..., Any] | None = None, in_float64: bool = True
) -> None:
    """Verify that the answer to each sample of a batch does not depend on the other samples, or refuse the model.

    The batch is made of the example, with the values of each sample shuffled. So one sample is enough.

    Args:
        model: an `nn.Module` or a function. It runs without gradients, and its buffers are restored. Nothing else
            is, as other threads may use it.
        example: inputs of one sample or several, along the first dimension of each tensor.
        alone: answers one sample, or None for the model itself. Then nothing is compared in float64.
        in_float64: whether to compare in float64 if the model can run in it. Otherwise a small dependence may pass for
            rounding. It takes a copy of the model.

    Raises:
        NoisyError: the answers are random.
        InputError: the answers depend on each other, or have no batch, or nothing shows whether they do.
        UnsupportedError: the inputs have no batch.
    """
    batch_of(example, 0)
    buffers = dict(model.named_buffers()) if isinstance(model, torch.nn.Module) else {}
    kept = {name: pytree.copy_of(buffer) for name, buffer in buffers.items()}
    with torch.no_grad():
        try:
            batch = _make_batch(model, example)
            _refuse(_find_write(model, batch, buffers, kept), model)
            _refuse(_find_noise(model, batch), model, NoisyError)
            found = _compare_in_float64(model, batch) if in_float64 and alone is None else None
            _refuse(_compare(model, alone or model, batch) if found is None else found, model)
        finally:
            for name in _list_written(buffers, kept):
                buffers[name].copy_(kept[name])


def verify_random_samples(many: Many, alone: Callable[[Call], Any], call: Call, *, budget_s: float) -> None:
    """Verify that random samples of a batch are distributed as those of single calls, and as independent.

    Every other sample of a batch has other inputs. So neither other inputs nor equal noise pass unseen. The random
    numbers of the process are restored.

    Args:
        many: answers several calls in a batch.
        alone: answers one call.
        call: the call to compare.
        budget_s: seconds for all calls, of which there are some 120 at least.

    Raises:
        InputError: they differ.
    """
    other = pytree.map_tensors(lambda tensor: _scale(_shuffle(tensor)), call)

    def draw_samples() -> Iterator[Any]:
        while True:
            yield from many([call, other] * RANDOM_SAMPLES)[::2]

    samples = draw_samples()
    device = "cuda" if any(tensor.is_cuda for tensor in pytree.tensors(call)) else "cpu"
    with torch.no_grad(), preserve_generators(device):
        checks = check_noise(lambda: next(samples), lambda: alone(call), budget_s=budget_s, exact_precision=True)
    for check in checks:
        if check.outcome is not Outcome.PASS:
            raise InputError(f"random samples of a batch are not those of single calls: {check.detail}; {WAY_OUT}")


def _make_batch(model: Callable[..., Any], example: Example) -> Example:
    """Return a batch of unlike samples that the model accepts.

    Raises:
        InputError: the model accepts none, or the samples are alike.
    """
    plain, error = resize_example(example, 0, SAMPLES), None
    for draw in list_unlike_draws():
        try:
            batch = plain.map_tensors(draw)
            _refuse_beyond_bounds(model, batch)
            _call(model, batch)
        except Exception as raised:  # a model may refuse made-up values in any way
            error = raised
            continue
        if _are_unlike(batch):
            return batch
        error = None
    if error is not None:
        raise InputError(f"the model takes no batch of {SAMPLES} samples: {format_error(error)}; {WAY_OUT}") from error
    raise InputError(
        "all samples of the example are alike, so nothing shows whether one depends on the others: give an example "
        "of unlike samples"
    )


def list_unlike_draws() -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """List functions that make other samples of an input, along its first dimension.

    A model may check that probabilities sum to 1, or that whole numbers rise. So more and more values stay as they are.
    """
    return [
        lambda t: _lower(_scale(_shuffle(t))),
        lambda t: _scale(_shuffle(t)),
        _shuffle,
        lambda t: _shuffle(t) if is_rounded(t) else t,
        lambda t: t,
    ]


def _shuffle(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose values are shuffled in each sample."""
    if tensor.dim() < 2:
        return tensor
    rows = tensor.flatten(1)
    orders = torch.rand(rows.shape, generator=torch.Generator().manual_seed(SEED)).argsort(1).to(tensor.device)
    return rows.gather(1, orders).view(tensor.shape)


def _scale(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of fractions with each sample scaled down by a factor of its own."""
    if not is_rounded(tensor) or not tensor.dim():
        return tensor
    factors = torch.linspace(1.0, 0.5, len(tensor), device=tensor.device).to(tensor.dtype)
    return tensor * factors.view(-1, *[1] * (tensor.dim() - 1))


def _lower(tensor: torch.Tensor) -> torch.Tensor:
    """Return one whole number for each sample, such as lengths, with each lower than the one before, but above 0."""
    if tensor.dim() != 1 or is_rounded(tensor):
        return tensor
    places = torch.arange(len(tensor), device=tensor.device)
    if tensor.dtype is torch.bool:
        return tensor ^ (places % 2 > 0)
    return torch.where(tensor > 0, (tensor - places).clamp(min=1), tensor).to(tensor.dtype)


def _are_unlike(batch: Example) -> bool:
    return any(not torch.equal(t[:1].expand_as(t), t) for t in batch.tensors() if t.dim())


def _call(model: Callable[..., Any], example: Example) -> Any:
    given = example.clone()
    return model(*given.args, **given.kwargs)


def _refuse_beyond_bounds(model: Callable[..., Any], example: Example) -> None:
    """Try made-up inputs first where they might end the process, which is a program's. A look changes few answers."""
    given = example.clone()
    if ends_process() and not takes_within_bounds(model, given.args, given.kwargs):
        raise OutOfBoundsError("an operator was given values outside of its bounds")


def _list_written(buffers: Tensors, kept: Tensors) -> list[str]:
    return [name for name, buffer in buffers.items() if not pytree.equal(buffer, kept[name])]


def _find_write(model: Callable[..., Any], batch: Example, buffers: Tensors, kept: Tensors) -> str | None:
    """Return what a call writes to. Its effect on the next calls is another if samples share it."""
    given = batch.clone()
    model(*given.args, **given.kwargs)
    if written := _list_written(buffers, kept):
        return f"a call changes buffer {written[0]}"
    same = zip(given.tensors(), batch.tensors(), strict=True)
    return None if all(pytree.equal(*pair) for pair in same) else "a call changes its inputs"


def _find_noise(model: Callable[..., Any], batch: Example) -> str | None:
    first, again = (dict(pytree.list_named_leaves(_call(model, batch))) for _ in range(2))
    if first.keys() != again.keys() or any(differs(leaf, again[path], 0.0) for path, leaf in first.items()):
        return "its answers differ from call to call, so none can be compared"
    return None


def _compare_in_float64(model: Callable[..., Any], batch: Example) -> str | None:
    """Return the first difference in float64, "" if there is none, or None if the model cannot run in it."""
    try:
        with as_reference_beside_others():
            precise = float64_of(model)
            return _compare(precise, precise, widen(batch), precise=True)
    except Exception:  # a model may be unable to be copied, or to run in float64
        return None


def _compare(model: Callable[..., Any], alone: Callable[..., Any], batch: Example, *, precise: bool = False) -> str:
    """Return how the answer to a batch differs from those to its samples alone, or "".

    Raises:
        InputError: the answer to the batch cannot be split, or the model raises on a sample alone.
    """
    together = _call(model, batch)
    split_answer(together, [SAMPLES], SAMPLES)  # which raises
    answers = [dict(pytree.list_named_leaves(_answer_alone(alone, batch, place))) for place in range(SAMPLES)]
    for path, leaf in pytree.list_named_leaves(together):
        if found := _differs_from_parts(leaf, [answer.get(path) for answer in answers], precise=precise):
            name = f"output {path}" if path else "the output"
            return f"in a batch of {SAMPLES} {name} {found}, compared with that to each sample alone"
    return ""


def _differs_from_parts(leaf: Any, parts: list[Any], *, precise: bool) -> str | None:
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if not isinstance(leaf, torch.Tensor) or len(tensors) < len(parts):
        return None if all(part is leaf for part in parts) else "is of another type"
    if len({part.shape[1:] for part in tensors}) > 1:
        return "has another shape"
    joined = torch.cat(tensors)
    if is_rounded(leaf) and leaf.shape == joined.shape:
        finite = legible(leaf).isfinite()
        if leaf.numel() and not bool(finite.any()):
            return "is finite nowhere, so it cannot be compared"
        if not torch.equal(finite, legible(joined).isfinite()):
            return "is finite in other elements"
    is_exact = not is_rounded(leaf) and leaf.numel() and leaf.shape == joined.shape
    if is_exact and bool((leaf != joined).reshape(len(leaf), -1).all(1).any()):
        return "differs in all elements of a sample"
    if precise and not is_rounded(leaf):
        return None if pytree.equal(leaf, joined) else "differs"
    return differs(leaf, joined, FLOAT64_ERROR if precise else 0.0)


def _answer_alone(model: Callable[..., Any], batch: Example, place: int) -> Any:
    args, kwargs = take_samples((batch.args, dict(batch.kwargs)), slice(place, place + 1))
    try:
        _refuse_beyond_bounds(model, Example(args, kwargs))
        return _call(model, Example(args, kwargs))
    except Exception as error:  # a model may raise anything on one sample
        raise InputError(f"the model takes no sample alone: {format_error(error)}; {WAY_OUT}") from error


def _refuse(found: str | None, model: Callable[..., Any], error: type[InputError] = InputError) -> None:
    if found:
        way_out = "call model.eval() first" if getattr(model, "training", False) else WAY_OUT
        raise error(f"samples must not depend on each other, but {found}: {way_out}")
