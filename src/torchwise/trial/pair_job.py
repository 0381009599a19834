"""The orders to workers to judge and to time a pair, and their answers. They can be made without PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchwise.plan.requirements import Property
from torchwise.records import Check, Measurement
from torchwise.records.pair import FailingInput, PairCase
from torchwise.trial.job import DerivedJob, Job

SHRINK_S = 20.0
"""Seconds to look for the smallest inputs that fail."""


@dataclass(frozen=True, slots=True)
class PairJob(DerivedJob):
    """The order to judge or to time a pair.

    Attributes:
        job: the run. Its workload names the reference.
        candidate: the candidate's target.
        step: "judge_job" or "time_job".
        sources: files with the live reference and candidate, written by this very run, or None for targets.
        inputs: descriptions of the inputs, or nothing for those of the reference's factory.
        recorded: file with recorded inputs, or "".
        properties: promises to check.
        precision: the precision that the candidate may compute in.
        stochastic: whether answers are random, or None to find out.
        trains: whether models are put into training mode.
        limit_s: seconds for each answer of the candidate.
        repro: .py file for a program that shows a difference, or "".
        shrink_s: seconds to look for the smallest inputs that fail.
        verified_error: for timing, the candidate's largest error in its verification.
        python: the interpreter that runs the candidate, or "" for this one.
    """

    FUNCTION = "torchwise.trial.pair:{0.step}"
    job: Job
    candidate: str
    step: Literal["judge_job", "time_job"] = "judge_job"
    sources: tuple[str | None, str | None] = (None, None)
    inputs: tuple[str, ...] = ()
    recorded: str = ""
    properties: tuple[Property, ...] = ()
    precision: str = "native"
    stochastic: bool | None = None
    trains: bool = False
    limit_s: float = 60.0
    repro: str = ""
    shrink_s: float = SHRINK_S
    verified_error: float = 0.0
    python: str = ""


@dataclass(frozen=True, slots=True)
class PairJudgement:
    """The answer of a worker that judged a pair."""

    checks: tuple[Check, ...]
    cases: tuple[PairCase, ...] = ()
    failing: FailingInput | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PairTiming:
    """The answer of a worker that timed a pair, with a check of the timed answers, and no measurement if it fails."""

    check: Check
    measurement: Measurement | None = None
