"""Frozen records of measurements, verdicts, trials, studies, decisions and approvals, with JSON both ways."""

from torchwise.records.decision import Approval, Decision, Standing
from torchwise.records.measurement import CoreUse, Inspection, Measurement, StepWork
from torchwise.records.statistics import Interval
from torchwise.records.study import Study, StudyState
from torchwise.records.trial import CostModel, Costs, Duel, Failure, FailureKind, Trial, TrialState, WorkerStage
from torchwise.records.verdict import Check, CheckCause, CheckName, Figure, Outcome, Verdict

__all__ = [
    "Approval",
    "Check",
    "CheckCause",
    "CheckName",
    "CoreUse",
    "CostModel",
    "Costs",
    "Decision",
    "Duel",
    "Failure",
    "FailureKind",
    "Figure",
    "Inspection",
    "Interval",
    "Measurement",
    "Outcome",
    "Standing",
    "StepWork",
    "Study",
    "StudyState",
    "Trial",
    "TrialState",
    "Verdict",
    "WorkerStage",
]
