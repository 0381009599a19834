"""Apply a plan to the forward of a model in another library's training loop: Lightning, Hugging Face, Accelerate.

Such a loop owns the optimizer, scaling, accumulation, clipping and precision. A plan leaves these alone, and only
changes the computation of the model's forward, and so of the backward.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any, Unpack

import torch

from torchwise._torch.modules import CALL_IMPL, MODULE_CALL
from torchwise.compile.forward_entry import has_own_call
from torchwise.compile.train_step import written_in_class
from torchwise.errors import InputError
from torchwise.keywords import checked_keywords
from torchwise.plan.workload_spec import TuneKeywords
from torchwise.records import Decision
from torchwise.runtime import Dispatcher, Statistics, stale_because
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.served import NOT_VERIFIED
from torchwise.runtime.statistics import EAGER_DECISION
from torchwise.runtime.training.distributed import PATIENCE_S, Ranks, find_rank_refusal
from torchwise.runtime.training.step import OTHER_RANK, tune
from torchwise.study.apply_approvals import apply_stored_approvals
from torchwise.workload import Example
from torchwise.workload.module_state import kept_state, preserve_generators
from torchwise.workload.step_state import loss_of
from torchwise.workload.train_step import find_sharded_modules, unwrap_ddp

logger = logging.getLogger("torchwise")

_NOT_SHARED = ("forward", "_call_impl", "_compiled_call_impl", "_is_accelerate_prepared")
"""Attributes that a model does not share with its copy: replaced ones, and those that loops add."""
_LOOP_POSITION = "_current_fx_name"
"""Lightning's position in its loop, set on a LightningModule at every hook. A plan that checks it would never hold."""


@checked_keywords(TuneKeywords)
class PlannedForward:
    """Runs the forward of a live model by a plan in training, in place, until `close`.

    The model stays the same object, with its hooks, wrappers and checkpoints. Only its `forward` is replaced meanwhile.
    The loop calls `between_steps` before each step::

        planned = PlannedForward(model, calls=100_000)   # before it is wrapped, as by `accelerator.prepare`
        for x, y in loader:
            planned.between_steps()
            ...                                          # the step, as it is written
        planned.close()

    The first step shows the kind of the model's inputs and its precision (autocast). Before the second step, the plan
    is tuned if there is no decision. It is tested on the first step's inputs, on every rank, without side effects. If
    it fails on one rank, no rank uses it. From then on the plan answers training calls of that kind. All other calls
    run the original forward.

    Args:
        model: the model or a part of it, with or without DistributedDataParallel.
        decision: the result of `torchwise.tune(model, …, mode="training")`, or None to tune after the first step.
        patience: seconds for ranks to wait for each other.
        **options: as for `torchwise.tune`, if there is no decision.

    Raises:
        InputError: the model is sharded, there are options besides a decision, or the decision is for inference.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        decision: Decision | None = None,
        *,
        patience: float = PATIENCE_S,
        **options: Unpack[TuneKeywords],
    ) -> None:
        self._model = unwrap_ddp(model)
        _check(self._model, decision, options)
        self._decision, self._options, self._patience = decision, options, patience
        self._before = vars(self._model).get("forward")
        self._written: Callable[..., Any] = self._model.forward
        functools.update_wrapper(self, self._written)
        self._first_inputs: _FirstInputs | None = None
        self._steps = 0
        self._dispatcher: Dispatcher | None = None
        self._statistics = Statistics()
        vars(self._model)["forward"] = self

    def __repr__(self) -> str:
        return f"<PlannedForward of {type(self._model).__qualname__}: {self._statistics!r}>"

    @property
    def decision(self) -> Decision | None:
        """The decision, or None before the second step."""
        return self._decision

    @property
    def statistics(self) -> Statistics:
        """Statistics of the loop's calls of this forward. They are kept after `close`."""
        return self._statistics

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the model's forward does."""
        if not (self._model.training and torch.is_grad_enabled()):
            return self._written(*args, **kwargs)
        if (
            self._dispatcher is not None
            and self._first_inputs is not None
            and self._first_inputs.autocast == _autocast(self._device)
        ):
            same = _same_attributes(self._model, _unwrap_autocast(self._dispatcher.original))
            with same, torch.autocast(self._device, enabled=False):  # the dispatched call enters autocast itself
                return self._dispatcher(*args, **kwargs)
        if self._first_inputs is None and self._steps < 2:
            self._first_inputs = _FirstInputs(Example(args, kwargs).clone(), _autocast(self._device))
        return self._written(*args, **kwargs)

    def between_steps(self) -> None:
        """Tune and test the plan before the second step.

        Every rank must call this before each step.

        Raises:
            TorchwiseError: as for `torchwise.training.tune`. A decision that fails or is stale is no error.
        """
        self._steps += 1
        if self._steps == 2 and vars(self._model).get("forward") is not None:
            with Ranks(self._patience) as ranks:
                self._meet(ranks)

    def close(self) -> None:
        """Restore the model's original forward."""
        if self._dispatcher is not None:
            self._dispatcher.close()
            self._dispatcher = None
        self._steps = max(self._steps, 2)  # later wrappers still call this forward: do not start again
        if vars(self._model).get("forward") is self:
            vars(self._model).pop("forward")
            if self._before is not None:
                vars(self._model)["forward"] = self._before

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as the original forward, as models copy and pickle their attributes."""
        return written_in_class, (self._model,)

    @property
    def _device(self) -> str:
        return next((p.device.type for p in self._model.parameters()), "cpu")

    def _meet(self, ranks: Ranks) -> None:
        (are_ready,) = ranks.everywhere(self._first_inputs is not None)
        if not are_ready or self._first_inputs is None:
            name = type(self._model).__name__
            logger.warning("torchwise: no search runs, as the first step did not call the forward of %s", name)
            return
        call = _make_shared_copy(self._model, self._written, self._first_inputs.autocast, self._device)
        if self._decision is None:
            example = self._first_inputs.example
            tune_options: dict[str, Any] = {**self._options, "mode": "training", "patience": self._patience}
            self._decision = tune(call, example.args, dict(example.kwargs), **tune_options)
        decided = self._decision
        approved = ranks.broadcast_from_rank0(
            lambda: apply_stored_approvals(decided, self._options.get("store")).decision.to_json()
        )
        self._decision = Decision.from_json(approved)
        found = Dispatcher(call, self._decision)
        refusal = find_rank_refusal(self._decision.plan) if ranks.are_several else None
        refusal = refusal or self._find_refusal(found, call)
        (all_can,) = ranks.everywhere(refusal is None)
        if all_can:
            found.statistics = self._statistics = Statistics(latency=found.statistics.latency)  # rehearsal excluded
            self._dispatcher = found
        elif not self._decision.plan.is_eager:
            logger.warning("torchwise: training goes on as written: %s", refusal or OTHER_RANK)

    def _find_refusal(self, found: Dispatcher, call: torch.nn.Module) -> Fallback | None:
        """Return why the plan cannot be used here, or None."""
        assert self._first_inputs is not None, "the first step comes before the ranks meet"
        if found.decision.plan.is_eager:
            return EAGER_DECISION
        if stale := stale_because(call, found.decision):
            return Fallback(FallbackReason.STALE_DECISION, stale)
        try:
            _rehearse(found, call, self._first_inputs.example, self._device)
        except Exception as error:  # compilation and backward may raise any error: train with the original
            return Fallback(FallbackReason.PLAN_FAILED, f"{type(error).__name__}: {error}")
        counts = found.statistics
        return None if counts.optimized else next(iter(counts.latest.values()), NOT_VERIFIED)


class _FirstInputs:
    def __init__(self, example: Example, autocast: torch.dtype | None) -> None:
        self.example = example
        self.autocast = autocast


class UnderAutocast(torch.nn.Module):
    """A model under autocast. A loop enters autocast around the model, but a plan must contain it."""

    def __init__(self, model: torch.nn.Module, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.device = device
        self.dtype = dtype
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model under autocast."""
        with torch.autocast(self.device, self.dtype):
            return self.model(*args, **kwargs)


def _check(model: torch.nn.Module, decision: Decision | None, options: TuneKeywords) -> None:
    if find_sharded_modules(model):
        raise InputError(
            "the model is sharded (fully_shard), but only the forward of a whole one can be planned: use a TrainStep, "
            "with torchwise.training.apply"
        )
    if decision is not None and options:
        raise InputError(f"the options are {', '.join(options)}, but with a decision nothing is tuned: leave them out")
    if decision is not None and decision.workload.mode != "training":
        raise InputError(f"the decision is for {decision.workload.mode}, but training needs one of mode='training'")
    if isinstance(vars(model).get("forward"), PlannedForward):
        raise InputError(f"the forward of {type(model).__name__} is planned already: close that first")


def _autocast(device: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _make_shared_copy(
    model: torch.nn.Module, written: Callable[..., Any], autocast: torch.dtype | None, device: str
) -> torch.nn.Module:
    """Return a copy of a model that shares its attributes and calls its original forward, without hooks.

    The model itself runs its hooks.
    """
    plain: Any = _make_plain_class(model.__class__)
    shared_copy: torch.nn.Module = plain.__new__(plain)
    names = vars(shared_copy)
    names.update({n: type(v)() if _is_of_hooks(n, v) else v for n, v in vars(model).items() if n not in _NOT_SHARED})
    if getattr(written, "__self__", None) is not model:  # it had been replaced before
        names["forward"] = written
    return shared_copy if autocast is None else UnderAutocast(shared_copy, device, autocast)


def _make_plain_class(cls: Any) -> Any:
    """Return a class whose call is only its forward. The loop's own call does the rest of `cls.__call__`."""
    if not has_own_call(cls) and cls._call_impl is CALL_IMPL:
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    plain = {"__call__": MODULE_CALL, "_call_impl": CALL_IMPL}
    return types.new_class(cls.__name__, (cls,), exec_body=lambda body: body.update({**names, **plain}))


def _unwrap_autocast(shared_copy: Any) -> torch.nn.Module:
    found: torch.nn.Module = shared_copy.model if type(shared_copy) is UnderAutocast else shared_copy
    return found


@contextlib.contextmanager
def _same_attributes(model: torch.nn.Module, shared_copy: torch.nn.Module) -> Iterator[None]:
    """Copy changed attributes from the model to its shared copy, and back after the call."""
    _follow(vars(model), vars(shared_copy))
    try:
        yield
    finally:
        _follow(vars(shared_copy), vars(model))


def _follow(source: dict[str, Any], target: dict[str, Any]) -> None:
    """Copy the attributes that differ. This runs on every call."""
    for name in [name for name in target if name not in source and name not in _NOT_SHARED]:
        del target[name]
    for name, value in source.items():
        if (
            target.get(name, _NOT_SHARED) is value
            or name in (*_NOT_SHARED, _LOOP_POSITION)
            or _is_of_hooks(name, value)
        ):
            continue
        target[name] = value


def _is_of_hooks(name: str, value: Any) -> bool:
    return name.startswith(("_forward_", "_backward_")) and isinstance(value, dict)


def _rehearse(found: Dispatcher, call: torch.nn.Module, example: Example, device: str) -> None:
    """Run forward and backward by the plan, so that all code is compiled, without side effects or stored gradients."""
    trained = [p for p in call.parameters() if p.requires_grad]
    with kept_state(call), preserve_generators(device), torch.enable_grad(), torch.autocast(device, enabled=False):
        for _ in range(2):
            copy = example.clone()
            loss = loss_of(found(*copy.args, **copy.kwargs))
            if loss is not None:
                torch.autograd.grad(loss, trained, allow_unused=True)
