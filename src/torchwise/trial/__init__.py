"""One candidate in one worker process: the job, the worker, and the launcher that survives every failure of it."""

from torchwise.trial.budget import Budget
from torchwise.trial.job import DerivedJob, Job, ProcessSettings
from torchwise.trial.launcher import Launcher, ProcessLauncher
from torchwise.trial.limits import Limits
from torchwise.trial.run_trial import (
    SentModel,
    Stopwatch,
    ask_worker,
    hold_duel,
    inspect_workload,
    measure_again,
    own_caches,
    send_model,
    try_plan,
)
from torchwise.trial.worker import Assignment

__all__ = [
    "Assignment",
    "Budget",
    "DerivedJob",
    "Job",
    "Launcher",
    "Limits",
    "ProcessLauncher",
    "ProcessSettings",
    "SentModel",
    "Stopwatch",
    "ask_worker",
    "hold_duel",
    "inspect_workload",
    "measure_again",
    "own_caches",
    "send_model",
    "try_plan",
]
