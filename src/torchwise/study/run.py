"""One study: profile the model, find or make its record, and search.

All facts are in the store after every step. So a killed study goes on from its last step, and several processes may
work on one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from torchwise import environment
from torchwise._torch.native import ensure_compiled
from torchwise.environment import Environment
from torchwise.plan.effort import EFFORTS
from torchwise.records import Study
from torchwise.records import format as show
from torchwise.records.listener import Listener
from torchwise.store import Storage, StudyKey
from torchwise.study.batch_search import search_batch
from torchwise.study.caches import Caches
from torchwise.study.lanes import Lane, open_lanes
from torchwise.study.request import Request, check_metric, check_requirements, recall_inspection
from torchwise.study.search_loop import SearchLoop
from torchwise.trial import Launcher, Limits, inspect_workload
from torchwise.trial.budget import end_kept_worker
from torchwise.trial.full_graph import require_full_graph
from torchwise.trial.kept_worker import with_stay
from torchwise.trial.loading_reads import reads_file


def run_study(
    request: Request,
    storage: Storage,
    launcher: Launcher,
    listener: Listener,
    here: Environment | None = None,
    caches: Caches | None = None,
) -> Study:
    """Tune: inspect, try candidates until nothing more is worth it, decide, and store everything.

    With a limit of latency, or if the request says so, batch size and plan are found together. A study of the same
    workload, machine and rules is continued. If nothing more is worth trying for the requested calls, the decision
    comes from the stored trials.

    Args:
        here: the environment of the measurements if the launcher's workers run elsewhere, or None for this machine.
        caches: keeps the compile caches of the plans of least cost, for the next user of them, or None to keep none.

    Raises:
        InputError: the target or its inputs cannot be used.
        BaselineError: the plain model fails.
        GraphBreakError: the request asks for a model of one graph, and it breaks.
        KeyboardInterrupt: the user interrupted. Finished trials are kept, and the same request goes on from there.
    """
    is_local, here = here is None, here or environment.detect(request.workload.device)
    run = partial(
        _run_study, storage=storage, launcher=launcher, listener=listener, here=here, is_local=is_local, caches=caches
    )
    finds_batch = request.finds_batch or request.workload.latency_limit is not None
    try:
        if finds_batch and request.workload.batch is None:
            return search_batch(request, storage, launcher, listener, here, run)
        return run(request)
    finally:
        end_kept_worker(launcher)  # a search may end without a trial


def _run_study(
    request: Request,
    *,
    storage: Storage,
    launcher: Launcher,
    listener: Listener,
    here: Environment,
    is_local: bool,
    caches: Caches | None,
) -> Study:
    budget = request.start_budget(listener.stage)
    launcher = budget.limit(launcher)
    max_trials = EFFORTS[request.effort].max_trials if request.plans is None else len(request.plans)
    listener.start_search(request.search_s, max_trials)
    if is_local:  # so that trials call as programs will that serve the plan
        ensure_compiled(listener.stage)
    reads = None if request.source or not is_local else reads_file(request.workload)
    inspection, begun_s = recall_inspection(request, storage, here, reads), budget.now_s
    if inspection is None:
        listener.start_inspection()
        tries_sizes = request.successor is not None
        job = replace(request.make_job("inspect"), reads=str(reads or ""), tries_sizes=tries_sizes)
        job = with_stay(job) if is_local else job
        inspection = inspect_workload(launcher, job, Limits.from_free_memory(request.inspection_s), budget.spent.stage)
    check_requirements(inspection)
    check_metric(request.workload, inspection)
    listener.finish_inspection(inspection)
    inspection_s = budget.now_s - begun_s
    if request.fullgraph:
        limits = request.make_limits(request.inspection_s)
        require_full_graph(launcher, request.make_job("inspect"), limits, budget.spent.stage)
    # All later workers load the model with the same examples, and so do those who use the decision.
    request = replace(request, workload=replace(request.workload, varying=inspection.varying))
    draft = Study(0, request.workload, here, inspection, request.allow, request.effort, created_at=time.time())
    key = StudyKey.from_study(draft)
    if request.fresh and (stored := storage.find_study(key)):
        storage.delete_study(stored.id)
    study = storage.create_study(key, draft)
    if request.budget_s is None:  # the time of an effort is for trials: it does not pay for the inspection
        budget = replace(budget, seconds=request.search_s + budget.now_s)
    with (
        Caches() if caches is None else nullcontext(caches) as kept,
        open_lanes(request, inspection, is_local=is_local) as (lanes, why),
    ):
        _note_lanes(lanes, why, request, listener)
        loop = SearchLoop(
            *(request, storage, launcher, listener, study.id, here),
            *(inspection, inspection_s, budget, kept, is_local, lanes),
        )
        return loop.run()


def _note_lanes(lanes: Sequence[Lane], why: str, request: Request, listener: Listener) -> None:
    """Tell how many plans are tried at once, if that is more than one, or fewer than the user asked for."""
    if len(lanes) > 1:
        each = show.pluralize(len(lanes[0].cores), "core")
        listener.note(f"up to {len(lanes)} plans are tried at once, each with {each} of its own")
    if request.workers is not None and len(lanes) < request.workers:
        few = show.pluralize(len(lanes), "worker")
        listener.note(f"{few} of {request.workers} may run at once: {why}")
