"""Judge a model with other operators or numbers than its own, by the error or loss of quality that the user allows.

The rest of a plan is verified as always: against the model with these operators, and not against the original.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchwise.errors import format_error
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Check, CheckName, Figure, Outcome, Verdict
from torchwise.records.format import percent
from torchwise.verify.compare import check_structure
from torchwise.verify.deviation import errors_of, is_rounded
from torchwise.verify.observe import Observation, observe
from torchwise.verify.stochastic import is_stochastic
from torchwise.workload.module_state import kept_state
from torchwise.workload.target import find_factory
from torchwise.workload.workload import Example

Metric = Callable[[Callable[..., Any]], float]
"""Takes the model, or a callable in its place, and returns its quality: the higher, the better."""


def check_substitution(
    original: Callable[..., Any],
    substituted: Callable[..., Any],
    examples: Sequence[Example],
    tolerance: float,
    metric: Metric | None = None,
    *,
    training: bool = False,
) -> Iterator[Check]:
    """Yield a check for each example, or one of the metric. A model to be trained is judged by its gradients, too.

    Args:
        original: the model.
        substituted: the model with other operators.
        examples: inputs to compare on. Both draw the same random numbers.
        tolerance: the relative error (root mean square) that an output may have, or the share of its value that the
            metric may lose.
        metric: the user's own measure of quality, in place of the error of outputs.
        training: whether gradients are compared. No metric tells of them, so that the error of all counts, too.
    """
    if metric is not None:
        judged = _check_metric(original, substituted, tolerance, metric)
        passes = judged.outcome is Outcome.PASS
        yield replace(judged, error=_worst_error(original, substituted, examples)) if passes else judged
        if not training:
            return
    for seed, example in enumerate(examples):
        mine, theirs = (
            observe(call, original, example, seed=seed, training=training) for call in (substituted, original)
        )
        structure = check_structure(mine, theirs)
        yield _check_error(mine, theirs, tolerance) if structure.outcome is Outcome.PASS else structure


def judge_substitution(
    original: Callable[..., Any], substituted: Callable[..., Any], examples: Sequence[Example], spec: WorkloadSpec
) -> Verdict:
    """Judge other operators or numbers by the error, or the loss of quality, that a request allows."""
    assert spec.tolerance is not None, "without one nothing is replaced"
    metric, training = find_factory(spec.metric) if spec.metric else None, spec.mode == "training"
    with kept_state((original, substituted)):
        checks = check_substitution(original, substituted, examples, spec.tolerance, metric, training=training)
        return Verdict(tuple(checks))


def keeps_noise(original: Callable[..., Any], substituted: Callable[..., Any], example: Example) -> bool:
    """Whether a model that draws random numbers still does with other operators. Without, its answers are compared."""
    if substituted is original:
        return True
    cloned = example.clone()
    with torch.no_grad():
        return is_stochastic(lambda: substituted(*cloned.args, **cloned.kwargs), original)[0]


def _worst_error(
    original: Callable[..., Any], substituted: Callable[..., Any], examples: Sequence[Example]
) -> float | None:
    """Return the largest error on the examples. A program that compares answers later must expect it."""
    errors = [check.error for check in check_substitution(original, substituted, examples, math.inf)]
    return max((error for error in errors if error is not None), default=None)


def _check_error(mine: Observation, theirs: Observation, tolerance: float) -> Check:
    worst, place = 0.0, ""
    for (name, value), (_, expected) in zip(mine.leaves, theirs.leaves, strict=True):
        if isinstance(value, torch.Tensor):
            error = errors_of(value, expected).rms if _is_finite_alike(value, expected) else math.inf
            if error > worst:
                worst, place = error, name
    passes = worst <= tolerance
    detail = f"other operators or numbers change {place or 'the output'} by {worst:.2g} of its root mean square, and "
    return Check(
        CheckName.SUBSTITUTION,
        Outcome.PASS if passes else Outcome.FAIL,
        f"{detail}{tolerance:g} is allowed",
        error=worst if math.isfinite(worst) else None,
        floor=0.0,
    )


def _is_finite_alike(value: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether infinities and NaN are where the model has them. Errors are of the other numbers."""
    if not is_rounded(value):
        return True
    rest = ~torch.isfinite(expected)
    return torch.equal(~torch.isfinite(value), rest) and torch.allclose(value[rest], expected[rest], equal_nan=True)


def _check_metric(
    original: Callable[..., Any], substituted: Callable[..., Any], tolerance: float, metric: Metric
) -> Check:
    found = []
    for call in (original, substituted):
        try:
            with torch.no_grad(), kept_state(original):
                found.append(float(metric(call)))
        except Exception as error:  # the user's own code
            return Check(CheckName.SUBSTITUTION, Outcome.NOT_COMPARABLE, f"the metric failed: {format_error(error)}")
    before, after = found
    lost = before - after
    passes = lost <= tolerance * abs(before)
    share = percent(lost / abs(before)) if before else f"{lost:.3g}"
    return Check(
        CheckName.SUBSTITUTION,
        Outcome.PASS if passes else Outcome.FAIL,
        f"with other operators or numbers the metric is {after:.6g} in place of {before:.6g}: it loses {share}, and "
        f"{percent(tolerance)} is allowed",
        figures={Figure.METRIC_LOST: max(lost / abs(before), 0.0)} if before else {},
    )
