"""The seconds that a candidate may compile: a compile that outlasts its prediction by far is ended.

Compile times are predicted from those of other plans of the same backend, in the search at hand or in earlier ones on
this machine. Without any of them there is no limit but that of the trial. The limit is never below the seconds that
would still pay: those that a plan saves, in comparison with the leader, over all calls.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchwise.environment import Environment
from torchwise.errors import PlanError, TorchwiseError
from torchwise.plan import Plan
from torchwise.plan.space import compile_factor_of
from torchwise.records import Study
from torchwise.records import format as show
from torchwise.store import Storage
from torchwise.study.history import WARM_SHARE, History
from torchwise.study.option import HOPE

logger = logging.getLogger("torchwise")

PATIENCE = 4.0
"""Multiple of its longest predicted time from which a compile outlasts it by far. A busy machine doubles that time."""
MIN_S = 30.0
"""Seconds that a candidate may compile in any case."""
SHARE = 0.1
"""Share of the seconds of the whole search that a candidate may compile in any case."""
CALLS = 10
"""Calls of eager that a worker may make in the stages that compile, besides compiling."""
MIN_COMPILES = 3
"""Compiles of earlier studies with the same backend from which on they tell how long one takes on this machine."""
MAX_STUDIES = 6
"""Newest studies of the store that are read for that, as decoding one takes up to a tenth of a second."""


@dataclass(frozen=True, slots=True)
class CompileLimit:
    """A limit of the seconds that a candidate compiles.

    Attributes:
        seconds: infinite if there is none.
        note: where it comes from, and how to grant more, for the message of a trial that is ended by it.
    """

    seconds: float = math.inf
    note: str = ""


def find_compile_limit(
    plan: Plan, history: History, search_s: float, read_earlier: Callable[[], Mapping[str, float]]
) -> CompileLimit:
    """Return the limit of a plan's compile.

    Args:
        plan: the candidate.
        history: the search so far.
        search_s: seconds of the whole search, infinite if it has no end.
        read_earlier: returns the ratios of `read_compile_ratios`. It is called only if this search has compiled nothing
            with the backend.
    """
    # Bounds of time tell nothing of memory, or of a limit that eager passes.
    is_about_time = history.workload.objective != "memory" and history.eager_fits
    if plan.backend == "eager" or not is_about_time or math.isinf(search_s):
        return CompileLimit()
    longest_s = _predict_longest_s(plan, history, read_earlier)
    if longest_s is None:
        return CompileLimit()
    calls_s = CALLS * history.economics.baseline_s
    seconds = max(MIN_S, SHARE * search_s, PATIENCE * longest_s, find_payable_s(history)) + calls_s
    return CompileLimit(
        round(seconds, 1),
        f", where earlier compiles let expect at most {show.tick(round(longest_s, 1))} "
        "(--compile-timeout SECONDS, compile_timeout=SECONDS or a larger budget allows more)",
    )


def find_payable_s(history: History) -> float:
    """Return the seconds of a cold compile up to which a plan that saves a part of the leader's time still pays.

    That part is the one that options are hoped to save (`Option.problem`).
    """
    leader, workload = history.incumbent(), history.workload
    overhead_s = HOPE * history.seconds_of(leader) * workload.calls + history.overhead_of(leader)
    return overhead_s / (1 + (workload.restarts - 1) * WARM_SHARE)


def _predict_longest_s(plan: Plan, history: History, read_earlier: Callable[[], Mapping[str, float]]) -> float | None:
    """Return the longest time that compiles so far let expect of a plan's compile, or None if they tell nothing."""
    compiled = [t for t in history.trials if t.costs and t.plan.backend == plan.backend and compile_factor_of(t.plan)]
    if compiled:
        return compile_factor_of(plan) * max(t.costs.cold_s / compile_factor_of(t.plan) for t in compiled if t.costs)
    ratio = read_earlier().get(plan.backend)
    return None if ratio is None else max(ratio, 1.0) * history.predict_cold_s(plan)


def read_compile_ratios(storage: Storage, study_id: int, here: Environment) -> dict[str, float]:
    """Return how long compiles took in other studies of this machine and device, as a multiple of the predicted time.

    That is the largest ratio for each backend that has compiled often enough. A study that cannot be read is left out.
    """
    ratios: dict[str, list[float]] = {}
    others = [one for one in storage.list_studies(limit=4 * MAX_STUDIES) if one.id != study_id and one.trials]
    for summary in [one for one in others if one.device == here.device][:MAX_STUDIES]:
        try:
            study = storage.get_study(summary.id)
        except (TorchwiseError, ValueError) as error:  # another version or a plug-in wrote it, or somebody deleted it
            logger.debug("torchwise: study %s tells no compile times", summary.id, exc_info=error)
            continue
        if study.environment.fingerprint == here.fingerprint:
            for backend, ratio in _list_ratios(study):
                ratios.setdefault(backend, []).append(ratio)
    return {backend: max(found) for backend, found in ratios.items() if len(found) >= MIN_COMPILES}


def _list_ratios(study: Study) -> list[tuple[str, float]]:
    """Return the backends of a study's compiles, each with its time as a multiple of the time predicted without any."""
    plain, ratios = History(study.workload, study.inspection, ()), []
    for trial in study.trials:
        if trial.costs is None or trial.plan.backend == "eager":
            continue
        try:
            expected_s = plain.predict_cold_s(trial.plan)
        except PlanError:  # the plug-in that it was made with is gone
            continue
        if expected_s > 0:
            ratios.append((trial.plan.backend, trial.costs.cold_s / expected_s))
    return ratios
