"""Question a candidate: everything that its own process tells a judge, who never runs it.

Each answer is an observation as data. A judge that holds the reference compares them elsewhere.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from torchwise.errors import UnsupportedError, format_error
from torchwise.records import Outcome
from torchwise.verify.call_watch import CallWatch
from torchwise.verify.held_outputs import HeldOutputs
from torchwise.verify.incoming import SUM, make_loss
from torchwise.verify.leaves import leaves_of
from torchwise.verify.observe import Observation, name_of_weight, observe
from torchwise.verify.spot_check import check_retained_outputs, has_room, place_of
from torchwise.verify.stochastic import Samples, collect
from torchwise.verify.surroundings import Surroundings
from torchwise.workload import pytree
from torchwise.workload.workload import Example

SETTLE_S = 0.03
"""Seconds after a call in which work that it left to others would still change the answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """One call to observe.

    Attributes:
        example: the inputs.
        seed: seed of all generators before the call.
        training: whether to run a backward pass, too.
        incoming: seed of the gradient that comes in, as for `make_loss`.
        calls: successive calls to make.
        restores: whether to restore all state of a model afterwards. Its weights and buffers always are.
        then: other values in the same form, to be answered next in the very memory of the first, or None.
        poisons: whether to fill all memory that the candidate allocates with NaN.
        settles: whether to wait, and to see whether the answer still changes.
    """

    example: Example
    seed: int = 0
    training: bool = False
    incoming: int = SUM
    calls: int = 1
    restores: bool = False
    then: Example | None = None
    poisons: bool = False
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Testimony:
    """The answer to a question.

    Attributes:
        observation: everything that the call did, or None if it raised.
        again: the same for the values that came next in the same memory.
        error: the exception that the candidate raised, or "".
        faults: what the call did to its surroundings, in words.
        late: whether the answer changed after the call.
        kinds: the classes of the tensors that the call returned.
        refuses: whether the error says that such inputs are not supported, and nothing else.
    """

    observation: Observation | None
    again: Observation | None = None
    error: str = ""
    faults: tuple[str, ...] = ()
    late: bool = False
    kinds: tuple[str, ...] = ()
    refuses: bool = False


REFUSES = ("not supported", "unsupported", "not implemented", "does not support", "only supports", "supports only")
"""Words of an error that refuses inputs."""


def is_refusal(error: Exception) -> bool:
    """Whether an error says that inputs are not supported, rather than that something went wrong."""
    says_so = isinstance(error, (ValueError, TypeError, RuntimeError)) and any(
        words in str(error).lower() for words in REFUSES
    )
    return isinstance(error, (NotImplementedError, UnsupportedError)) or says_so


class Witness(Protocol):
    """A candidate that can be questioned, in this process or in another one."""

    def list_replaced(self) -> tuple[str, ...]:
        """List the functions of Python, PyTorch and Torchwise that the candidate has replaced."""
        ...

    def list_import_changes(self) -> tuple[str, ...]:
        """List the settings that the candidate changed while it was loaded."""
        ...

    def adopt(self, state: dict[str, torch.Tensor], *, takes: bool = True) -> bool:
        """Return whether the candidate's weights and buffers have the reference's names and shapes.

        It starts every question from them if `takes` says so, and otherwise from its own.
        """
        ...

    def answer(self, question: Question) -> Testimony:
        """Make the calls of a question."""
        ...

    def hold(self, first: Example, second: Example | None) -> str:
        """Keep an answer while other calls are made. Return how it, or one of all earlier answers, changed, or "".

        If `second` is None, only earlier answers are looked at.
        """
        ...

    def collect_noise(self, question: Question) -> Samples:
        """Return the answers of successive calls as a matrix, for a candidate that draws random numbers.

        Gradients are among them in training.
        """
        ...


class LocalWitness:
    """A candidate in this process.

    Args:
        call: the candidate.
        before: the surroundings before its code was loaded, or None to start from the present ones.
    """

    def __init__(self, call: Callable[..., Any], before: Surroundings | None = None) -> None:
        self._call = call
        self._surroundings = before or Surroundings()
        self._module = call if isinstance(call, torch.nn.Module) else None
        self._start: dict[str, torch.Tensor] = {}
        self._has_same_weights = False
        self._held = HeldOutputs()
        self._inputs = HeldOutputs()
        self._import_changes = tuple(self._surroundings.list_changed_settings())
        self._surroundings.accept_settings()

    def adopt(self, state: dict[str, torch.Tensor], *, takes: bool = True) -> bool:
        """Return whether weights and buffers have the reference's names and shapes, and take them over if asked to."""
        own = live_state_of(self._module)
        is_same = {n: t.shape for n, t in own.items()} == {n: t.shape for n, t in state.items()}
        self._has_same_weights = is_same
        start = state if is_same and takes else own
        self._start = {name: tensor.detach().clone() for name, tensor in start.items()}
        return is_same

    def answer(self, question: Question) -> Testimony:
        """Make the calls of a question, and tell the candidate's errors as part of the answer."""
        kept: list[Any] = []
        watch, example = CallWatch(self._call, copies=question.settles), _Reused(question.example)
        try:
            self._restart()
            with poison_memory() if question.poisons else contextlib.nullcontext():
                first, again = self._observe(watch, example, question, kept)
        except Exception as error:  # a candidate may raise anything
            text, found = format_error(error), self._list_faults(watch)
            return Testimony(None, error=text, faults=found, refuses=is_refusal(error))
        outputs = kept[-1][0]
        late = question.settles and again is None and self._changes_late(watch.early, outputs)
        self._held.hold(*kept)
        faults = self._list_faults(watch, *self._find_lasting_changes(question))
        self._inputs = HeldOutputs()
        self._inputs.hold(example.clone().args, example.clone().kwargs)
        return Testimony(first, again, "", faults, late, list_kinds(outputs))

    def _observe(
        self, watch: CallWatch, example: _Reused, question: Question, kept: list[Any]
    ) -> tuple[Observation, Observation | None]:
        original = _without_state if self._module is None else self._module  # a module may be false

        def run(inputs: Any) -> Observation:
            return observe(
                watch,
                original,
                inputs,
                seed=question.seed,
                training=question.training,
                calls=question.calls,
                restores=question.restores,
                loss=watch.watch_loss(make_loss(question.incoming)),
                kept=kept,
            )

        first = run(example)
        if question.then is None:
            return first, None
        self._restart()
        example.refill(question.then)
        return first, run(example)

    def _restart(self) -> None:
        """Restore weights and buffers, and nothing else: a cache shows only if it is left alone."""
        with torch.no_grad():
            for name, tensor in live_state_of(self._module).items():
                if name in self._start and not torch.equal(tensor, self._start[name]):
                    tensor.copy_(self._start[name])

    def _changes_late(self, early: list[torch.Tensor], outputs: Any) -> bool:
        """Whether the last answer changes while nothing is called: other threads or streams still write to it.

        A model's own state that it returned is not looked at, as it was restored since.
        """
        time.sleep(SETTLE_S)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        restored = {place_of(tensor) for tensor in live_state_of(self._module).values()} - {0}
        tensors = leaves_of(outputs).tensors
        pairs = zip(tensors, early, strict=False)
        is_same = all(pytree.equal(now, then) for now, then in pairs if place_of(now) not in restored)
        return not is_same or len(tensors) != len(early)

    def _find_lasting_changes(self, question: Question) -> list[str]:
        """List what the call did to earlier inputs, and what it would do to code that needs gradients."""
        found = ["it writes to the inputs of an earlier call"] if self._inputs.find_change() else []
        if question.settles and not question.training and not question.restores:
            watch, copy = CallWatch(self._call), question.example.clone()
            with torch.enable_grad(), contextlib.suppress(Exception):  # it may work without gradients alone
                watch(*copy.args, **copy.kwargs)
            found += watch.faults
        return found

    def _list_faults(self, watch: CallWatch, *more: str) -> tuple[str, ...]:
        settings = [f"it changes {name}" for name in self._surroundings.list_changed_settings()]
        return tuple(dict.fromkeys([*watch.faults, *more, *settings]))

    def list_replaced(self) -> tuple[str, ...]:
        """List the functions that the candidate has replaced since before it was loaded."""
        return tuple(self._surroundings.list_replaced())

    def list_import_changes(self) -> tuple[str, ...]:
        """List the settings that the candidate changed while it was loaded."""
        return self._import_changes

    def hold(self, first: Example, second: Example | None) -> str:
        """Keep an answer while other calls are made. Return how it, or one of all earlier answers, changed, or ""."""
        return hold_answer(self._call, first, second) or self._held.find_change()

    def collect_noise(self, question: Question) -> Samples:
        """Return the answers of successive calls as a matrix."""
        self._restart()
        weights = self._module if self._has_same_weights else None
        run = partial(answer_all, self._call, question, weights)
        return np.asarray(collect(run, question.calls, question.seed)[0])


def answer_all(call: Callable[..., Any], question: Question, weights: Any) -> Any:
    """Return the outputs of a call, and in training the gradients of its inputs, and of the weights of a model."""
    copy = question.example.clone()
    with torch.set_grad_enabled(question.training):
        outputs = call(*copy.args, **copy.kwargs)
    loss = make_loss(question.incoming)(outputs) if question.training else None
    if loss is None:
        return outputs
    named = sorted(live_state_of(weights).items())
    wanted = [t for t in (*copy.tensors(), *(t for _, t in named)) if t.requires_grad]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return outputs, [torch.zeros_like(t) if g is None else g for g, t in zip(found, wanted, strict=True)]


def can_hold_answer(call: Callable[..., Any], first: Example, second: Example) -> bool:
    """Whether a model that keeps state, such as a cache, can make the calls of `hold_answer` one after the other."""
    return has_room(call, first, second, first, second, second)


def hold_answer(call: Callable[..., Any], first: Example, second: Example | None) -> str:
    """Keep an answer while other calls are made. Return how it changed, or "". Without a second input it cannot."""
    if second is None:
        return ""
    try:
        for example in (first.clone(), second.clone()):  # so that a refusal is not taken for an output that is lost
            with torch.no_grad():
                call(*example.args, **example.kwargs)
        check = check_retained_outputs(call, _answer_anew, first, second)
    except Exception as error:  # a candidate may raise anything
        return "" if is_refusal(error) else f"it raised {format_error(error)}"
    return "" if check.outcome is Outcome.PASS else check.detail


def list_kinds(outputs: Any) -> tuple[str, ...]:
    """Return the classes of the tensors of an answer. Those of inference mode are of no use to a backward pass."""
    return tuple(
        f"{type(tensor).__qualname__}{' of inference mode' if tensor.is_inference() else ''}"
        for tensor in leaves_of(outputs).tensors
    )


def _without_state(*_args: Any, **_kwargs: Any) -> None:
    """Stand for a function whose state is its own business."""


def _answer_anew(*_args: Any, **_kwargs: Any) -> Any:
    """Stand for a reference whose answers neither change nor share memory."""
    return torch.zeros(1)


def live_state_of(call: Any) -> dict[str, torch.Tensor]:
    """Return weights and buffers by their names in the plain model. A quantized one keeps other objects, too."""
    state = call.state_dict(keep_vars=True) if isinstance(call, torch.nn.Module) else {}
    return {name_of_weight(name): value for name, value in state.items() if isinstance(value, torch.Tensor)}


def state_of(call: Any) -> dict[str, torch.Tensor]:
    """Return copies of a model's weights and buffers by name, or nothing for a function."""
    return {name: tensor.detach().clone() for name, tensor in live_state_of(call).items()}


class _Reused:
    """An example whose copies are one and the same, so that new values come in the memory of the old ones."""

    def __init__(self, example: Example) -> None:
        self._copy = example.clone()

    def clone(self) -> Example:
        """Return the only copy, with the containers of its own."""
        return replace(self._copy, kwargs=dict(self._copy.kwargs))

    def refill(self, other: Example) -> None:
        """Write other values into its tensors."""
        with torch.no_grad():
            for tensor, value in zip(self._copy.tensors(), other.tensors(), strict=True):
                # By `data`, which counts no version: an answer may be kept for a tensor and its version.
                pytree.base_of(tensor.data).copy_(pytree.base_of(value.detach()))
                tensor.grad = None


@contextlib.contextmanager
def poison_memory() -> Iterator[None]:
    """Fill all memory that PyTorch allocates without values with NaN, or with the largest whole number."""
    was_on, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic: Any = torch.utils.deterministic
    fills = deterministic.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        deterministic.fill_uninitialized_memory = True
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was_on, warn_only=warned)
            deterministic.fill_uninitialized_memory = fills
