"""Next commands to type, and notes on the plain model."""

from __future__ import annotations

from torchwise.records.analysis import Analysis
from torchwise.report import format as show
from torchwise.report.command_line import command_line
from torchwise.report.commands import Step
from torchwise.workload.spec import LIVE


def next_steps(analysis: Analysis, store: str | None = None) -> list[Step]:
    """Return the next commands to type, the most useful first.

    Args:
        analysis: the results.
        store: location of the store that was named for it, or None for the one that every command finds by itself.
    """
    kept = () if store is None else ("--store", store)
    live = analysis.workload.target.startswith(LIVE)
    tune = "torchwise.tune(model, args)" if live else _command("tune", analysis, *kept)
    steps = [Step(tune, "tries every plan that could pay, and decides")]
    if not analysis.batches:
        scaled = "torchwise.analyze(model, args, batches=(1, 2, 4, 8))"
        again = scaled if live else _command("analyze", analysis, "--batches", "1,2,4,8", *kept)
        steps.append(Step(again, "how time and throughput go with the batch size; each size is compiled anew"))
    if not live and (analysis.trial.failure or not analysis.trial.is_verified):
        steps.insert(0, Step(_command("bisect", analysis, *kept), "where the failure or the wrong answer enters"))
    return steps


def notes(analysis: Analysis) -> list[str]:
    """Return the notes of the inspection. `Analysis.judge_trust` says how far times can be trusted."""
    return [show.one_line(note) for note in dict.fromkeys(analysis.inspection.notes)]


def _command(name: str, analysis: Analysis, *more: str) -> str:
    plan = ("--plan", analysis.plan.to_json()) if name != "tune" else ()
    return command_line(name, analysis.workload, *plan, *more)
