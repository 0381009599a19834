"""Draw inputs that kernels get wrong: edges of size, layout and value, from a description or from given examples.

Seeds are drawn anew for every verification, so that no candidate can know its inputs beforehand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from torchwise.verify.incoming import SUM
from torchwise.verify.input_description import InputDescription, PlainInput, TensorInput
from torchwise.verify.layouts import IN_ROWS, LAYOUTS, VALUES_KEPT, describe_layout
from torchwise.verify.other_values import is_alike, is_plain, keep_gradient, list_near, pair_tensors, redraw_examples
from torchwise.verify.sizes import Sizes, list_sizes, shrink_sizes
from torchwise.verify.value_edges import LARGE_VALUES, VALUE_EDGES, Fill, list_simple_edges
from torchwise.workload import pytree
from torchwise.workload.workload import Example, Workload, resize_example

MAX_ELEMENTS = 200_000
"""Maximum number of elements of a drawn tensor."""
MAX_TIMED_ELEMENTS = 2**22
MAX_ALONE = 3
"""Inputs of which each requires a gradient alone once."""
USUAL_SIZE = 13
"""Size of a dimension while another one varies: a prime."""


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs.

    Attributes:
        name: what is special about it.
        example: the inputs.
        redraw: other values in the same form, or None if there are none.
        near: values that a careless key takes for the same.
        is_given: whether the user gave it, so that the reference must answer it.
        is_layout: whether its tensors are laid out in an unusual way.
        is_tiny: whether its values are denormal numbers, which a device may treat as zero.
        is_beyond: whether its values may lie beyond those that the inputs are meant for, so that faults are only noted.
        sizes: the named sizes of a description.
        incoming: seed of the gradient that comes in, as for `make_loss`.
        needs_gradients: whether gradients are compared, if they are at all.
    """

    name: str
    example: Example
    redraw: Example | None = None
    near: tuple[Example, ...] = ()
    is_given: bool = False
    is_layout: bool = False
    is_tiny: bool = False
    is_beyond: bool = False
    sizes: Sizes = field(default_factory=dict)
    incoming: int = SUM
    needs_gradients: bool = True

    def count_elements(self) -> int:
        """Return the number of elements of all inputs."""
        return sum(tensor.numel() for tensor in self.example.tensors())


def cases_of_examples(workload: Workload, seed: int) -> list[Case]:
    """Return the given examples with other values, layouts and batch sizes, and with edges that an example lacks."""
    examples, hidden = workload.examples, seed % 2**31
    redrawn = redraw_examples(workload, (hidden, hidden + 1)) or list(examples)
    found = [
        _make_given(number if len(examples) > 1 else 0, example, _find_alike(example, redrawn), hidden)
        for number, example in enumerate(examples, 1)
    ]
    found += [Case("other values", redrawn[-1])]
    base = redrawn[-1]
    for size in (1, 3, 7):
        try:
            found.append(Case(f"batch of {size}", resize_example(base, 0, size)))
        except Exception:  # inputs without a common batch, which only the model understands
            break
    return [*found, *_edges_beyond(base), *_layout_cases(base, VALUES_KEPT)]


def _edges_beyond(base: Example) -> list[Case]:
    """Return edges of values for floating inputs of an example, which may be beyond their meaning."""
    found = []
    for kind in list_simple_edges():
        edge = base.map_tensors(keep_gradient(partial(_fill_if_free, kind.fill)))
        if not is_alike(edge, base):
            found.append(Case(kind.name, edge, is_beyond=True))
    return found


def _fill_if_free(fill: Fill, tensor: torch.Tensor) -> torch.Tensor:
    return fill(tensor) if _is_free(tensor) else tensor


def _is_free(tensor: torch.Tensor) -> bool:
    """Whether a tensor has fractions that are no mask."""
    is_wide = tensor.is_floating_point() and tensor.element_size() > 1
    return is_plain(tensor) and is_wide and bool(tensor.isfinite().all())


def _find_alike(example: Example, others: Sequence[Example]) -> Example | None:
    """Return the first of other examples that has the same form."""
    form = describe_inputs(example)
    return next((other for other in others if describe_inputs(other) == form), None)


def _make_given(number: int, example: Example, redraw: Example | None, seed: int) -> Case:
    name = f"example {number}" if number else "the example"
    return Case(name, example, redraw, list_near(example, seed), is_given=True)


def list_untried(cases: Sequence[Case], description: InputDescription | None) -> list[str]:
    """Tell in words which inputs were not tried: large sizes, or any other values than those given."""
    if description is None:
        given = [case for case in cases if case.is_given]
        is_fixed = all(one.redraw is None or is_alike(one.redraw, one.example) for one in given)
        note = "no other values could be drawn for the examples: describe inputs with --input"
        return [note] if is_fixed and any(one.tensors() for one in (case.example for case in given)) else []
    tried = [case.sizes for case in cases]
    largest = {name: max((sizes.get(name, 0) for sizes in tried), default=0) for name in description.sizes}
    return [
        f"sizes of {name} above {most} were not tried"
        for name, most in largest.items()
        if most < description.sizes[name][1]
    ]


def cases_of_description(description: InputDescription, seed: int, device: str = "cpu") -> list[Case]:
    """Return cases for every edge that the description allows: sizes first, then values, then layouts."""
    return list(_Drawer(description, seed, device).draw_cases())


def draw_large(description: InputDescription, seed: int, device: str = "cpu") -> Example:
    """Return inputs of the largest sizes, halved until they have no more than `MAX_TIMED_ELEMENTS` elements."""
    drawer = _Drawer(description, seed, device)
    largest = {name: high for name, (_, high) in description.sizes.items()}
    sizes = shrink_sizes(largest, description.sizes, lambda one: drawer.count_elements(one) <= MAX_TIMED_ELEMENTS)
    return drawer.draw_example(sizes)


@dataclass(slots=True)
class _Drawer:
    """Draws the cases of one description."""

    description: InputDescription
    seed: int
    device: str
    _count: Iterator[int] = field(default_factory=itertools.count)

    def draw_cases(self) -> Iterator[Case]:
        sizes = self.description.sizes
        usual = {
            name: min(max(USUAL_SIZE + number, low), high) for number, (name, (low, high)) in enumerate(sizes.items())
        }
        yield self._draw("usual sizes", usual, is_given=True)
        most = max(MAX_ELEMENTS, self.count_elements(usual))
        for name, found in list_sizes(sizes, usual, self.seed, lambda one: self.count_elements(one) <= most):
            yield self._draw(name, found)
        yield from self._value_cases(usual)
        plain = self._draw("", usual).example
        has_structure = any(one.structure for one in self._tensors)
        is_contiguous = any(one.is_contiguous for one in self._tensors)
        yield from _layout_cases(plain, IN_ROWS if is_contiguous else VALUES_KEPT if has_structure else LAYOUTS)
        yield from () if has_structure else _alias_cases(plain)

    def count_elements(self, sizes: dict[str, int]) -> int:
        """Return the number of elements of the largest tensor."""
        return max((_count_elements(one, sizes) for one in self._tensors), default=0)

    @property
    def _tensors(self) -> list[TensorInput]:
        return [one for one in self.description.inputs if isinstance(one, TensorInput)]

    def _draw(self, name: str, sizes: dict[str, int], *, is_given: bool = False) -> Case:
        first, second = (self.draw_example(sizes) for _ in range(2))
        near = list_near(first, self.seed) if is_given and not any(one.structure for one in self._tensors) else ()
        return Case(name, first, second, near, is_given, sizes=sizes)

    def draw_example(self, sizes: dict[str, int], fills: dict[str, Fill] | None = None) -> Example:
        """Return inputs of these sizes, with special values in those inputs that have a fill."""
        values = []
        for one in self.description.inputs:
            if isinstance(one, PlainInput):
                values.append(one.value)
                continue
            generator = torch.Generator().manual_seed((self.seed + 7919 * next(self._count)) % 2**62)
            tensor = draw_tensor(one, sizes, generator)
            fill = (fills or {}).get(one.name)
            values.append((fill(tensor) if fill else tensor).to(self.device))
        return Example(tuple(values))

    def _value_cases(self, sizes: dict[str, int]) -> Iterator[Case]:
        """Yield edges of values: in all inputs together first, then in each alone."""
        for kind in VALUE_EDGES:
            fills = {one.name: fill for one in self._tensors if (fill := kind.fill_of(one)) is not None}
            if not fills:
                continue
            groups = [fills] if len(fills) == 1 else [fills, *({name: fill} for name, fill in fills.items())]
            for group in groups:
                where = "" if len(fills) == 1 else f" in {'all inputs' if group is fills else next(iter(group))}"
                example = self.draw_example(sizes, group)
                yield Case(f"{kind.name}{where}", example, is_tiny=kind.name == "denormal numbers")


def draw_tensor(one: TensorInput, sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    """Draw a tensor as described, on the CPU."""
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in one.dims]
    dtype = getattr(torch, one.dtype)
    if dtype is torch.bool:
        values = torch.rand(shape, generator=generator) < 0.5
        return _unmask_rows(values) if one.structure == "mask" else values
    if not (dtype.is_floating_point or dtype.is_complex):
        low, high = math.ceil(one.low or 0), math.floor(one.high if one.high is not None else 100)
        whole = torch.randint(low, high + 1, shape, generator=generator)
        return _arrange(whole, one, generator).to(dtype)
    if one.low is not None and one.high is not None:
        wide = one.low + (one.high - one.low) * torch.rand(shape, generator=generator, dtype=torch.float64)
    else:
        wide = torch.randn(shape, generator=generator, dtype=torch.float64)
    if dtype.is_complex:
        wide = torch.complex(wide, torch.randn(shape, generator=generator, dtype=torch.float64))
    return _arrange(wide, one, generator).to(dtype)


def _arrange(values: torch.Tensor, one: TensorInput, generator: torch.Generator) -> torch.Tensor:
    """Give values their structure."""
    if values.numel() == 0 or not one.structure:
        return values
    match one.structure:
        case "sorted":
            return values.sort(dim=-1).values
        case "distinct":
            return torch.rand(values.shape, generator=generator).argsort(dim=-1).to(values.dtype)
        case "mask":
            kept = _unmask_rows(torch.rand(values.shape, generator=generator) < 0.7)
            return torch.where(kept, 0.0, -torch.inf).to(values.dtype)
        case "probabilities":
            return values.softmax(dim=-1)
        case "symmetric":
            return (values + values.mT) / 2
        case "lower-triangular":
            return values.tril()
        case _:
            size = values.shape[-1]
            return values @ values.mH / size + 0.5 * torch.eye(size, dtype=values.dtype)


def _unmask_rows(kept: torch.Tensor) -> torch.Tensor:
    """Keep at least the first element of each row, as a row without any has no softmax."""
    if kept.dim() and kept.numel():
        kept[..., 0] = True
    return kept


def _count_elements(one: TensorInput, sizes: dict[str, int]) -> int:
    count = 1
    for dim in one.dims:
        count *= sizes[dim] if isinstance(dim, str) else dim
    return count


def _layout_cases(base: Example, layouts: Sequence[tuple[str, Fill]]) -> list[Case]:
    """Return the inputs in unusual layouts."""
    found = []
    for name, lay_out in layouts:
        laid = _map_in_order(base, lay_out)
        if any(describe_layout(a) != describe_layout(b) for a, b in pair_tensors(laid, base)):
            found.append(Case(name, laid, is_layout=True))
    return found


def _map_in_order(example: Example, function: Callable[[torch.Tensor], torch.Tensor]) -> Example:
    return example.map_tensors(keep_gradient(function))


def _alias_cases(base: Example) -> list[Case]:
    """Return inputs of one form as one and the same tensor, and as views of one memory."""
    tensors = [t for t in base.tensors() if is_plain(t) and not t.requires_grad]
    pair = next(
        ((a, b) for a, b in itertools.combinations(tensors, 2) if a.shape == b.shape and a.dtype == b.dtype), None
    )
    if pair is None:
        return []
    first, second = pair
    shared = first.clone()
    same = base.map_tensors(lambda t: shared if t is first or t is second else t)
    return [Case("one tensor as two inputs", same, is_layout=True)]


def with_gradients(cases: Sequence[Case], seed: int) -> list[Case]:
    """Return the cases with inputs that require gradients, and the first one in other ways as well.

    Its loss is a plain sum, too. One of several inputs requires a gradient alone, and then none does.
    """

    def require(example: Example) -> Example:
        return example.map_tensors(
            lambda t: t.detach().requires_grad_() if t.is_floating_point() or t.is_complex() else t
        )

    # Gradients of large values pass through cubes, which overflow in one right algorithm and not in another.
    found = [case if case.name.startswith(LARGE_VALUES) else map_examples(case, require) for case in cases]
    weighed = [replace(case, incoming=seed % 2**31 + number + 1) for number, case in enumerate(found)]
    first = next((case for case in weighed if case.is_given), None)
    if first is None:
        return weighed
    able = [number for number, tensor in enumerate(first.example.tensors()) if tensor.requires_grad]
    alone = [_require_alone(first, number) for number in able[:MAX_ALONE] if len(able) > 1]
    plain = _require_alone(first, None)
    return [*weighed, replace(first, name=f"{first.name}, summed up", incoming=SUM), *alone, plain]


def _require_alone(case: Case, wanted: int | None) -> Case:
    """Return a case of which one tensor alone requires a gradient, or none, as in a call without gradients."""

    def require(example: Example) -> Example:
        numbers = {id(tensor): number for number, tensor in enumerate(example.tensors())}
        return example.map_tensors(lambda t: t.detach().requires_grad_(numbers[id(t)] == wanted))

    which = "without gradients" if wanted is None else f"a gradient of input {wanted} alone"
    found = replace(map_examples(case, require), near=(), name=f"{case.name}, {which}")
    return replace(found, needs_gradients=wanted is not None)


def map_examples(case: Case, function: Callable[[Example], Example]) -> Case:
    """Return a case with a function applied to each of its examples."""
    redraw = function(case.redraw) if case.redraw is not None else None
    return replace(case, example=function(case.example), redraw=redraw, near=tuple(map(function, case.near)))


def describe_inputs(example: Example) -> str:
    """Describe inputs in a line, as short as possible."""
    leaves = pytree.list_named_leaves((example.args, dict(example.kwargs)))
    return ", ".join(_describe_leaf(leaf) for _, leaf in leaves) or "none"


def _describe_leaf(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return repr(leaf)[:60]
    plain = leaf.layout is not torch.strided or leaf.is_contiguous()
    strides = "" if plain else f" with strides {tuple(leaf.stride())}"
    return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}{strides}"


def take_largest(cases: Sequence[Case]) -> Case:
    """Return the given case with the most elements."""
    return max((case for case in cases if case.is_given), key=lambda c: sum(t.numel() for t in c.example.tensors()))
