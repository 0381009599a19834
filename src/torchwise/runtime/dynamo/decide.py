"""Decide for a graph: from the store, if it holds a decision for exactly this graph, or else from workers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from typing import Any

from torchwise import environment
from torchwise.errors import InputError, UnsupportedError, did_you_mean
from torchwise.parsing import short_repr
from torchwise.plan import Numerics, Plan
from torchwise.plan.effort import EFFORTS, check_effort, is_at_least
from torchwise.plan.workload_spec import DEFAULT_CALLS, TuneOptions, WorkloadSpec, check_timeout
from torchwise.random_state import kept_random
from torchwise.records import Decision, StudyState
from torchwise.records.listener import Listener
from torchwise.report import Progress
from torchwise.runtime import stale_because
from torchwise.runtime.dynamo.graph import Captured
from torchwise.store import Storage, StudyKey, open_storage
from torchwise.store.location import locate
from torchwise.study import Request, run_study
from torchwise.study.apply_approvals import apply_approvals
from torchwise.trial import Job, ProcessLauncher, ProcessSettings, send_model
from torchwise.workload.identity import identity, structure
from torchwise.workload.weights import digest_if_judged

BUDGET_S = 300.0
"""Default limit of a process, in seconds of tuning, as a model may break into dozens of graphs."""

DYNAMIC = (Plan(backend="inductor", shapes="dynamic"),)
"""The one plan besides eager for a graph of many sizes: any other plan is verified for one size only."""


@dataclass(slots=True)
class Spent:
    """Seconds that this process has spent on tuning graphs. Dynamo's lock protects every change."""

    seconds: float = 0.0


SPENT = Spent()


def decide(captured: Captured, options: Options) -> Decision:
    """Return the stored decision for a graph, or tune the graph now, within the limits of approvals.

    Raises:
        UnsupportedError: the budget is spent.
        InputError: the store or the graph cannot be used.
        BaselineError: the graph fails in a worker.
    """
    request = _request(captured, options)
    with open_storage(options.store) as storage:
        decision = _find_decision(captured, request, storage) or _tune_graph(captured, request, options, storage)
        return apply_approvals(decision, storage).decision


def _request(captured: Captured, options: Options) -> Request:
    digest = structure(captured.graph)
    # The name identifies the graph: if sizes or machine changed, decisions for the same name are tried first.
    asked = TuneOptions(
        calls=options.calls,
        allow=options.allow,
        effort=options.effort,
        mode=captured.mode,
        plans=DYNAMIC if captured.dynamic else None,
        compile_timeout=options.compile_timeout,
        workers=1,  # a program of several processes may tune in each of them
    )
    return replace(
        Request.from_options(asked, f"live:graph-{digest[:8]}", captured.device),
        limit_s=EFFORTS[options.effort].trial_s,  # the user named no plan, and is waiting
        structure=digest,
        settings=ProcessSettings.from_this_process(),
    )


def _find_decision(captured: Captured, request: Request, storage: Storage) -> Decision | None:
    """Return a finished study's decision for this graph on this machine, if its request was at least as demanding.

    For another number of calls, the study continues instead, and decides again from its measurements.
    """
    spec = request.workload
    job = Job("inspect", spec, settings=request.settings)
    weights = digest_if_judged(captured.graph, spec)
    key = StudyKey(
        identity=job.identity_of(identity(captured.workload, spec.mode, request.structure, weights)),
        fingerprint=environment.detect(spec.device).fingerprint,
        device=spec.device,
        mode=spec.mode,
        objective=spec.objective,
        allow=request.allow.former_name,
    )
    study = storage.find_study(key, spec.target)
    if study is None or study.state is not StudyState.DECIDED or study.decision is None:
        return None
    holds = study.decision.workload == spec and is_at_least(study.effort, request.effort)
    return study.decision if holds and stale_because(captured.graph, study.decision) is None else None


def _tune_graph(captured: Captured, request: Request, options: Options, storage: Storage) -> Decision:
    if SPENT.seconds >= options.budget:
        raise UnsupportedError(
            f"the budget of {options.budget:.0f} s for tuning graphs in this process is spent: "
            "run again to go on, or give options={'budget': seconds}"
        )
    start = time.monotonic()
    try:
        shown: AbstractContextManager[Any] = Progress() if options.progress else nullcontext(Listener())
        with kept_random(), send_model(captured.workload, request.workload.target) as file, shown as listener:
            budget_s = min(options.budget, EFFORTS[request.effort].search_s)
            request = replace(request, source=file.source, budget_s=budget_s)
            decision = run_study(request, storage, ProcessLauncher(), listener).decision
    finally:
        SPENT.seconds += time.monotonic() - start
    assert decision is not None, "a study that was not interrupted is decided"
    return decision


@dataclass(frozen=True, slots=True)
class Options:
    """The user's options for the backend.

    Attributes:
        effort: "quick", "standard" or "thorough", for each graph.
        calls: expected number of calls of each graph over its lifetime.
        allow: "exact", "same-precision" (default), "lower-precision", "quantized" (numbers of fewer bits)
            or "substituted" (other operators).
        store: URL or file of the store, by default in the user's data directory.
        budget: seconds of tuning, over all graphs of the process, after which no further graph is tuned.
        progress: whether to show the running trials.
        compile_timeout: seconds that one candidate may compile, or None for all of a trial's limit.
    """

    effort: str = "quick"
    calls: int = DEFAULT_CALLS
    allow: str = "same-precision"
    store: str | None = None
    budget: float = BUDGET_S
    progress: bool = True
    compile_timeout: float | None = None

    def __post_init__(self) -> None:
        check_effort(self.effort)
        if isinstance(self.budget, bool) or not isinstance(self.budget, (int, float)) or not self.budget >= 0:
            raise InputError(
                f"budget is {short_repr(self.budget)}, but must be seconds, 0 or more: 0 only reads the store"
            )
        WorkloadSpec("live:graph", calls=self.calls)
        Numerics.of(self.allow)
        check_timeout(self.compile_timeout)
        if not isinstance(self.progress, bool):
            raise InputError(f"progress is {short_repr(self.progress)}, but must be True or False")
        if self.store is not None and not isinstance(self.store, str):
            raise InputError(f"store is {short_repr(self.store)}, but must be the URL or file of a store, as text")
        if self.store is not None:
            locate(self.store)

    @classmethod
    def read(cls, options: Mapping[str, Any] | None, mode: str | None) -> Options:
        """Read the options that the user passed to `torch.compile`.

        Raises:
            InputError: an option is unknown or invalid, or `mode` is not None.
        """
        if mode is not None:
            raise InputError(
                f"mode is {mode!r}, but the backend torchwise measures which mode is best: leave it out, or set effort"
            )
        known = [field.name for field in fields(cls)]
        for name in options or {}:
            if name not in known:
                near = did_you_mean(str(name), known)
                raise InputError(
                    f"options has {short_repr(name)}, but the backend torchwise has {', '.join(known)}{near}"
                )
        return cls(**(options or {}))
