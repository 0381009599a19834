"""Test whether two ways to train make the same progress, on the curves of their losses.

From one state, each of several seeds gives an order of the batches and random numbers, and both train so. For each seed
the mean loss over the second half of the steps is compared, relative to eager's: d. Two ways that differ by rounding
alone differ in d by noise around 0. Its size is unknown beforehand, as training amplifies roundings. So d is compared
with its own spread over the seeds. The candidate fails if the mean of d is beyond the margin even at the near end of
its confidence interval (Student's t). A candidate whose d is truly within the margin fails with a chance of at most
`FALSE_ALARM_RATE`. If the seeds' curves are all the same, the mean itself decides.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from torchwise.records import Check, CheckCause, CheckName, Figure, Outcome

FALSE_ALARM_RATE = 1e-3
MARGIN, MARGIN_REDUCED = 0.01, 0.02
"""Relative difference of the mean loss that is granted, at the model's own and at a lower precision."""


def check_trajectories(candidate_losses: list[list[float]], eager_losses: list[list[float]], *, reduced: bool) -> Check:
    """Compare the losses of a candidate and of eager, one list for each seed.

    Args:
        candidate_losses: losses of the candidate, by seed and step.
        eager_losses: losses of eager, on the same batches.
        reduced: whether the candidate computes in a lower precision than the step as written.
    """
    from scipy.special import stdtrit  # takes a sixth of a second, and only training steps need it

    candidate, eager = np.array(candidate_losses), np.array(eager_losses)
    if bool((np.isfinite(eager) & ~np.isfinite(candidate)).any()):
        return Check(
            CheckName.LOSS_CURVES,
            Outcome.FAIL,
            "the loss is not finite where eager's is",
            cause=CheckCause.NOT_FINITE,
        )
    if not np.isfinite(eager).all():
        return Check(CheckName.LOSS_CURVES, Outcome.NOT_COMPARABLE, "eager's own loss is not finite")
    half = eager.shape[1] // 2
    scale = np.abs(eager).mean() or 1.0
    differences = (candidate[:, half:].mean(axis=1) - eager[:, half:].mean(axis=1)) / scale
    mean, margin = float(differences.mean()), MARGIN_REDUCED if reduced else MARGIN
    spread = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    reach = float(stdtrit(len(differences) - 1, 1 - FALSE_ALARM_RATE)) * spread
    detail = (
        f"over {eager.shape[0]} seeds of {eager.shape[1]} steps the mean loss differs from eager's by {mean:+.2%} ± "
        f"{reach:.2%}, and {margin:.0%} is granted (false alarms: {FALSE_ALARM_RATE:g})"
    )
    figures = {
        Figure.LIMIT: margin,
        Figure.SAMPLES: eager.shape[0],
        Figure.STEPS: eager.shape[1],
        Figure.HALF_WIDTH: reach,
        Figure.LEVEL: FALSE_ALARM_RATE,
        Figure.FIRST_LOSS: float(candidate[:, 0].mean()),
        Figure.LAST_LOSS: float(candidate[:, -1].mean()),
    }
    outcome = Outcome.FAIL if abs(mean) - reach > margin else Outcome.PASS
    check = Check(CheckName.LOSS_CURVES, outcome, detail, abs(mean), figures=figures)
    return replace(check, detail=f"{detail}; {check.describe_loss()}")
