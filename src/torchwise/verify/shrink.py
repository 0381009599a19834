"""Find the smallest inputs that still fail: smaller sizes, plain layouts, simple values, in this order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.input_cases import Case, map_examples
from torchwise.workload import pytree
from torchwise.workload.workload import Example

MAX_TRIES = 200
"""Inputs to try at most."""
FEW = 24
"""Elements of a tensor up to which each is simplified by itself."""
HIDDEN_STATE = (CheckName.REPEATED_CALLS, CheckName.MEMORY, CheckName.VALUES)
"""Checks that find kept answers: by which of them they show is chance."""

Place = tuple[str, int]
"""The path of an input, and a dimension of it."""


class Shrinker:
    """Tries smaller and smaller inputs.

    Args:
        judge: returns the check of a case, or None if it cannot be judged.
        check: the check that failed. Smaller inputs must fail the same one.
        max_s: seconds at most.
    """

    def __init__(self, judge: Callable[[Case], Check | None], check: Check, max_s: float) -> None:
        self._judge = judge
        self._names = HIDDEN_STATE if check.name in HIDDEN_STATE else (check.name,)
        self._until = time.monotonic() + max_s
        self.check, self.tried = check, 0

    def shrink(self, case: Case) -> Case:
        """Return the smallest case that fails."""
        case = self._step(case, _plain_layouts(case))
        while (smaller := self._step(case, _cuts(case))) is not case:
            case = smaller
        if case.redraw is None or not self._needs_redraw(case):
            case = replace(case, redraw=None, near=()) if case.redraw is not None else case
            while (simpler := self._step(case, _simpler_values(case))) is not case:
                case = simpler
        return case

    def _needs_redraw(self, case: Case) -> bool:
        return self._step(case, iter([replace(case, redraw=None, near=())])) is case

    def _step(self, case: Case, attempts: Iterator[Case]) -> Case:
        """Return the first attempt that fails, or the case itself."""
        for attempt in attempts:
            if self.tried >= MAX_TRIES or time.monotonic() > self._until:
                return case
            self.tried += 1
            try:
                found = self._judge(attempt)
            except Exception:  # a made-up input may break either side, or the comparison
                continue
            if found is not None and found.outcome is Outcome.FAIL and found.name in self._names:
                self.check = found
                return attempt
        return case


def _keep_gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: function(tensor.detach()).requires_grad_(tensor.requires_grad)


def _plain_layouts(case: Case) -> Iterator[Case]:
    plain = _keep_gradient(lambda t: t.clone(memory_format=torch.contiguous_format))
    if any(t.layout is torch.strided and not t.is_contiguous() for t in case.example.tensors()):
        yield replace(map_examples(case, lambda example: example.map_tensors(plain)), is_layout=False)


def _cuts(case: Case) -> Iterator[Case]:
    """Yield the case with dimensions of one size cut down together: to one, by half, and by one, from both ends."""
    groups: dict[int, list[Place]] = {}
    for path, leaf in pytree.list_named_leaves((case.example.args, dict(case.example.kwargs))):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            for dim, size in enumerate(leaf.shape):
                groups.setdefault(size, []).append((path, dim))
    for size, places in sorted(groups.items(), reverse=True):
        for length in sorted({1, size // 2, size - 1} - {0, size}):
            if length > 0:
                for start in dict.fromkeys((0, size - length)):
                    yield map_examples(case, _Cut(frozenset(places), start, length))


class _Cut:
    """Narrows some dimensions of an example."""

    def __init__(self, places: frozenset[Place], start: int, length: int) -> None:
        self._places, self._start, self._length = places, start, length

    def __call__(self, example: Example) -> Example:
        cut: dict[int, torch.Tensor] = {}
        for path, tensor in pytree.list_named_leaves((example.args, dict(example.kwargs))):
            if isinstance(tensor, torch.Tensor):
                narrow = tensor.detach()
                for dim in range(tensor.dim()):
                    if (path, dim) in self._places:
                        narrow = narrow.narrow(dim, self._start, self._length)
                cut[id(tensor)] = pytree.copy_of(narrow).requires_grad_(tensor.requires_grad)
        return example.map_tensors(lambda tensor: cut[id(tensor)])


def _simpler_values(case: Case) -> Iterator[Case]:
    """Yield the case with the values of one tensor, or one value, replaced by simpler ones."""
    tensors = [t for t in case.example.tensors() if t.is_floating_point() and t.layout is torch.strided]
    for tensor in tensors:
        if _is_constant(tensor):
            continue
        for simple in (torch.zeros_like, torch.ones_like, torch.round):
            made = simple(tensor.detach())
            if not pytree.equal(made, tensor.detach()):
                yield _replace_values(case, tensor, made)
        if tensor.numel() <= FEW and tensor.is_contiguous():
            for place, value in enumerate(tensor.detach().flatten().tolist()):
                if value != 0:
                    made = tensor.detach().clone()
                    made.view(-1)[place] = 0
                    yield _replace_values(case, tensor, made)


def _is_constant(tensor: torch.Tensor) -> bool:
    """Whether all values are 0, or all are 1, than which none are simpler."""
    return any(pytree.equal(tensor.detach(), like(tensor.detach())) for like in (torch.zeros_like, torch.ones_like))


def _replace_values(case: Case, tensor: torch.Tensor, values: torch.Tensor) -> Case:
    made = values.requires_grad_(tensor.requires_grad)
    return replace(case, example=case.example.map_tensors(lambda t: made if t is tensor else t))
