"""The worker's side of `--fullgraph`: capture a model, and say where the graph breaks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchwise.compile.uncompiled_reason import find_graph_break
from torchwise.records import WorkerStage
from torchwise.trial.full_graph import FullGraph, FullGraphJob
from torchwise.trial.loading import load


def look_for_break(order: FullGraphJob, stage: Callable[[str], None]) -> FullGraph:
    """Capture each example of the workload until one breaks the graph."""
    workload = load(order.job)
    stage(WorkerStage.COMPILE)
    with torch.set_grad_enabled(order.job.workload.mode == "training"):
        found = (find_graph_break(workload.call, example) for example in workload.examples)
        return FullGraph(next(filter(None, found), ""))
