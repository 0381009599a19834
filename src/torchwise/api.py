"""The Python interface: `tune`, `apply`, `optimize`."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torchwise.environment import default_device
from torchwise.errors import InputError, StalePlanError
from torchwise.plan import Numerics, Plan
from torchwise.random_state import kept_random
from torchwise.records import Decision, Trial
from torchwise.records import Study as StudyRecord
from torchwise.workload import DEFAULT_CALLS, Example, Workload, WorkloadSpec
from torchwise.workload.user_inputs import device_of, name_of, read_workload

if TYPE_CHECKING:
    from torchwise.runtime import OptimizedFunction, OptimizedModule, OptimizedStep
    from torchwise.runtime.fallback_reason import Fallback
    from torchwise.study import Request
    from torchwise.workload.train_step import TrainStep

logger = logging.getLogger("torchwise")


class Study:
    """The result of tuning. It shows itself as a table on a terminal and as a page in a notebook.

    Attributes:
        record: the whole result, as it is stored.
    """

    def __init__(self, record: StudyRecord, store: str | None = None) -> None:
        self.record = record
        self._store = store  # None if it is the one that commands use by default

    @property
    def decision(self) -> Decision:
        """The plan to apply, or none, and why."""
        assert self.record.decision is not None, "tune returns decided studies only"
        return self.record.decision

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every candidate that was tried."""
        return self.record.trials

    def to_dict(self) -> dict[str, Any]:
        """Return schema `torchwise.study/1`."""
        return self.record.to_dict()

    def save_html(self, path: str | Path) -> None:
        """Write a self-contained page."""
        from torchwise.report import write_html

        write_html(self.record, Path(path), store=self._store)

    def save_json(self, path: str | Path) -> None:
        """Write schema `torchwise.study/1`."""
        from torchwise.report import write_json

        write_json(self.record, Path(path))

    def __rich__(self) -> Any:
        from torchwise.report import render_study

        return render_study(self.record, store=self._store)

    def _repr_html_(self) -> str:
        from torchwise.report import render_html

        return render_html(self.record, store=self._store)

    def __repr__(self) -> str:
        return f"<Study {self.record.id} of {self.record.workload.target}: {self.decision.reason}>"


@kept_random()
def tune(
    model: Callable[..., Any] | Workload | str,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    examples: Sequence[Example] | None = None,
    calls: int = DEFAULT_CALLS,
    restarts: int = 1,
    allow: Numerics | str = Numerics.SAME_PRECISION,
    effort: str = "standard",
    budget: float | None = None,
    objective: str = "latency",
    mode: str = "inference",
    device: str | None = None,
    plans: Iterable[Plan] | None = None,
    memory_limit: int | None = None,
    store: str | None = None,
    fresh: bool = False,
    cold: bool = False,
    progress: bool = True,
) -> Study:
    """Find the fastest verified way to run `model` on this machine.

    Candidates run in processes of their own. Nothing is compiled in this one, and the model is not changed. Neither are
    the optimizer and all other parts of a `TrainStep`.

    Args:
        model: an `nn.Module`, a function, a `TrainStep`, a `Workload`, or a target such as "zoo:tutorial.fusion_demo".
        args: example arguments, a tuple (or one tensor). For a `TrainStep` a batch, `(inputs, *targets)`.
        kwargs: example keyword arguments.
        examples: several example inputs with weights, in place of `args`.
        calls: calls expected over the lifetime that the decision is for.
        restarts: process starts over that lifetime.
        allow: "exact", "same-precision" (default), "lower-precision" or "substituted" (other operators).
        effort: "quick", "standard" or "thorough".
        budget: seconds of search after which no further trial starts. None uses the effort's own, or no limit if plans
            are named.
        objective: "latency", "throughput" or "memory".
        mode: "inference" or "training" (with a backward pass). A `TrainStep` is always tuned for training, in whole
            steps.
        device: "cpu" or "cuda". The default is the device of the model and its inputs, or for a target "cuda" if there
            is one.
        plans: try exactly these instead of searching. Each may take as long as with effort "thorough".
        memory_limit: bytes that a call may take at its peak beside weights, optimizer state and inputs. Plans that take
            more are not chosen.
        store: URL or file of the store, by default in the user's data directory.
        fresh: forget the stored study, which targets of one structure share, and measure anew.
        cold: also time the chosen plan with cold processor caches, emptied before each call. Decisions still rest on
            calls one after the other.
        progress: whether to show the search's progress.

    Raises:
        InputError: an argument cannot be used, or the model cannot be sent to a worker.
        BaselineError: the model raises on its own inputs.
    """
    from torchwise.report import Progress
    from torchwise.store import open_storage
    from torchwise.study import Silent, run_study
    from torchwise.trial import ProcessLauncher
    from torchwise.trial.loading import save

    request, workload = _make_request(
        model,
        args,
        kwargs,
        examples=examples,
        calls=calls,
        restarts=restarts,
        allow=allow,
        effort=effort,
        budget=budget,
        objective=objective,
        mode=mode,
        device=device,
        plans=plans,
        memory_limit=memory_limit,
        fresh=fresh,
        cold=cold,
    )
    with tempfile.TemporaryDirectory(prefix="torchwise-model-") as folder, open_storage(store) as storage:
        if workload is not None:
            request = replace(request, source=str(Path(folder, "model.pt")))
            save(workload, str(request.source))
        shown: AbstractContextManager[Any] = Progress() if progress else nullcontext(Silent())
        with shown as listener:
            found = run_study(request, storage, ProcessLauncher(), listener)
            return Study(found, storage.place if store else None)


def _make_request(
    model: Any,
    args: Any,
    kwargs: dict[str, Any] | None,
    *,
    examples: Sequence[Example] | None = None,
    calls: int = DEFAULT_CALLS,
    restarts: int = 1,
    allow: Numerics | str = Numerics.SAME_PRECISION,
    effort: str = "standard",
    budget: float | None = None,
    objective: str = "latency",
    mode: str = "inference",
    device: str | None = None,
    plans: Iterable[Plan] | None = None,
    memory_limit: int | None = None,
    fresh: bool = False,
    cold: bool = False,
) -> tuple[Request, Workload | None]:
    """Return the request for a study from the arguments of `tune`, and the live workload, or None for a target.

    Raises:
        InputError: an argument cannot be used.
    """
    from torchwise.runtime import unwrap
    from torchwise.study import Request
    from torchwise.trial import ProcessSettings
    from torchwise.workload.differences import pack_details
    from torchwise.workload.identity import structure
    from torchwise.workload.structure_details import details_of

    if isinstance(plans, Plan):
        raise InputError("plans is one Plan, but must be several, or one in a list: plans=[plan]")
    model = model if isinstance(model, (str, Workload)) else unwrap(model)
    workload = read_workload(model, args, kwargs, examples)
    if workload is not None and workload.step:
        mode = "training"
    name = name_of(model)
    spec = WorkloadSpec(
        name,
        device=device or (device_of(workload) if workload else default_device()),  # type: ignore[arg-type]
        mode=mode,  # type: ignore[arg-type]
        objective=objective,  # type: ignore[arg-type]
        calls=calls,
        restarts=restarts,
        memory_limit=memory_limit,
    )
    chosen = tuple(plans) if plans is not None else None
    request = Request(spec, Numerics.of(allow), effort, budget, chosen, fresh=fresh, cold=cold)
    if workload is None:
        return request, None
    # The structure is read here, in the process that has the source of a script or notebook.
    code, details = structure(workload.call), pack_details(details_of(workload.call))
    settings = ProcessSettings.from_this_process()
    request = replace(request, settings=settings, structure=code, structure_details=details)
    return request, replace(workload, name=name)


@overload
def apply(
    model: TrainStep,
    decision: Decision | Study,
    *,
    strict: bool = False,
    borrow: bool = False,
    canary: None = None,
    store: str | None = None,
) -> OptimizedStep: ...


@overload
def apply(
    model: Callable[..., Any],
    decision: Decision | Study,
    *,
    strict: bool = False,
    borrow: bool = False,
    canary: int | None = None,
    store: str | None = None,
) -> OptimizedModule | OptimizedFunction: ...


def apply(
    model: Callable[..., Any],
    decision: Decision | Study,
    *,
    strict: bool = False,
    borrow: bool = False,
    canary: int | None = None,
    store: str | None = None,
) -> OptimizedModule | OptimizedFunction | OptimizedStep:
    """Return `model` running by a decision. The model itself is not changed.

    A decision for another machine, another torch or another model is stale and never trusted. The original then answers
    every call, and a warning says why. People's approvals of the plan (`torchwise plans pin`, `approve`, `reject`) are
    looked up once, here. If the store cannot be reached, a warning says so, and the decision runs as it is.

    Args:
        model: the model that the decision was made for.
        decision: a result of `tune`, or of `Decision.from_json`.
        strict: raise instead, for a stale decision, a plan that is not permitted, or a store that cannot be read.
        borrow: let a captured plan return the memory that its next call overwrites, which saves a copy of each output.
            It is only for a program that is done with an answer before it requests the next.
        canary: have the original answer one call in so many as well, and give the plan up if the answers differ by more
            than rounding. None compares nothing.
        store: URL or file of the store with the approvals, by default in the user's data directory.

    Raises:
        InputError: `canary` is no number of calls, or the decision is one for training.
        StalePlanError: with `strict`, the decision does not hold here.
        RefusedPlanError: with `strict`, no verified plan is permitted.
        StorageError: with `strict`, the store cannot be read.
    """
    from torchwise.runtime import stale_because, unwrap
    from torchwise.runtime.fallback_reason import Fallback, FallbackReason
    from torchwise.study.apply_approvals import apply_stored_approvals

    decision = decision.decision if isinstance(decision, Study) else decision
    if not isinstance(decision, Decision):
        raise InputError(
            f"decision is {decision!r:.80}, but must be a Decision or a Study: Decision.from_json reads what "
            "`torchwise plans show` prints"
        )
    model = unwrap(model)
    stale = stale_because(model, decision)
    if stale and strict:
        raise StalePlanError(f"the decision is stale ({stale}): tune again")
    if stale:
        logger.warning("torchwise: the decision is stale (%s), so the original answers: tune again", stale)
        refusal = Fallback(FallbackReason.STALE_DECISION, stale)
        return wrap_model(model, decision, refusal, borrow=borrow, canary=canary)
    found = apply_stored_approvals(decision, store, strict=strict)
    refused = Fallback(FallbackReason.PLAN_REFUSED, found.refusal) if found.refusal else None
    return wrap_model(model, found.decision, refused, borrow=borrow, canary=canary)


def wrap_model(
    model: Any, decision: Decision, refusal: Fallback | None = None, **options: Any
) -> OptimizedModule | OptimizedFunction | OptimizedStep:
    """Return `model` running by a decision that holds here, regardless of approvals."""
    import torch

    from torchwise.runtime import OptimizedFunction, OptimizedModule, OptimizedStep
    from torchwise.workload.train_step import TrainStep

    if isinstance(model, TrainStep):
        return OptimizedStep(model, decision, refusal, **options)
    wrap = OptimizedModule if isinstance(model, torch.nn.Module) else OptimizedFunction
    return wrap(model, decision, refusal, **options)


@overload
def optimize(model: TrainStep, args: Any = None, kwargs: None = None, **options: Any) -> OptimizedStep: ...


@overload
def optimize(
    model: Callable[..., Any],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    canary: int | None = None,
    background: bool = False,
    **options: Any,
) -> OptimizedModule | OptimizedFunction: ...


def optimize(
    model: Callable[..., Any],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    canary: int | None = None,
    background: bool = False,
    **options: Any,
) -> OptimizedModule | OptimizedFunction | OptimizedStep:
    """Tune and apply: return `model` running in the fastest verified way.

    A stored result for the same model, inputs and machine is reused: a later start only profiles the model, which takes
    seconds. In inference the plan answers while gradients are off: call the result under `torch.no_grad()`.

    Args:
        model: an `nn.Module`, a function or a `TrainStep`.
        args: as for `tune`.
        kwargs: as for `tune`.
        canary: as for `apply`.
        background: return at once, and search in another process. The original answers until a quick search has
            verified a plan. That plan answers until a search of the `effort` has verified a better one. The result's
            attribute `background` tells the progress, waits for the search and stops it.
        **options: as for `tune`. In the background, `progress` has no effect.

    Raises:
        InputError: an argument cannot be used, or in the background, `mode` is not inference.
    """
    if isinstance(model, (str, Workload)):
        raise InputError(f"model is of type {type(model).__name__}, but optimize needs the module or function itself")
    if background:
        return _optimize_in_background(model, args, kwargs, canary, **options)
    return apply(model, tune(model, args, kwargs, **options), canary=canary, store=options.get("store"))


def _optimize_in_background(
    model: Any, args: Any, kwargs: dict[str, Any] | None, canary: int | None, **options: Any
) -> OptimizedModule | OptimizedFunction:
    from torchwise.background import Order, initial_decision, start
    from torchwise.runtime.fallback_reason import Fallback, FallbackReason

    store = options.pop("store", None)
    options.pop("progress", None)
    request, workload = _make_request(model, args, kwargs, **options)
    if request.workload.mode != "inference":
        raise InputError(
            f"mode is {request.workload.mode!r}, but only plans for inference are swapped in from the background: "
            "tune first, then apply"
        )
    assert workload is not None, "optimize takes no target"
    decision = initial_decision(workload, request)
    searching = Fallback(FallbackReason.TUNING_IN_BACKGROUND)
    optimized: Any = wrap_model(workload.call, decision, searching, canary=canary)
    order = Order(request, tuple(dict.fromkeys(("quick", request.effort))), store, tuple(sys.path))
    vars(optimized)["background"] = start(optimized, workload, order, canary)
    served: OptimizedModule | OptimizedFunction = optimized
    return served
