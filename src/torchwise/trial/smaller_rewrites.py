"""A rewrite of fewer parts of a model, in place of one whose change the user does not allow."""

from __future__ import annotations

from torchwise.compile.transforms import transform_model
from torchwise.plan import Trait
from torchwise.plan.choice import load_code, skip_parts
from torchwise.plan.space import choices_of
from torchwise.records import Outcome
from torchwise.trial.job import Job
from torchwise.verify.sensitivity import choose_skipped
from torchwise.verify.substitution import SubstitutionJudge
from torchwise.workload import Workload
from torchwise.workload.module_state import kept_state

AIM = 0.8
"""Share of the tolerance that the chosen parts may use up: the plan as a whole, and other inputs, need the rest."""


def make_judge(job: Job, workload: Workload) -> SubstitutionJudge:
    """Return the judge of other operators and numbers in place of a workload's own, by the rule of a job's request."""
    effort, is_stateful = job.effort, Trait.STATEFUL in job.traits
    return SubstitutionJudge(
        workload, job.workload, effort.extra_draws, noise_budget_s=effort.noise_s, is_stateful=is_stateful
    )


def find_smaller_rewrite(job: Job, workload: Workload) -> tuple[str, str] | None:
    """Return the rewrite of a job's plan that can leave out parts, and the one without some of them that is allowed.

    It is None if the plan has no such rewrite, or several, or if too few parts would be left.
    """
    rewrites = [choice for choice in choices_of(job.plan) if choice.parts is not None]
    if len(rewrites) != 1 or rewrites[0].parts is None or job.workload.tolerance is None:
        return None  # no share of a distribution can be left for the rest
    original, value = workload.call, rewrites[0].value
    judge = make_judge(job, workload)
    with kept_state(original):
        skipped = choose_skipped(
            original,
            lambda skip: transform_model(original, [skip_parts(value, skip)])[0],
            load_code(rewrites[0].parts)(original),
            lambda call: judge.judge(call, AIM).outcome is Outcome.PASS,
            workload.examples[0],
        )
    return None if skipped is None else (value, skip_parts(value, skipped))
