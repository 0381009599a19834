"""A check on a terminal: while it runs, and what fails first, the sentence that counts last, where a log ends."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from torchwise.lock.checked import Check, Checked, State
from torchwise.report import format as show
from torchwise.report.progress import Progress

TITLES = {
    State.STALE: "Stale: locked for another model, other inputs or other software",
    State.WRONG: "No longer proven right",
    State.LOST: "Lost: the plan no longer runs",
    State.SLOWER: "Slower",
    State.UNKNOWN: "Not checked",
    State.GOOD: "As locked",
    State.ELSEWHERE: "Of other hardware, and not checked here",
}
"""Headings in the order in which they are shown."""


class CheckProgress(Progress):
    """Shows which section is checked, and for how long; a check's listener."""

    def phase(self, name: str) -> None:
        """A section is begun."""
        self._leader = "section by section"
        self._begin(show.one_line(name))


def render_check(check: Check) -> RenderableType:
    """Return a check as text."""
    parts: list[RenderableType] = []
    for state, title in TITLES.items():
        if rows := check.of(state):
            lines = [line for row in rows for line in _lines(row)]
            parts.append(Group(Text(title, style=_style(state)), *lines, Text()))
    style = "bold green" if check.exit_code == 0 else "bold red"
    return Group(*parts, Text(sentence(check), style=style))


def sentence(check: Check) -> str:
    """Return the outcome in a sentence."""
    counts = ", ".join(f"{len(found)} {state}" for state in State if (found := check.of(state)))
    if check.exit_code == 1:
        return f"The lock does not hold here: {counts}."
    if check.exit_code == 0:
        return f"The lock holds here: {counts}."
    if not any(row.state is not State.ELSEWHERE for row in check.rows):
        return f"Nothing in the lock is for this machine ({counts}): torchwise tune TARGET && torchwise lock TARGET."
    return f"The lock could not be checked: {counts}."


def _lines(row: Checked) -> list[Text]:
    named = filter(None, (row.target, row.mode and f"({row.mode} on {row.hardware})"))
    plan = f", {show.one_line(row.plan)}" if row.plan else ""
    lines = [f"  {show.one_line(' '.join(named))}{plan}: {show.one_line(row.detail)}"]
    lines += [f"    note: {show.one_line(note)}" for note in row.notes if row.state is State.SLOWER]
    lines += [f"    {row.way_out}"] if row.way_out else []
    return list(map(Text, lines))


def _style(state: State) -> str:
    return "bold red" if state.is_regression else "bold yellow" if state is State.UNKNOWN else "bold"
