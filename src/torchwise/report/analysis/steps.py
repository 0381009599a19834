"""Next commands, and notes on the original model."""

from __future__ import annotations

from torchwise.plan.workload_spec import LIVE
from torchwise.records.analysis import Analysis
from torchwise.report import format as show
from torchwise.report.command_line import command_line
from torchwise.report.commands import Step


def next_steps(analysis: Analysis, store: str | None = None) -> list[Step]:
    """Return the next commands, the most useful first.

    Args:
        analysis: the results.
        store: location of the store for these commands, or None for the default store.
    """
    store_option = () if store is None else ("--store", store)
    live = analysis.workload.target.startswith(LIVE)
    tune = "torchwise.tune(model, args)" if live else _command("tune", analysis, *store_option)
    steps = [Step(tune, "tries all plans that may pay back, and chooses one")]
    if not analysis.batches:
        scaled = "torchwise.analyze(model, args, batches=(1, 2, 4, 8))"
        again = scaled if live else _command("analyze", analysis, "--batches", "1,2,4,8", *store_option)
        steps.append(Step(again, "measures time and throughput by batch size, and compiles for each size"))
    if not live and (analysis.trial.failure or not analysis.trial.is_verified):
        steps.insert(
            0, Step(_command("bisect", analysis, *store_option), "finds the cause of the failure or the wrong answer")
        )
    return steps


def notes(analysis: Analysis) -> list[str]:
    """Return the notes of the inspection. `Analysis.judge_trust` returns the reliability of times."""
    return [show.one_line(note) for note in dict.fromkeys(analysis.inspection.notes)]


def _command(name: str, analysis: Analysis, *more: str) -> str:
    plan = ("--plan", analysis.plan.to_json()) if name != "tune" else ()
    return command_line(name, analysis.workload, *plan, *more)
