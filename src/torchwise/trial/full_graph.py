"""The gate of `--fullgraph`: a worker has PyTorch capture the model as one graph, and says where it breaks."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise.errors import GraphBreakError, UnsupportedError
from torchwise.records import Failure, FailureKind
from torchwise.trial.error_origin import make_budget_error
from torchwise.trial.job import DerivedJob, Job
from torchwise.trial.launcher import Launcher, OnStage
from torchwise.trial.limits import Limits
from torchwise.trial.run_trial import ask_worker


@dataclass(frozen=True, slots=True)
class FullGraphJob(DerivedJob):
    """The order to capture a workload as one graph. Nothing is compiled or timed."""

    FUNCTION = "torchwise.trial.graph_breaks:look_for_break"
    job: Job


@dataclass(frozen=True, slots=True)
class FullGraph:
    """The answer: the first graph break with its place, or "" if there is none."""

    graph_break: str


def require_full_graph(launcher: Launcher, job: Job, limits: Limits, on_stage: OnStage) -> None:
    """Have a worker look for graph breaks.

    Raises:
        GraphBreakError: there is one.
        UnsupportedError: the worker could not say.
    """
    answer = ask_worker(launcher, FullGraphJob(job), FullGraph, limits, on_stage)
    if isinstance(answer, Failure) and answer.kind is FailureKind.OUT_OF_BUDGET:
        raise make_budget_error(answer, "whether the model is one graph is not known")
    if isinstance(answer, Failure):
        raise UnsupportedError(f"fullgraph asks for a model of one graph, but whether it is one is not known: {answer}")
    if answer.graph_break:
        raise GraphBreakError(
            f"the graph breaks: {answer.graph_break}. torchwise explain lists every break with its fix. Without "
            "--fullgraph (fullgraph=True), plans of several graphs are tried"
        )
