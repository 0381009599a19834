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

import numpy as np
from scipy import stats

from torchwise.records import Check, Outcome

TRAJECTORIES = "trajectories"
"""The name of the check. Its detail ends with the start and the end of the loss."""
FALSE_ALARM_RATE = 1e-3
MARGIN, MARGIN_REDUCED = 0.01, 0.02
"""Relative difference of the mean loss that is granted, at the model's own and at a lower precision."""


def check_trajectories(ours: list[list[float]], theirs: list[list[float]], *, reduced: bool) -> Check:
    """Compare the losses of a candidate and of eager, one list for each seed.

    Args:
        ours: the candidate's.
        theirs: eager's, on the same batches.
        reduced: whether the candidate computes in a lower precision than the step as written.
    """
    candidate, eager = np.array(ours), np.array(theirs)
    if bool((np.isfinite(eager) & ~np.isfinite(candidate)).any()):
        return Check(TRAJECTORIES, Outcome.FAIL, "the loss is not finite where eager's is")
    if not np.isfinite(eager).all():
        return Check(TRAJECTORIES, Outcome.NOT_COMPARABLE, "eager's own loss is not finite")
    half = eager.shape[1] // 2
    scale = np.abs(eager).mean() or 1.0
    differences = (candidate[:, half:].mean(axis=1) - eager[:, half:].mean(axis=1)) / scale
    mean, margin = float(differences.mean()), MARGIN_REDUCED if reduced else MARGIN
    spread = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    reach = float(stats.t.ppf(1 - FALSE_ALARM_RATE, len(differences) - 1)) * spread
    ends = f"the loss goes from {candidate[:, 0].mean():.4g} to {candidate[:, -1].mean():.4g}"
    told = (
        f"over {eager.shape[0]} seeds of {eager.shape[1]} steps the mean loss differs from eager's by {mean:+.2%} ± "
        f"{reach:.2%}, and {margin:.0%} is granted (false alarms: {FALSE_ALARM_RATE:g}); {ends}"
    )
    failed = abs(mean) - reach > margin
    return Check(TRAJECTORIES, Outcome.FAIL if failed else Outcome.PASS, told, abs(mean))
