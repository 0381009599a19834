"""Decisions that hold for a live model on this machine, without a search."""

from __future__ import annotations

import torch

from torchwise import environment
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Decision
from torchwise.workload import Example
from torchwise.workload.identity import describe_example, structure
from torchwise.workload.weights import digest_weights


def make_decision(model: object, plan: Plan, *args: torch.Tensor, **options: object) -> Decision:
    return Decision(
        plan,
        "because",
        None,
        None,
        0.0,
        0.01,
        0.0,
        None,
        WorkloadSpec("live:test"),
        "identity",
        structure(model),
        (describe_example(Example(args)),),
        environment.detect("cpu"),
        **{"weights": digest_weights(model), **options},  # type: ignore[arg-type]
    )
