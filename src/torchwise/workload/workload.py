"""A loaded workload: the callable and the inputs it is tuned for, also at other batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from torchwise._torch.dynamo import DIM_MARKS
from torchwise.errors import UnsupportedError, WorkloadError
from torchwise.keywords import checked_keywords
from torchwise.plan.workload_spec import BatchDim, Roofline
from torchwise.workload import pytree
from torchwise.workload.deep_copy import deep_copy
from torchwise.workload.layouts import overlap_of
from torchwise.workload.module_state import State

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from torchwise.workload.train_step import TrainStep


@checked_keywords()
@dataclass(frozen=True, slots=True)
class Example:
    """One set of inputs, and how often it occurs relative to the others.

    Attributes:
        args: positional arguments. Tensors may be in nested tuples, lists, dicts, named tuples, dataclasses.
        kwargs: keyword arguments, with the same containers.
        weight: relative frequency of this shape in the mix, above 0.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise WorkloadError(f"weight is {self.weight!r}, but must be above 0")

    def leaves(self) -> list[Any]:
        """List everything in it that is no container, in order."""
        return [leaf for _, leaf in pytree.list_named_leaves((self.args, dict(self.kwargs)))]

    def tensors(self) -> list[torch.Tensor]:
        """List every tensor in it, in order, once for each place."""
        return pytree.tensors((self.args, dict(self.kwargs)))

    def map_tensors(
        self, function: Callable[[torch.Tensor], Any], arrays: Callable[[NDArray[Any]], Any] | None = None
    ) -> Example:
        """Return this example with `function` applied to each of its tensors, and `arrays` to each array of NumPy.

        A tensor in several places stays one tensor.
        """
        mapped = {id(tensor): function(tensor) for tensor in self.tensors()}
        args, kwargs = pytree.map_tensors(lambda tensor: mapped[id(tensor)], (self.args, dict(self.kwargs)), arrays)
        return replace(self, args=args, kwargs=kwargs)

    def clone(self, convert: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Example:
        """Copy everything except modules, so that a call that changes its inputs does not change this example.

        `convert` is as for `deep_copy`.

        Raises:
            WorkloadError: an input holds something that cannot be copied.
        """
        example = replace(self, kwargs=dict(self.kwargs))
        copied: Example = deep_copy(example, convert=convert, keep=(torch.nn.Module,))
        for tensor, own in zip(copied.tensors(), self.tensors(), strict=True):
            if tensor.requires_grad is not own.requires_grad:  # the result of a graph that goes on from here
                tensor.requires_grad_(own.requires_grad)
        return copied


@checked_keywords()
@dataclass(frozen=True, slots=True)
class Workload:
    """A callable and its example inputs. A factory returns it if a tuple is not enough.

    Attributes:
        call: an `nn.Module` or any function of tensors.
        examples: at least one. Several describe a shape mix.
        name: its name in reports.
        roofline: the minimum work per call of the first example, if known.
        reseed: builds the inputs again from another seed, for verification on several draws.
    """

    call: Callable[..., Any]
    examples: tuple[Example, ...]
    name: str = "model"
    roofline: Roofline | None = None
    reseed: Callable[[int], tuple[Example, ...]] | None = None

    def __post_init__(self) -> None:
        if not callable(self.call):
            raise WorkloadError(f"the model is {_describe(self.call)}, but must be callable")
        if not self.examples:
            raise WorkloadError("the workload has no example inputs, but needs at least one")

    @classmethod
    def of(cls, result: Any, name: str = "model") -> Workload:
        """Read the result of a factory: a `Workload`, `(callable, args)` or `(callable, args, kwargs)`.

        Raises:
            WorkloadError: it is none of these. The message names its type and the types needed.
        """
        if isinstance(result, cls):
            return result
        if not isinstance(result, tuple) or len(result) not in (2, 3):
            raise WorkloadError(
                f"the factory returned {_describe(result)}, but must return (callable, example_args), "
                "(callable, example_args, example_kwargs) or a torchwise.Workload"
            )
        call, args = result[0], result[1]
        kwargs = result[2] if len(result) == 3 else {}
        if not callable(call):
            raise WorkloadError(f"the first item returned is {_describe(call)}, but must be callable")
        return cls(call, (Example(as_args(args), as_kwargs(kwargs)),), name=name)

    @property
    def inputs(self) -> tuple[str, ...]:
        """One line for each example that describes its inputs, as a decision stores it."""
        from torchwise.workload.identity import describe_example

        return tuple(map(describe_example, self.examples))

    @property
    def step(self) -> TrainStep | None:
        """The training step, if the callable is one."""
        from torchwise.workload.train_step import TrainStep

        return self.call if isinstance(self.call, TrainStep) else None

    @property
    def module(self) -> torch.nn.Module | None:
        """The model if it is a module, or a training step's model."""
        model = self.step.model if self.step else self.call
        return model if isinstance(model, torch.nn.Module) else None

    def to(self, device: str) -> Workload:
        """Move the model (an `nn.Module` or a training step, in place) and every input tensor to `device`.

        Raises:
            WorkloadError: PyTorch sees no such device here.
        """
        from torchwise.workload.train_step import TrainStep

        check_device(device)
        if isinstance(self.call, (torch.nn.Module, TrainStep)):
            self.call.to(device)
        reseed = self.reseed
        return replace(
            self,
            examples=_move_examples(self.examples, device),
            reseed=(lambda seed: _move_examples(reseed(seed), device)) if reseed else None,
        )


def check_device(device: str) -> None:
    """Refuse a CUDA device if PyTorch has none.

    Raises:
        WorkloadError: there is no CUDA device. The message gives the reason and the way out.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        reason, remedy = "sees no CUDA GPU here", "make one visible (driver, CUDA_VISIBLE_DEVICES)"
        if torch.version.cuda is None:
            reason, remedy = f"{torch.__version__} is built without CUDA", "install a build with CUDA"
        raise WorkloadError(f"device is {device!r}, but PyTorch {reason}: use device 'cpu', or {remedy}")


def as_args(args: Any) -> tuple[Any, ...]:
    """Read example arguments: a tuple or list of them, or one lone tensor.

    Raises:
        WorkloadError: it is anything else, which could mean two things.
    """
    if isinstance(args, torch.Tensor):
        return (args,)
    if isinstance(args, (tuple, list)):
        return tuple(args)
    raise WorkloadError(f"the example arguments are {_describe(args)}, but must be a tuple such as (x,)")


def as_kwargs(kwargs: Any) -> dict[str, Any]:
    """Read example keyword arguments: a mapping from names to values.

    Raises:
        WorkloadError: it is no mapping, or a key is no string.
    """
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise WorkloadError(
            f"the example keyword arguments are {_describe(kwargs)}, but must be a dict with string keys"
        )
    return dict(kwargs)


def _move_examples(examples: tuple[Example, ...], device: str) -> tuple[Example, ...]:
    """Move the tensors of examples, those in objects too. Tensors that are there already stay the very same."""

    def move_example(example: Example) -> Example:
        if overlap_of(example.tensors()) is not None:  # so that they go on sharing memory there
            return example.clone(lambda tensor: tensor.to(device))
        example = example.map_tensors(lambda tensor: _move(tensor, device))
        return example.clone(lambda t: _move(t, device)) if any(map(is_elsewhere, example.leaves())) else example

    def is_elsewhere(leaf: Any) -> bool:
        if isinstance(leaf, torch.nn.Module):  # which moves as one that is run does: by itself
            return False
        found = State({"": leaf}).leaves().values()
        return any(isinstance(t, torch.Tensor) and t.device.type != torch.device(device).type for t in found)

    return tuple(map(move_example, examples))


def _move(tensor: torch.Tensor, device: str) -> torch.Tensor:
    moved = tensor.detach().to(device)
    if tensor.layout is torch.strided and not tensor.is_nested and moved.stride() != tensor.stride():
        moved = pytree.copy_of(tensor, device)
    vars(moved).update({name: marks for name, marks in vars(tensor).items() if name in DIM_MARKS})
    return moved.requires_grad_(tensor.requires_grad)


def _describe(value: Any) -> str:
    text = repr(value)
    kind = type(value).__name__
    return f"{kind} {text}" if len(text) <= 60 else f"an object of type {kind}"


def batch_of(example: Example, dim: int | None) -> BatchDim:
    """Return the dimension that every tensor of the inputs shares, or 0 if none is named.

    Raises:
        UnsupportedError: there is none.
    """
    tensors = [tensor for tensor in example.tensors() if tensor.dim()]
    if not tensors:
        raise UnsupportedError("the inputs hold no tensor with a dimension, so there is no batch to scale")
    batch_dim = 0 if dim is None else dim
    for tensor in tensors:
        if not -tensor.dim() <= batch_dim < tensor.dim():
            raise UnsupportedError(
                f"an input of shape {tuple(tensor.shape)} has no dimension {batch_dim}: name another with --batch-dim"
            )
    sizes = sorted({tensor.shape[batch_dim] for tensor in tensors})
    if len(sizes) > 1:
        raise UnsupportedError(
            f"the inputs differ in dimension {batch_dim} (sizes {', '.join(map(str, sizes))}), so it is no common "
            "batch: name the batch dimension with --batch-dim"
        )
    if sizes[0] == 0:
        raise UnsupportedError(
            f"dimension {batch_dim} of the inputs is empty, so there is nothing to make batches from"
        )
    return BatchDim(batch_dim, sizes[0])


def scale_batch(workload: Workload, batch: BatchDim) -> Workload:
    """Return the workload on its first example alone, at another batch size.

    Raises:
        UnsupportedError: the inputs have no such batch dimension, as those of a factory that returns other shapes.
    """
    batch_of(workload.examples[0], batch.dim)
    example = resize_example(workload.examples[0], batch.dim, batch.size)
    return replace(workload, examples=(example,), roofline=None, reseed=None)


def resize_example(example: Example, dim: int, size: int) -> Example:
    """Return the example at another size of the dimension `dim` of every tensor (see `resize_places`)."""
    tensors = pytree.list_named_leaves((example.args, dict(example.kwargs)))
    places = [(path, dim % leaf.dim()) for path, leaf in tensors if isinstance(leaf, torch.Tensor) and leaf.dim()]
    return resize_places(example, dict.fromkeys(places, size))


def resize_places(example: Example, lengths: Mapping[tuple[str, int], int]) -> Example:
    """Return the example with its items along some dimensions repeated or left out until there are so many.

    The values stay the same: indices stay in their range, and masks stay masks.

    Args:
        example: the example.
        lengths: the new length by the path of an input and a dimension.
    """
    changed: dict[int, torch.Tensor] = {}
    for path, tensor in pytree.list_named_leaves((example.args, dict(example.kwargs))):
        wanted = [(dim, lengths[path, dim]) for dim in range(getattr(tensor, "ndim", 0)) if (path, dim) in lengths]
        if isinstance(tensor, torch.Tensor) and wanted:
            resized = tensor.detach()
            for dim, length in wanted:
                items = torch.arange(length, device=tensor.device) % tensor.shape[dim]
                resized = resized.index_select(dim, items)
            changed[id(tensor)] = resized.requires_grad_(tensor.requires_grad)
    return example.map_tensors(lambda tensor: changed.get(id(tensor), tensor))
