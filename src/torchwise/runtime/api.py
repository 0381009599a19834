"""The Python interface: `tune` and `apply`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torchwise.environment import default_device
from torchwise.errors import InputError, StalePlanError
from torchwise.keywords import checked_keywords
from torchwise.plan import Numerics, Plan
from torchwise.plan.effort import EffortName
from torchwise.plan.requirements import Property, PropertyName
from torchwise.plan.workload_spec import DEFAULT_CALLS, Batch, Device, Mode, NumericsName, Objective, Sizes, TuneOptions
from torchwise.random_state import kept_random
from torchwise.records import Decision, Trial
from torchwise.records import Study as StudyRecord
from torchwise.records.listener import Listener
from torchwise.records.steps import PlanStep, list_steps

if TYPE_CHECKING:
    from torchwise.runtime import OptimizedFunction, OptimizedModule, OptimizedStep
    from torchwise.runtime.fallback_reason import Fallback
    from torchwise.study import Caches, Request
    from torchwise.workload import Example, Workload
    from torchwise.workload.train_step import TrainStep

logger = logging.getLogger("torchwise")


class Study:
    """The result of tuning. It prints as a table on a terminal, and displays as a page in a notebook.

    Attributes:
        record: the complete result, as it is stored.
    """

    def __init__(self, record: StudyRecord, store: str | None = None) -> None:
        self.record = record
        self._store = store  # None for the default store

    @property
    def decision(self) -> Decision:
        """The plan to apply, and the reason for it."""
        assert self.record.decision is not None, "tune returns only decided studies"
        return self.record.decision

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every candidate that was tried."""
        return self.record.trials

    def steps(self, plan: Plan | None = None) -> tuple[PlanStep, ...]:
        """Return a plan step by step, built up from eager, with this study's trials: by default the decided plan.

        `tune` with `plans=[step.plan for step in study.steps()]` tries those that have no trial yet.
        """
        return list_steps(self.record, plan)

    def to_dict(self) -> dict[str, Any]:
        """Return schema `torchwise.study/1`."""
        return self.record.to_dict()

    def save_html(self, path: str | Path) -> None:
        """Write a self-contained page."""
        from torchwise.records.files import write_atomically

        write_atomically(self._repr_html_(), path)

    def save_json(self, path: str | Path) -> None:
        """Write schema `torchwise.study/1`."""
        from torchwise.records.files import write_json

        write_json(self.record, path)

    def __rich__(self) -> Any:
        from torchwise.report import render_study

        return render_study(self.record, store=self._store)

    def _repr_html_(self) -> str:
        from torchwise.report import render_html

        return render_html(self.record, store=self._store)

    def __repr__(self) -> str:
        return f"<Study {self.record.id} of {self.record.workload.target}: {self.decision.reason}>"


@kept_random()
@checked_keywords()
def tune(
    model: Callable[..., Any] | Workload | str,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    examples: Sequence[Example] | None = None,
    calls: float = DEFAULT_CALLS,
    restarts: int = 1,
    allow: Numerics | NumericsName = Numerics.SAME_PRECISION,
    effort: EffortName = "standard",
    budget: float | None = None,
    objective: Objective = "latency",
    mode: Mode = "inference",
    device: Device | None = None,
    plans: Iterable[Plan] | None = None,
    memory_limit: int | str | None = None,
    latency_limit: float | str | None = None,
    batch: Batch = "as-given",
    sizes: Sizes = "as-given",
    tolerance: float | None = None,
    metric: str | None = None,
    require: Iterable[Property | PropertyName] = (),
    store: str | None = None,
    fresh: bool = False,
    cold: bool = False,
    wait: bool = False,
    compile_timeout: float | None = None,
    iterations: int | None = None,
    fullgraph: bool = False,
    workers: int | None = 1,
    progress: bool = True,
) -> Study:
    """Find the fastest verified way to run `model` on this machine.

    Candidates run in separate processes. Nothing is compiled in this process, and the model is not changed. Nor is any
    part of a `TrainStep`, such as its optimizer.

    Args:
        model: an `nn.Module`, a function, a `TrainStep`, a `Workload`, or a target such as "zoo:tutorial.fusion_demo".
        args: example arguments, a tuple or one tensor. For a `TrainStep`, a batch `(inputs, *targets)`.
        kwargs: example keyword arguments.
        examples: several example inputs with weights, instead of `args`.
        calls: expected number of calls over the lifetime of the model.
        restarts: expected process starts over that lifetime.
        allow: the permitted numerics: "exact", "same-precision" (default), "lower-precision", "quantized" (numbers of
            fewer bits) or "substituted" (other operators).
        effort: "quick", "standard" or "thorough".
        budget: seconds for everything, also for profiling the model and for waiting until the device is free. A trial
            that takes longer is ended. None uses the default of `effort`, or no limit with `plans`.
        objective: "latency", "throughput" or "memory".
        mode: "inference" or "training" (with a backward pass). A `TrainStep` is always tuned for training, in whole
            steps.
        device: "cpu" or "cuda". The default is the device of the model and its inputs, or for a target "cuda" if there
            is one.
        plans: try exactly these instead of searching. Each has the time limit of effort "thorough".
        memory_limit: maximum peak memory of a call, besides weights, optimizer state and inputs: bytes, or a size such
            as "2GB" or "2GiB". Plans that need more are not chosen.
        latency_limit: seconds, or a text such as "20ms", within which a batching server answers a request. With it,
            objective "throughput" finds batch size and plan together, on the first example. `serve_batched` uses both.
        batch: "best" with objective "throughput" finds, without a limit, the size of most samples per second in memory.
        sizes: the sizes of inputs to come. "as-given" expects those of the examples. "varying" expects others, too: it
            verifies and times the plans at sizes made from the examples, and rules out plans of one size. The
            dimensions that vary are those that inputs are marked with for `torch.compile` (`mark_dynamic`), or those in
            which examples differ, or else all that the model takes at other sizes. "fixed" rules out dynamic shapes.
        tolerance: with allow "quantized" or "substituted", what numbers of fewer bits and other operators may change:
            the relative error (root mean square) of each output, or the share of the metric that may be lost. With
            "quantized" the default is 0.02, and "substituted" changes nothing without one.
        metric: a function of quality, as "module:function" or "path/file.py:function". It takes the model, or a
            callable in its place, and returns a number: the higher, the better. With "distribution", outputs of
            a model that draws random numbers must keep their distribution, by tests that need no tolerance.
        require: properties of the answers' bits that the plan must have: "deterministic" (equal calls give equal bits,
            also in another process), "batch-invariant" (a sample's answer does not depend on the other samples, nor on
            their number) or "bitwise" (the original model's bits). The decision says what they cost.
        store: URL or file of the store, by default in the user's data directory.
        fresh: delete the stored study, which targets of one structure share, and measure again.
        cold: also time the chosen plan with cold processor caches, which are emptied before each call. The decision
            still uses consecutive calls.
        wait: whether time in which another Torchwise process has the device is no part of `budget`.
        compile_timeout: seconds that one candidate may compile. The time limit of a trial then counts the rest alone.
        iterations: how many times a candidate and eager are timed in each process, from 5 to 400. None goes on until
            the interval of the speed-up is tight.
        fullgraph: whether a model that PyTorch cannot capture as one graph is refused before the search.
        workers: how many plans are tried at once at the most, on a GPU. None stands for up to 4, by cores and memory.
        progress: whether to show the search's progress.

    Raises:
        InputError: an argument cannot be used, or the model cannot be sent to a worker.
        BaselineError: the model raises on its own inputs.
        BudgetError: the budget ends before there is any result.
        GraphBreakError: with `fullgraph`, the graph breaks. The message has the file and the line.
        UnsupportedError: with `fullgraph`, its worker could not say whether the graph breaks.
    """
    options = TuneOptions(
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
        latency_limit=latency_limit,
        batch=batch,
        sizes=sizes,
        tolerance=tolerance,
        metric=metric,
        require=require,
        fresh=fresh,
        cold=cold,
        wait=wait,
        compile_timeout=compile_timeout,
        iterations=iterations,
        fullgraph=fullgraph,
        workers=workers,
    )
    request, workload = make_request(model, args, kwargs, examples, options)
    return search(request, workload, store, progress=progress)


def search(
    request: Request,
    workload: Workload | None,
    store: str | None,
    *,
    progress: bool = True,
    note_wait: Callable[[float], object] | None = None,
    caches: Caches | None = None,
) -> Study:
    """Run the study of a request in worker processes, for a live workload or a target.

    `caches` keeps the compile caches of the best plans. `note_wait` gets the seconds that went by waiting for other
    Torchwise processes, also if the study raises.

    Raises:
        InputError: the model cannot be sent to a worker.
        BaselineError: the model raises on its own inputs.
    """
    from torchwise.report import Progress
    from torchwise.store import open_storage
    from torchwise.study import run_study
    from torchwise.trial import ProcessLauncher, Stopwatch, send_model

    display: AbstractContextManager[Any] = Progress() if progress else nullcontext(Listener())
    with open_storage(store) as storage, send_model(workload) as file, display as listener:
        spent = Stopwatch(listener.stage)
        listener.stage = spent.stage
        try:
            record = run_study(
                replace(request, source=file.source), storage, ProcessLauncher(), listener, caches=caches
            )
        finally:
            if note_wait is not None:
                note_wait(spent.waited_s)
        return Study(record, storage.place if store else None)


def make_request(
    model: Any,
    args: Any,
    kwargs: dict[str, Any] | None,
    examples: Sequence[Example] | None,
    options: TuneOptions,
    name: str | None = None,
) -> tuple[Request, Workload | None]:
    """Return the request for a study, and the live workload, or None for a target.

    `name` is the name of a live model in the store, by default that of its class or function.

    Raises:
        InputError: an argument cannot be used.
    """
    from torchwise._torch.debug_logs import read_presets
    from torchwise.records.structure_differences import pack_details
    from torchwise.runtime import unwrap
    from torchwise.study import Request
    from torchwise.trial import ProcessSettings
    from torchwise.workload import Workload
    from torchwise.workload.identity import identity, structure
    from torchwise.workload.structure_details import details_of
    from torchwise.workload.target import device_of, name_of, read_workload
    from torchwise.workload.weights import digest_if_judged

    read_presets()
    model = model if isinstance(model, (str, Workload)) else unwrap(model)
    workload = read_workload(model, args, kwargs, examples)
    if workload is not None and workload.step:
        options = replace(options, mode="training")
    device = options.device or (device_of(workload) if workload else default_device())
    request = Request.from_options(options, name or name_of(model), device)
    if workload is None:
        return request, None
    # The structure is read here, in the process that has the source of a script or notebook.
    code, details = structure(workload.call), pack_details(details_of(workload.call))
    settings = ProcessSettings.from_this_process()
    request = replace(request, settings=settings, structure=code, structure_details=details)
    weights = digest_if_judged(workload.call, request.workload)
    named = request.make_job("inspect").identity_of(identity(workload, request.workload.mode, code, weights))
    request = replace(request, identity=named)
    return request, replace(workload, name=request.workload.target)


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


@checked_keywords()
def apply(
    model: Callable[..., Any],
    decision: Decision | Study,
    *,
    strict: bool = False,
    borrow: bool = False,
    canary: int | None = None,
    store: str | None = None,
) -> OptimizedModule | OptimizedFunction | OptimizedStep:
    """Return a callable that runs `model` with the plan of a decision. The model itself is not changed.

    A decision for another machine, another torch or another model is stale. Then the original model runs every call,
    and a warning says why. Approvals of plans (`torchwise plans pin`, `approve`, `reject`) are looked up once, in this
    call. If the store cannot be reached, a warning says so, and the plan runs without approvals.

    Args:
        model: the model that the decision was made for.
        decision: a result of `tune`, or of `Decision.from_json`.
        strict: whether to raise an error for a stale decision, a plan that is not permitted, or an unreadable store.
        borrow: whether a plan with CUDA graphs may return memory that its next call overwrites. This saves a copy of
            each output. Use it only if the program needs no output after the next call.
        canary: compare one of every `canary` calls with the original model. If the answers differ by more than
            rounding, the plan is disabled. None compares nothing.
        store: URL or file of the store with the approvals, by default in the user's data directory.

    Raises:
        InputError: `canary` is no number of calls, or the decision is for training.
        StalePlanError: with `strict`, the decision is stale.
        RefusedPlanError: with `strict`, no verified plan is permitted.
        StorageError: with `strict`, the store cannot be read.
    """
    from torchwise._torch.debug_logs import show_logs
    from torchwise.runtime import stale_because, unwrap
    from torchwise.runtime.fallback_reason import Fallback, FallbackReason
    from torchwise.study.apply_approvals import apply_stored_approvals

    show_logs()
    decision = decision.decision if isinstance(decision, Study) else decision
    if not isinstance(decision, Decision):
        raise InputError(
            f"decision is {decision!r:.80}, but must be a Decision or a Study: Decision.from_json reads what "
            "`torchwise plans show --json FILE` writes"
        )
    model = unwrap(model)
    stale = stale_because(model, decision)
    if stale and strict:
        raise StalePlanError(f"the decision is stale ({stale}): tune again")
    if stale:
        logger.warning("torchwise: the decision is stale (%s), so the original model runs: tune again", stale)
        refusal = Fallback(FallbackReason.STALE_DECISION, stale)
        return wrap_model(model, decision, refusal, borrow=borrow, canary=canary)
    effective = apply_stored_approvals(decision, store, strict=strict)
    refused = Fallback(FallbackReason.PLAN_REFUSED, effective.refusal) if effective.refusal else None
    return wrap_model(model, effective.decision, refused, borrow=borrow, canary=canary)


def wrap_model(
    model: Any, decision: Decision, refusal: Fallback | None = None, **options: Any
) -> OptimizedModule | OptimizedFunction | OptimizedStep:
    """Return a callable that runs `model` with a decision that is not stale, regardless of approvals."""
    import torch

    from torchwise.runtime import OptimizedFunction, OptimizedModule, OptimizedStep
    from torchwise.workload.train_step import TrainStep

    if isinstance(model, TrainStep):
        return OptimizedStep(model, decision, refusal, **options)
    wrap = OptimizedModule if isinstance(model, torch.nn.Module) else OptimizedFunction
    return wrap(model, decision, refusal, **options)
