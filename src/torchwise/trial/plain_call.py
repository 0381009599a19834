"""Call the plain model once on each example: whether it runs, which state a call changes, and whether it prints.

The output of a call is lost once the call is a replay of kernels.
"""

from __future__ import annotations

import builtins
import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from torchwise._torch.modules import NormBase
from torchwise.errors import BaselineError, InternalError, WorkloadError, format_error
from torchwise.plan import Trait
from torchwise.trial.error_origin import call_plainly, make_baseline_error
from torchwise.trial.loading import runner
from torchwise.verify.leaves import leaves_of
from torchwise.workload import Example, Workload, pytree
from torchwise.workload.bounds import takes_within_bounds
from torchwise.workload.identity import describe_example
from torchwise.workload.module_state import State
from torchwise.workload.step_state import loss_of

MAX_WINDOW = 16
"""Calls after which a window of the last ones counts as full. A longer one counts as state that grows."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of a batch normalisation that training writes and does not read."""


@dataclass(frozen=True, slots=True)
class PlainCall:
    """The effects of one call of the model on each example.

    Attributes:
        writes: whether it writes to its input tensors.
        answers: whether there are numbers in its answers.
        moves: the state that it changes for the next call, by path.
        grows: whether a tensor of that state took another shape.
    """

    writes: bool
    answers: bool
    moves: tuple[str, ...]
    grows: bool

    @property
    def traits(self) -> frozenset[Trait]:
        """The traits by which every call is started from one state."""
        found = {Trait.WRITES_INPUTS: self.writes, Trait.STATEFUL: bool(self.moves)}
        return frozenset(trait for trait, present in found.items() if present)


def run_plainly(workload: Workload, mode: str) -> PlainCall:
    """Run the model once on each example, record the changes, and undo them.

    Raises:
        BaselineError: it raises.
        WorkloadError: it makes a change that cannot be undone. Or it is to be trained, and the surrogate loss has no
            backward pass.
    """
    writes = answers = grows = False
    moves: dict[str, None] = {}
    call = workload.step.copy() if workload.step else workload.call
    for example in workload.examples:
        copy = example.clone()
        state = State.from_call(None if workload.step else call, copy.args, copy.kwargs)
        answer = _answer(workload, call, copy, example)
        answers |= any(map(_tells, leaves_of(answer).named))
        pairs = zip(copy.tensors(), example.tensors(), strict=False)
        writes |= any(not pytree.equal(now, then) for now, then in pairs)
        moved, has_grown = _moves_on(workload, call, copy, state)
        grows |= has_grown
        if mode == "training" and workload.step is None:
            _check_trains(call, answer, example)
        moves |= moved
    return PlainCall(writes, answers, tuple(moves), grows)


def _answer(workload: Workload, call: Callable[..., Any], copy: Example, example: Example) -> Any:
    try:
        return call_plainly(call, copy)
    except BaselineError as error:
        if workload.step is None:
            raise
        call_plainly(workload.step, example.clone())  # which raises if it is the step's own error
        raise InternalError(f"a copy of the training step fails where the step itself does not: {error}") from error


def _check_trains(call: Callable[..., Any], answer: Any, example: Example) -> None:
    try:
        runner(call, example, "training", original=call, restores=True)()
    except WorkloadError:
        raise
    except Exception as error:  # the user's model may raise anything, and so may its surrogate loss
        if loss_of(answer) is answer:  # the model's own
            raise make_baseline_error(error, example) from error
        raise WorkloadError(
            f"the model runs, but the backward pass of the mean square of its outputs raised {format_error(error)} "
            f"(its inputs were {describe_example(example) or 'none'}): give a torchwise.TrainStep with its loss"
        ) from error


def _moves_on(
    workload: Workload, call: Callable[..., Any], copy: Example, first: State
) -> tuple[dict[str, None], bool]:
    """Call once more, and return the paths of the changes, and whether a tensor there took another shape.

    Changes by the first call alone are made for good, such as a cache of positions, and stay. If a second call fails,
    as the first one filled a cache, its changes are undone.
    """
    moved, grown = _moves(workload, copy, first), bool(first.find_grown())
    if not moved:
        return {}, False
    second = State.from_call(None if workload.step else call, copy.args, copy.kwargs)
    try:
        is_done = takes_within_bounds(call, copy.args, copy.kwargs)
    except Exception:  # a model may raise anything, and may allow only one call
        is_done = False
    if not is_done:
        first.restore()
    else:
        moved, grown = _moves(workload, copy, second), bool(second.find_grown())
        if moved and grown:
            grown = _still_grows(workload, call, copy)
        second.restore()
    return dict.fromkeys(moved), bool(moved) and grown


def _still_grows(workload: Workload, call: Callable[..., Any], copy: Example) -> bool:
    """Call on, and return whether the last call still gave the state another shape.

    A window, such as the last four calls, is full after a few. Calls that fail meanwhile did grow so far.
    """
    try:
        if not all(takes_within_bounds(call, copy.args, copy.kwargs) for _ in range(MAX_WINDOW)):
            return True
        before = State.from_call(None if workload.step else call, copy.args, copy.kwargs)
        if not takes_within_bounds(call, copy.args, copy.kwargs):
            return True
    except Exception:  # a model may raise anything, such as where a cache is full
        return True
    return bool(before.find_grown())


def _moves(workload: Workload, copy: Example, state: State) -> list[str]:
    """Return the paths of a call's changes for the next one.

    Input tensors, which are passed each time, do not count. Neither do the counts of batch normalisation in training,
    which no call in training reads.
    """
    tensors = (
        path
        for path, leaf in pytree.list_named_leaves((copy.args, dict(copy.kwargs)))
        if isinstance(leaf, torch.Tensor)
    )
    known = {f"input {path}" for path in tensors}
    if workload.module is not None:
        norms = (n for n, part in workload.module.named_modules() if isinstance(part, NormBase))
        known |= {f"{name}.{buffer}".lstrip(".") for name in norms for buffer in STATISTICS}
    return [path for path in state.changes() if path not in known]


def _tells(leaf: tuple[str, Any]) -> bool:
    """Return whether a leaf of an answer can be compared, which is assumed for kinds that cannot be inspected."""
    found = leaf[1]
    if not isinstance(found, torch.Tensor):
        return found is not None
    with contextlib.suppress(Exception):
        return not bool(found.detach().isnan().all())  # without elements, all are
    return True


MIN_LEVEL = logging.INFO
"""Below this a line is for debugging, and usually switched off."""
NOT_THE_MODELS = "torch"
"""PyTorch's loggers report how a call runs, and not the model's own messages."""


def prints(call: Callable[[], Any]) -> bool:
    """Make the call once, and return whether it prints or logs in this thread. Writing to a stream does not count.

    Loggers count even if they are disabled here, as they may be enabled in the program.
    """
    thread, heard = threading.get_ident(), False
    shown, is_enabled = builtins.print, logging.Logger.isEnabledFor

    def show(*args: Any, **kwargs: Any) -> None:
        nonlocal heard
        heard |= threading.get_ident() == thread
        shown(*args, **kwargs)

    def would_log(logger: logging.Logger, level: int) -> bool:
        nonlocal heard
        is_own = logger.name.partition(".")[0] != NOT_THE_MODELS and threading.get_ident() == thread
        heard |= is_own and level >= MIN_LEVEL
        return is_enabled(logger, level)

    with mock.patch.object(builtins, "print", show), mock.patch.object(logging.Logger, "isEnabledFor", would_log):
        call()
    return heard
