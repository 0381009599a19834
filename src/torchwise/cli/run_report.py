"""Reports of `torchwise run`: where they go, and the calls that a run by plans leaves for the next search."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torchwise.cli.search_words import SEARCH, list_words
from torchwise.errors import StorageError, TorchwiseError

if TYPE_CHECKING:
    from torchwise.records import Decision, Study
    from torchwise.records.missed_calls import MissedKind
    from torchwise.records.recording import Recording
    from torchwise.report.document import Document
    from torchwise.runtime.program import StoredPlans
    from torchwise.runtime.program.missed_calls import PlacedPlans
    from torchwise.runtime.program.missed_files import Stored
    from torchwise.runtime.program.script import Script


@dataclass(frozen=True)
class Report:
    """Where a report goes. The stream is the one from before the program, which may put another in its place.

    It is None if it was closed before the start.
    """

    stream: TextIO | None
    json: Path | None = None
    html: Path | None = None

    def show(self, document: Document, recording: Recording | None = None) -> None:
        """Print a document, and write files."""
        from rich.console import Console

        from torchwise.records.files import write_atomically, write_json
        from torchwise.report.html import render_page
        from torchwise.report.terminal import render_terminal
        from torchwise.runtime.program.script import flush_streams

        flush_streams()
        if self.stream is not None:
            console = Console(file=self.stream)
            console.on_broken_pipe = lambda: None  # type: ignore[method-assign]  # which would end this process
            with contextlib.suppress(OSError, ValueError):  # the program, or its reader, may have closed it
                console.print(render_terminal(document))
        if self.json and recording:
            write_json(recording, self.json)
        if self.html:
            write_atomically(render_page(document), self.html)

    def say(self, text: str) -> None:
        """Print a line, if the stream takes it."""
        if self.stream is not None:
            with contextlib.suppress(OSError, ValueError):
                print(text, file=self.stream, flush=True)


def read_stored_calls(program: str, store: str | None) -> tuple[Stored, str]:
    """Return the calls of earlier runs that no plan was verified on, and why they cannot be read, or ""."""
    from torchwise.runtime.program.missed_files import read_missed

    try:
        return read_missed(program, store), ""
    except TorchwiseError as error:  # the program has run, and can be tuned without
        return {}, f"calls of earlier runs are left out: {error}"


def report_plans(script: Script, plans: StoredPlans, store: str | None, words: list[str], report: Report) -> None:
    """Show who answered the calls of a run by plans, and keep those that no plan was verified on for a search.

    `words` are the options that the next command repeats.
    """
    from torchwise.report.document import Step
    from torchwise.report.recording import applied_document
    from torchwise.runtime.program.missed_calls import add_run, list_missed, rank_kinds

    missed, notes = list_missed(plans.missed), [*plans.notes]
    is_kept = True
    try:
        add_run(script.name, store, missed, plans.list_placed())
    except Exception as error:  # of any class: the run is over, and its report and exit code are due all the same
        is_kept = False
        notes.append(f"the calls on other inputs are not kept for a search: {error}")
    kinds = rank_kinds(missed)
    steps: tuple[Step, ...] = ()
    if kinds:
        notes += [f"{name}: {note}" for (name, _), calls in plans.missed.modules.items() for note in calls.notes]
        notes.append(_explain_missed(kinds, is_kept=is_kept))
        again = list_words(_repeat_options(plans.list_placed(), kinds[0][0], _count_calls(plans), store))
        command = shlex.join(["torchwise", "run", "--tune", *again, *words, *script.words])
        steps = (Step(command, "tunes for these inputs, too"),)
    report.show(applied_document(script.name, plans.list_calls(), notes, kinds, plans.seconds, steps))


def _explain_missed(kinds: Sequence[tuple[str, MissedKind]], *, is_kept: bool) -> str:
    """Say which inputs the next search knows."""
    if is_kept and all(kind.kept != "none" for _, kind in kinds):
        return "the next --tune tunes for these inputs, too, whichever inputs it sees"
    if not is_kept or all(kind.kept == "none" for _, kind in kinds):
        return "these inputs are not kept, so the next --tune tunes for them only if it sees them"
    return "the next --tune tunes for these inputs, too, and for those that are not kept only if it sees them"


def _choose_decision(placed: Sequence[PlacedPlans], name: str) -> Decision:
    """Return the decision that tells the options of the search of a program: that of a module, or one by a metric.

    Where outputs are compared by distribution, modules without random numbers have a study without a metric.
    """
    own = next(one.decision for one in placed if one.name == name)
    return next((one.decision for one in placed if one.decision.workload.metric), own)


def _count_calls(plans: StoredPlans) -> dict[str, int]:
    """Return how many calls each module had in this run."""
    found: dict[str, int] = {}
    for name, _, optimized, others in plans.list_calls():
        found[name] = found.get(name, 0) + optimized + sum(others.values())
    return found


def _repeat_options(
    placed: Sequence[PlacedPlans], name: str, made: Mapping[str, int], store: str | None
) -> dict[str, Any]:
    """Return the options of the search that made the decisions, as far as these and its study tell them.

    The number of calls is among them if that search expected more of the module with the most time than it had now.
    Otherwise the decisions would be made anew for fewer calls.
    """
    from torchwise.plan.space import numerics_of

    decision = _choose_decision(placed, name)
    asked, study = decision.workload, _find_study(decision, store)
    most = max(placed, key=lambda one: one.decision.baseline_s * one.decision.workload.calls)
    expected = most.decision.workload.calls
    return {
        "restarts": asked.restarts,
        "allow": str(study.allow if study else numerics_of(decision.plan)),
        "effort": study.effort if study else SEARCH["effort"],
        "objective": asked.objective,
        "calls": expected if expected > made.get(most.name, 0) * asked.restarts else None,
        "tolerance": asked.tolerance,
        "metric": asked.metric,
        "require": tuple(map(str, asked.require)),
    }


def _find_study(decision: Decision, store: str | None) -> Study | None:
    """Return the study of a decision, or None if it is gone."""
    from torchwise.store import open_storage

    target = decision.workload.target
    with contextlib.suppress(StorageError), open_storage(store, existing=True) as storage:
        for summary in storage.list_studies(target):  # the newest first
            study = storage.get_study(summary.id, target)
            if study.decision is not None and study.decision.structure == decision.structure:
                return study
    return None
