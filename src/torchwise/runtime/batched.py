"""Run a function of one sample on many at once: joined along the first dimension, by `torch.vmap`, or one by one.

Each way is verified before it is used. Answers without random numbers are compared with those of single calls. For a
function that draws, the distribution and the independence of successive samples are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch

from torchwise.alerts import OnceLog
from torchwise.errors import InputError, TorchwiseError, first_line, format_error, is_count
from torchwise.keywords import checked_keywords
from torchwise.runtime.batch_calls import MAX_FORMS, Same, inspect_call, list_trained_parts
from torchwise.verify import verify_samples
from torchwise.verify.independence import Many, NoisyError, verify_random_samples
from torchwise.workload import Example, pytree
from torchwise.workload.samples import Call, merge_calls, split_answer
from torchwise.workload.workload import as_args

logger = logging.getLogger("torchwise")
_ONCE = OnceLog()
MAX_BATCH = 64
NOISE_S = 1.0
"""Seconds of calls to verify a function that draws random numbers, if they take that long."""


class BatchedFunction:
    """Answers many calls of a function at once. `batched` makes it and explains its arguments.

    Attributes:
        ways: how calls of each form run, "joined", "vmap" or "one by one", in the order in which forms came.
    """

    def __init__(self, function: Callable[..., Any], max_batch: int) -> None:
        self.ways: dict[Hashable, str] = {}
        self._function, self._max_batch = function, max_batch
        self._many: dict[str, Many] = {"joined": self._run_joined, "vmap": self._run_vmapped}

    def __call__(self, calls: Iterable[Any]) -> list[Any]:
        """Return the answer to each call, as the function gives it.

        Args:
            calls: for each call its argument, a tuple of arguments, or an `Example` with keyword arguments.
        """
        read = [_read_call(call) for call in calls]
        mode = list_trained_parts(self._function)
        places: dict[Hashable, list[int]] = {}
        for place, call in enumerate(read):
            places.setdefault((mode, _form_of(call)), []).append(place)
        answers: list[Any] = [None] * len(read)
        for form, found in places.items():
            for start in range(0, len(found), self._max_batch):
                part = found[start : start + self._max_batch]
                for place, answer in zip(part, self._run(form, [read[place] for place in part]), strict=True):
                    answers[place] = answer
        return answers

    def draw(self, count: int, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the answers to so many equal calls of a function that draws random numbers."""
        if not is_count(count):
            raise InputError(f"count is {count!r}, but must be a whole number of at least 1")
        return self([Example(args, kwargs)] * count)

    def __repr__(self) -> str:
        name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
        return f"<batched {name}: {', '.join(self.ways.values()) or 'not called yet'}>"

    def _run(self, form: Hashable, calls: list[Call]) -> list[Any]:
        with torch.no_grad():
            if len(calls) == 1:
                return [self._call(calls[0])]
            if form not in self.ways:
                way = self._find_way(calls)
                if len(self.ways) >= MAX_FORMS:
                    self.ways.clear()
                self.ways[form] = way
            if many := self._many.get(self.ways[form]):
                try:
                    return many(calls)
                except Exception as error:  # one call's values may raise it, or the batch may be too large
                    if _ONCE.admit(f"{type(error).__name__}: {error}"):
                        logger.warning("torchwise: a batch failed, so its calls run one by one", exc_info=error)
            return [self._call(call) for call in calls]

    def _call(self, call: Call) -> Any:
        return self._function(*call[0], **call[1])

    def _find_way(self, calls: list[Call]) -> str:
        """Return the first way that is verified, or "one by one", and say why."""
        reasons = []
        for way, verify in (("joined", self._verify_joined), ("vmap", self._verify_vmapped)):
            try:
                verify(calls)
            except Exception as error:  # a function may raise anything on a batch
                known = isinstance(error, TorchwiseError)
                reasons.append(f"{way}: {error if known else first_line(format_error(error))}")
            else:
                return way
        logger.warning("torchwise: calls run one by one, as no way to batch them is right: %s", ", ".join(reasons))
        return "one by one"

    def _verify_joined(self, calls: list[Call]) -> None:
        inspect_call(calls[0])
        if any(tensor.dim() == 0 for tensor in pytree.tensors(calls[0])):
            raise InputError("a tensor without a dimension may differ from call to call")
        try:
            verify_samples(self._function, Example(*merge_calls(calls)))
        except NoisyError:
            self._verify_noise(calls[0], self._run_joined)

    def _verify_vmapped(self, calls: list[Call]) -> None:
        stacked = _stack(calls)
        try:
            if not pytree.tensors(stacked):
                raise NoisyError("without inputs, only random numbers tell one call from another")
            verify_samples(self._vmapped, Example(*stacked), alone=self._alone)
        except NoisyError:
            self._verify_noise(calls[0], self._run_vmapped)

    def _verify_noise(self, call: Call, many: Many) -> None:
        verify_random_samples(many, self._call, call, budget_s=NOISE_S)

    def _run_joined(self, calls: list[Call]) -> list[Any]:
        args, kwargs = merge_calls(calls)
        sizes = [inspect_call(call)[0] for call in calls]
        return split_answer(self._function(*args, **kwargs), sizes, sum(sizes))

    def _run_vmapped(self, calls: list[Call]) -> list[Any]:
        stacked = _stack(calls)
        numbers = () if pytree.tensors(stacked) else (torch.arange(len(calls)),)  # which make the batch
        answer = self._vmap(stacked, *numbers)
        return [_take_row(answer, place) for place in range(len(calls))]

    def _vmapped(self, *args: Any, **kwargs: Any) -> Any:
        """Answer a batch of stacked calls."""
        return self._vmap((args, kwargs))

    def _vmap(self, call: Call, *numbers: torch.Tensor) -> Any:
        """Map the function over the first dimension of the tensors of a call, or else over numbers."""

        def run(*rows: torch.Tensor) -> Any:
            left = iter(rows)
            args, kwargs = pytree.map_tensors(lambda _: next(left), call)
            return self._function(*args, **kwargs)

        return torch.vmap(run, randomness="different")(*pytree.tensors(call), *numbers)

    def _alone(self, *args: Any, **kwargs: Any) -> Any:
        """Answer one stacked call by the function itself."""
        lone_args, lone_kwargs = pytree.map_tensors(lambda tensor: tensor[0], (args, kwargs))
        return pytree.map_tensors(lambda tensor: tensor[None], self._function(*lone_args, **lone_kwargs))


@checked_keywords()
def batched(function: Callable[..., Any], *, max_batch: int = MAX_BATCH) -> BatchedFunction:
    """Return a function that answers many calls of a function of one sample at once.

    `batched(f)([a, b, c])` returns `[f(a), f(b), f(c)]`, and `batched(f).draw(64)` the answers to 64 calls of `f()`.
    Tensors are joined along their first dimension if samples lie there, or else stacked for `torch.vmap`. Either way is
    verified on the first calls of a form. If neither is right, calls run one by one, and a warning says why. Calls that
    differ in more than the values of tensors run in batches of their own. Functions run without gradients.

    Args:
        function: an `nn.Module` or a function.
        max_batch: calls that run at once.

    Raises:
        InputError: an argument has no permitted value.
    """
    if not callable(function):
        raise InputError(f"function is of type {type(function).__name__}, but must be a model or a function")
    if not is_count(max_batch) or max_batch < 2:
        raise InputError(f"max_batch is {max_batch!r}, but must be a whole number of at least 2")
    return BatchedFunction(function, max_batch)


def _read_call(call: Any) -> Call:
    return (call.args, dict(call.kwargs)) if isinstance(call, Example) else (as_args(call), {})


def _form_of(call: Call) -> Hashable:
    """Return everything that calls of one batch have in common."""
    kinds: list[Hashable] = [pytree.form(call)]
    for path, leaf in pytree.list_named_leaves(call):
        if isinstance(leaf, torch.Tensor):
            kinds.append((path, leaf.dtype, leaf.device, leaf.layout, leaf.shape))
        else:
            kinds.append((path, type(leaf), leaf if type(leaf) in pytree.PLAIN else Same(leaf)))
    return tuple(kinds)


def _stack(calls: list[Call]) -> Call:
    """Return one call whose tensors have a dimension for the calls in front."""
    stacked: list[Call] = [pytree.map_tensors(lambda tensor: tensor[None], call) for call in calls]
    return merge_calls(stacked)


def _take_row(answer: Any, place: int) -> Any:
    return pytree.map_tensors(lambda tensor: tensor[place].clone(), answer)
