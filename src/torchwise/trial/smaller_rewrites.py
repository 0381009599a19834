"""A rewrite of fewer parts of a model, in place of one whose change the user does not allow."""

from __future__ import annotations

from torchwise.compile.transforms import transform_model
from torchwise.plan.choice import load_code, skip_parts
from torchwise.plan.space import choices_of
from torchwise.records import Outcome
from torchwise.trial.job import Job
from torchwise.verify.sensitivity import choose_skipped
from torchwise.verify.substitution import judge_substitution
from torchwise.workload import Workload
from torchwise.workload.module_state import kept_state


def find_smaller_rewrite(job: Job, workload: Workload) -> tuple[str, str] | None:
    """Return the rewrite of a job's plan that can leave out parts, and the one without some of them that is allowed.

    It is None if the plan has no such rewrite, or several, or if too few parts would be left.
    """
    rewrites = [choice for choice in choices_of(job.plan) if choice.parts is not None]
    if len(rewrites) != 1 or rewrites[0].parts is None:
        return None
    original, value = workload.call, rewrites[0].value
    with kept_state(original):
        skipped = choose_skipped(
            original,
            lambda skip: transform_model(original, [skip_parts(value, skip)])[0],
            load_code(rewrites[0].parts)(original),
            lambda call: judge_substitution(original, call, workload.examples, job.workload).outcome is Outcome.PASS,
            workload.examples[0],
        )
    return None if skipped is None else (value, skip_parts(value, skipped))
