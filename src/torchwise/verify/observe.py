"""Run a call under a seed and keep everything it did: outputs, written inputs, buffers, other state, aliases.

The inputs to observe it on are the examples themselves, and further draws of the same kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.verify.leaves import leaves_of
from torchwise.workload import layouts, pytree
from torchwise.workload.bounds import takes_within_bounds
from torchwise.workload.layouts import is_strided
from torchwise.workload.module_state import State, kept_state, preserve_generators
from torchwise.workload.step_state import loss_of
from torchwise.workload.workload import Example, Workload

Aliases = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Observation:
    """The observed effects of one call.

    Attributes:
        leaves: every output with its path, every input after the call, every buffer after the call, all other state
            that the call changed, and in training every gradient. Tensors are copies. Arrays appear as tensors, and
            objects as their contents.
        aliases: pairs (output, input) of positions that share memory.
        shared: pairs of positions of outputs that share memory.
        form: the containers around the outputs, empty ones included, and which of them are arrays or objects.
        calls: number of successive calls made.
        outputs: the names of the leaves that are outputs.
    """

    leaves: tuple[tuple[str, Any], ...]
    aliases: Aliases
    shared: Aliases = frozenset()
    form: tuple[str, ...] = ()
    calls: int = 1
    outputs: frozenset[str] = frozenset()


def observe(
    call: Callable[..., Any],
    original: Callable[..., Any],
    example: Example,
    *,
    seed: int,
    training: bool = False,
    under: AbstractContextManager[Any] | None = None,
    calls: int = 1,
    may_end: bool = False,
    restores: bool = True,
    loss: Callable[[Any], torch.Tensor | None] = loss_of,
    kept: list[Any] | None = None,
) -> Observation:
    """Run `call` on a copy of `example` from `seed`, then restore the model's state.

    Args:
        call: the callable to run.
        original: the model, whose state the call changes, and whose gradients it gives.
        example: the inputs.
        seed: seed of all of PyTorch's generators.
        training: whether to run a backward pass too, from the loss.
        under: a context for the calls themselves.
        calls: successive calls to make, each of which goes on from the state that the one before it left.
        may_end: whether the second and later ones may fail, for example when a cache is full, which ends them.
        restores: whether to restore the state. A cache that a candidate keeps shows only if it is left as it is.
        loss: makes a loss of the outputs, or None if none depends on a parameter.
        kept: gets the very outputs and gradients of each call.
    """
    example = example.clone()
    inputs = (example.args, dict(example.kwargs))
    module = original if isinstance(original, torch.nn.Module) else None
    observations: list[Observation] = []
    kept_by = kept_state(original, *inputs) if restores else nullcontext(State.from_call(original, *inputs))
    with kept_by as state, under or nullcontext():
        _seed_generators(seed)
        for number in range(calls):
            try:
                with torch.enable_grad() if training else torch.no_grad():
                    outputs = call(*example.args, **example.kwargs)
                    gradients = _gradients(loss(outputs), module, inputs) if training else []
            except Exception:  # a model may raise anything
                if number == 0 or not may_end:
                    raise
                break
            if kept is not None:
                kept.append((outputs, [gradient for _, gradient in gradients]))
            after = [*_buffers(module), *state_leaves(state, original, inputs, outputs)]
            observations.append(observation_of(outputs, inputs, [*after, *gradients]))
    return _merge_observations(observations)


def _seed_generators(seed: int) -> None:
    """Seed all of PyTorch's generators, without a note of it for devices that this build cannot have."""
    if torch.backends.cuda.is_built():
        torch.manual_seed(seed)
    else:  # a third of the time of an observation, as the note of each has a traceback
        torch.default_generator.manual_seed(seed)


def _merge_observations(observations: list[Observation]) -> Observation:
    """Return one observation of several successive calls."""
    if len(observations) == 1:
        return observations[0]
    leaves = [
        (_name_in_call(name, number), leaf) for number, one in enumerate(observations, 1) for name, leaf in one.leaves
    ]
    outputs = frozenset(
        _name_in_call(name, number) for number, one in enumerate(observations, 1) for name in one.outputs
    )
    form = tuple(
        kind if number == 1 else f"{kind} in call {number}"
        for number, one in enumerate(observations, 1)
        for kind in one.form
    )
    return Observation(tuple(leaves), observations[0].aliases, observations[0].shared, form, len(observations), outputs)


def _name_in_call(name: str, number: int) -> str:
    return name if number == 1 else f"{name} of call {number}"


def state_leaves(state: State, original: Any, inputs: Any, outputs: Any) -> list[tuple[str, Any]]:
    """Return the state that a call changed besides buffers and input tensors, and the outputs in its memory.

    `state` is that before the call of the model `original` on `inputs`, which are `(args, kwargs)`.
    """
    module = original if isinstance(original, torch.nn.Module) else None
    shown = {name for name, _ in module.named_buffers()} if module is not None else set()
    shown |= {f"input {path}" for path, leaf in pytree.list_named_leaves(inputs) if _is_tensor(leaf)}
    found = {path: leaf for path, leaf in state.changes().items() if path not in shown}
    lies = {place: path for path, leaf in found.items() if _is_tensor(leaf) and (place := _storage(leaf))}
    memory = [(n, lies[_storage(t)]) for n, t in enumerate(pytree.tensors(outputs)) if _storage(t) in lies]
    in_state = [(f"output {number} in the memory of state {path}", True) for number, path in memory]
    named = (leaves_of(leaf, f"state {path} after the call", objects=False).named for path, leaf in found.items())
    return [*itertools.chain.from_iterable(named), *in_state]


def observation_of(outputs: Any, inputs: Any, more: Sequence[tuple[str, Any]] = ()) -> Observation:
    """Copy the outputs of a call, its inputs as they are after it, and more leaves by name."""
    returned, after = leaves_of(outputs, "output"), leaves_of(inputs, "input after the call ", objects=False)
    added = [leaves_of(leaf, name, objects=False) for name, leaf in more]
    leaves = [*returned.named, *after.named, *(pair for found in added for pair in found.named)]
    copied = tuple((name, leaf.detach().clone() if _is_tensor(leaf) else leaf) for name, leaf in leaves)
    input_parts = [part for tensor in pytree.tensors(inputs) for _, part in layouts.list_strided_parts(tensor)]
    form = [*returned.form, *(kind for found in (after, *added) for kind in found.form[1:])]
    return Observation(
        copied,
        _aliases(returned.tensors, input_parts),
        _find_shared_pairs(returned.tensors),
        tuple(form),
        outputs=frozenset(name for name, _ in returned.named),
    )


def _gradients(loss: torch.Tensor | None, module: torch.nn.Module | None, inputs: Any) -> list[tuple[str, Any]]:
    """Return the gradient of every parameter and input that requires one, for a loss."""
    differentiated: list[tuple[str, torch.Tensor]] = []
    named = module.named_parameters() if module is not None else ()
    differentiated += [(f"gradient of {name_of_weight(n)}", p) for n, p in named]
    differentiated += [(f"gradient of input {i}", t) for i, t in enumerate(pytree.tensors(inputs))]
    differentiated = [(name, t) for name, t in differentiated if t.requires_grad]
    if loss is None:
        return []
    found = torch.autograd.grad(loss, [t for _, t in differentiated], allow_unused=True)
    return [
        (name, _with_grad_strides(gradient, tensor))
        for (name, tensor), gradient in zip(differentiated, found, strict=True)
    ]


def _with_grad_strides(gradient: Any, tensor: torch.Tensor) -> Any:
    """Return a gradient in the strides of `.grad`, which autograd uses there even if it computed in others."""
    if gradient is None or gradient.layout is not torch.strided or gradient.stride() == tensor.stride():
        return gradient
    return torch.empty_like(tensor, dtype=gradient.dtype).copy_(gradient)


def _buffers(module: torch.nn.Module | None) -> list[tuple[str, Any]]:
    if module is None:
        return []
    return [(f"buffer {name_of_weight(n)} after the call", b.detach().clone()) for n, b in module.named_buffers()]


def name_of_weight(name: str) -> str:
    """Return the name of a weight or buffer in the plain model: `torch.compile` puts a model into a wrapper."""
    return name.replace("_orig_mod.", "")


def _aliases(outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> Aliases:
    addresses = [_storage(t) for t in inputs]
    return frozenset((i, addresses.index(a)) for i, t in enumerate(outputs) if (a := _storage(t)) and a in addresses)


def _find_shared_pairs(outputs: list[torch.Tensor]) -> Aliases:
    places: dict[int, list[int]] = {}
    for position, tensor in enumerate(outputs):
        if place := _storage(tensor):
            places.setdefault(place, []).append(position)
    return frozenset(pair for found in places.values() for pair in itertools.combinations(found, 2))


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse and other tensors without one storage
        return 0


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def draws(workload: Workload, count: int) -> list[Example]:
    """Return every example, then `count` further draws of each, as far as the model accepts them.

    A workload that can reseed draws its own. Otherwise the values of each floating tensor are shuffled, which keeps
    their distribution and range. Whole numbers and booleans stay, as they may be indices, lengths or masks. So do
    tensors that are not strided, and those whose elements share memory, unless they are merely expanded.
    """
    return [*workload.examples, *further(workload, range(1, count + 1))]


def further(workload: Workload, seeds: Iterable[int]) -> Iterator[Example]:
    """Yield a draw of each example for each seed, without shuffled ones that the plain model refuses.

    A model may check its inputs: that probabilities sum to 1, or that times rise.
    """
    if workload.reseed is not None:
        yield from (example for seed in seeds for example in workload.reseed(1000 + seed))
        return
    takes = make_trial(workload)
    yield from (drawn for seed in seeds for e in workload.examples if takes(drawn := _shuffle_example(e, seed)))


def make_trial(workload: Workload) -> Callable[[Example], bool]:
    """Return a function that tells whether the model accepts an example, without changing any state."""
    step = workload.step.copy() if workload.step else None
    put_back = step.snapshot() if step else lambda: None
    call = step or workload.call

    def takes(example: Example) -> bool:
        copy = example.clone()
        device = "cuda" if any(tensor.is_cuda for tensor in copy.tensors()) else "cpu"
        kept = kept_state(None if step else call, copy.args, copy.kwargs)
        try:
            with preserve_generators(device), kept, torch.set_grad_enabled(step is not None):
                return takes_within_bounds(call, copy.args, copy.kwargs)
        except Exception:  # the user's model may refuse made-up values in any way
            return False
        finally:
            put_back()

    return takes


def _shuffle_example(example: Example, seed: int) -> Example:
    """Return a copy with shuffled values, in which tensors share the same memory as in the example."""
    drawn = example.clone()
    for tensor in {id(tensor): tensor for tensor in drawn.tensors()}.values():
        _shuffle(tensor.detach(), seed)
    return drawn


def _shuffle(tensor: torch.Tensor, seed: int) -> None:
    if not (tensor.is_floating_point() or tensor.is_complex()) or not is_strided(tensor):
        return
    base = pytree.base_of(tensor)
    if base.numel() < 2 or overlaps(base):
        return
    if base.element_size() == 1:  # float8: shuffled as the bytes that they are
        base = base.view(torch.uint8)
    order = torch.randperm(base.numel(), generator=torch.Generator().manual_seed(seed)).to(base.device)
    base.copy_(base.flatten()[order].view(base.shape))


def overlaps(tensor: torch.Tensor) -> bool:
    """Say whether some elements must share memory, as in the windows that `Tensor.unfold` gives."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.numel() > span
