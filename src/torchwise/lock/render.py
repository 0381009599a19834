"""A check on a terminal: its progress, then the results, failures first, and a summary at the end."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from torchwise.lock.check_results import Check, Checked, State
from torchwise.records.answer import EXIT_INCONCLUSIVE
from torchwise.report import format as show
from torchwise.report import layout
from torchwise.report.progress import Progress

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


class CheckProgress(Progress):
    """Listener of a check that shows the current section and its duration."""

    def phase(self, name: str) -> None:
        """Start a section."""
        self._leader = "section by section"
        self._begin(show.one_line(name))


def render_check(check: Check) -> RenderableType:
    """Return a check as text."""
    parts: list[RenderableType] = [layout.trust_line(check.trust), Text()] if check.trust else []
    for state, title in TITLES.items():
        if rows := check.select_rows(state):
            lines = [line for row in rows for line in _lines(row)]
            parts.append(Group(Text(title, style=_style(state)), *lines, Text()))
    style = {0: "bold green", EXIT_INCONCLUSIVE: "bold yellow"}.get(check.exit_code, "bold red")
    return Group(*parts, Text(sentence(check), style=style))


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


def _lines(row: Checked) -> list[Text]:
    named = filter(None, (row.target, row.mode and f"({row.mode} on {row.hardware})"))
    plan = f", {show.one_line(row.plan)}" if row.plan else ""
    lines = [f"  {show.one_line(' '.join(named))}{plan}: {show.one_line(row.detail)}"]
    lines += [f"    {row.way_out}"] if row.way_out else []
    return list(map(Text, lines))


def _style(state: State) -> str:
    return "bold red" if state.is_regression else "bold yellow" if state in UNDECIDED else "bold"
