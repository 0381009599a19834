"""The decision for a graph: from the store, where it holds one for just this, or else from workers."""

from __future__ import annotations

import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torchwise import environment
from torchwise.dynamo.graph import Captured
from torchwise.dynamo.options import Options
from torchwise.errors import UnsupportedError
from torchwise.plan import Legality, Plan
from torchwise.plan.space import EFFORTS
from torchwise.random_state import kept_random
from torchwise.records import Decision, StudyState
from torchwise.report import Progress
from torchwise.runtime import stale_because
from torchwise.store import Storage, StudyKey, open_storage
from torchwise.study import Request, Silent, run_study
from torchwise.study.request import BUDGET_S, TRIAL_S
from torchwise.study.ruled import ruled
from torchwise.trial import Job, ProcessLauncher, ProcessSettings
from torchwise.trial.loading import save
from torchwise.workload import WorkloadSpec
from torchwise.workload.identity import identity, structure

DYNAMIC = (Plan(backend="inductor", shapes="dynamic"),)
"""What a graph of many sizes may become beside eager: whatever else is proven is proven for one size."""


@dataclass(slots=True)
class Spent:
    """Seconds that this process has spent on tuning graphs; Dynamo's lock stands around every change."""

    seconds: float = 0.0


SPENT = Spent()


def decide(captured: Captured, asked: Options) -> Decision:
    """Return how to run a graph: as was decided before, or by tuning it now, and as rulings on it permit.

    Raises:
        UnsupportedError: the budget is spent.
        InputError: the store or the graph cannot be used.
        BaselineError: the graph fails in a worker.
    """
    request = _request(captured, asked)
    with open_storage(asked.store) as storage:
        decision = _stored(captured, request, storage) or _tuned(captured, request, asked, storage)
        return ruled(decision, storage).decision


def _request(captured: Captured, asked: Options) -> Request:
    digest = structure(captured.graph)
    # The name tells graphs apart: what was decided for one of this name is tried first where sizes or machine changed.
    spec = WorkloadSpec(
        f"live:graph-{digest[:8]}",
        device=captured.device,  # type: ignore[arg-type]
        mode=captured.mode,  # type: ignore[arg-type]
        calls=asked.calls,
    )
    return Request(
        spec,
        Legality.of(asked.allow),
        asked.effort,
        plans=DYNAMIC if captured.dynamic else None,
        limit_s=TRIAL_S[asked.effort],  # the user named no plan, and waits
        structure=digest,
        settings=ProcessSettings.of_this_process(),
    )


def _stored(captured: Captured, request: Request, storage: Storage) -> Decision | None:
    """Return the decision of a finished study that asked for no less, of this very graph on this very machine.

    Asked for other calls, the study is gone on with instead, which decides anew from what was measured.
    """
    spec = request.workload
    job = Job("inspect", spec, settings=request.settings)
    key = StudyKey(
        identity=job.identity_of(identity(captured.workload, spec.mode, request.structure)),
        fingerprint=environment.detect(spec.device).fingerprint,
        device=spec.device,
        mode=spec.mode,
        objective=spec.objective,
        allow=request.allow,
    )
    study = storage.find_study(key, spec.target)
    if study is None or study.state is not StudyState.DECIDED or study.decision is None:
        return None
    holds = study.decision.workload == spec and EFFORTS.index(study.effort) >= EFFORTS.index(request.effort)
    return study.decision if holds and stale_because(captured.graph, study.decision) is None else None


def _tuned(captured: Captured, request: Request, asked: Options, storage: Storage) -> Decision:
    if SPENT.seconds >= asked.budget:
        raise UnsupportedError(
            f"the budget of {asked.budget:.0f} s for tuning graphs in this process is spent: "
            "run again to go on, or give options={'budget': seconds}"
        )
    start = time.monotonic()
    try:
        shown: AbstractContextManager[Any] = Progress() if asked.progress else nullcontext(Silent())
        with kept_random(), tempfile.TemporaryDirectory(prefix="torchwise-graph-") as folder, shown as listener:
            source = str(Path(folder, "graph.pt"))
            save(replace(captured.workload, name=request.workload.target), source)
            request = replace(request, source=source, budget_s=min(asked.budget, BUDGET_S[request.effort]))
            decision = run_study(request, storage, ProcessLauncher(), listener).decision
    finally:
        SPENT.seconds += time.monotonic() - start
    assert decision is not None, "a study that was not interrupted is decided"
    return decision
