"""A check on a terminal: its progress, then the results, failures first, and a summary at the end."""

from __future__ import annotations

from rich.console import RenderableType

from torchwise.lock.check_results import Check, Checked, State
from torchwise.records import format as show
from torchwise.records.answer import EXIT_INCONCLUSIVE
from torchwise.report.document import Block, Document, Items, Section, Text, Tone, trust_text
from torchwise.report.progress import AnalyzeProgress
from torchwise.report.render.terminal import render_terminal

TITLES = {
    State.STALE: "Stale: the model, the inputs or the software changed",
    State.WRONG: "No longer correct",
    State.LOST: "Lost: the plan no longer runs",
    State.SLOWER: "Slower",
    State.INCONCLUSIVE: "Inconclusive: correct, but the measurements cannot tell whether it is as fast",
    State.UNKNOWN: "Not checked",
    State.GOOD: "As locked",
    State.ELSEWHERE: "For other hardware, not checked here",
}
"""Headings in display order."""
UNDECIDED = (State.INCONCLUSIVE, State.UNKNOWN)
"""States that are neither good nor bad."""


class CheckProgress(AnalyzeProgress):
    """Listener of a check that shows the current section and its duration."""

    leader = "section by section"


def render_check(check: Check) -> RenderableType:
    """Return a check for a terminal."""
    found = ((state, check.select_rows(state)) for state in TITLES)
    tone = {0: Tone.GOOD, EXIT_INCONCLUSIVE: Tone.WARNING}.get(check.exit_code, Tone.BAD)
    blocks: tuple[Block, ...] = (
        *([trust_text(check.trust)] if check.trust else []),
        *(
            Section(TITLES[state], (Items(tuple(map(_describe_row, rows))),), _choose_tone(state))
            for state, rows in found
            if rows
        ),
        Text(sentence(check), tone=tone),
    )
    return render_terminal(Document("Check of a lock", blocks))


def sentence(check: Check) -> str:
    """Return the outcome in a sentence."""
    counts = ", ".join(f"{len(found)} {state}" for state in State if (found := check.select_rows(state)))
    if check.exit_code == 1:
        return f"The lock is not valid on this machine: {counts}."
    if check.exit_code == EXIT_INCONCLUSIVE:
        return (
            f"Inconclusive: the measurements cannot tell whether all plans are as fast as locked: {counts}. "
            "Check again on a quieter machine."
        )
    if check.exit_code == 0:
        return f"The lock is valid on this machine: {counts}."
    if not any(row.state is not State.ELSEWHERE for row in check.rows):
        return f"The lock has no section for this machine ({counts}): torchwise tune TARGET && torchwise lock TARGET."
    return f"The lock could not be checked: {counts}."


def _describe_row(row: Checked) -> str:
    named = filter(None, (row.target, row.mode and f"({row.mode} on {row.hardware})"))
    plan = f", {show.one_line(row.plan)}" if row.plan else ""
    way_out = f"\n  {show.one_line(row.way_out)}" if row.way_out else ""
    return f"{show.one_line(' '.join(named))}{plan}: {show.one_line(row.detail)}{way_out}"


def _choose_tone(state: State) -> Tone:
    return Tone.BAD if state.is_regression else Tone.WARNING if state in UNDECIDED else Tone.PLAIN
