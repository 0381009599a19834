"""Results of a check, section by section, their display on a terminal, and the exit code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rich.console import RenderableType

from torchwise.records import Interval, codec
from torchwise.records import format as show
from torchwise.records.answer import EXIT_INCONCLUSIVE, Trust
from torchwise.records.statistics import Amount, Share
from torchwise.report.document import Block, Document, Items, Section, Text, Tone, trust_text
from torchwise.report.html import render_page
from torchwise.report.progress import AnalyzeProgress
from torchwise.report.terminal import render_terminal

SCHEMA = "torchwise.check/1"


class State(StrEnum):
    """Result of a section's check."""

    STALE = "stale"
    WRONG = "wrong"
    LOST = "lost"
    SLOWER = "slower"
    BREAKS = "graph breaks"
    INCONCLUSIVE = "inconclusive"
    UNKNOWN = "not checked"
    FASTER = "faster"
    GOOD = "good"
    ELSEWHERE = "other hardware"

    @property
    def is_regression(self) -> bool:
        """Whether it fails a check."""
        return self in (State.STALE, State.WRONG, State.LOST, State.SLOWER, State.BREAKS)


TITLES = {
    State.STALE: "Stale: the model, the inputs or the software changed",
    State.WRONG: "No longer correct",
    State.LOST: "Lost: the plan no longer runs",
    State.SLOWER: "Slower",
    State.BREAKS: "The graph breaks",
    State.INCONCLUSIVE: "Inconclusive: correct, but the measurements cannot tell whether it is as fast",
    State.UNKNOWN: "Not checked",
    State.FASTER: "Faster",
    State.GOOD: "As locked",
    State.ELSEWHERE: "For other hardware, not checked here",
}
"""Headings in display order."""
UNDECIDED = (State.INCONCLUSIVE, State.UNKNOWN)
"""States that are neither good nor bad."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One section.

    Attributes:
        detail: the figures or the reason, as text.
        way_out: command or action to take, or empty if none is needed.
        locked: the locked speed-up over eager, or None for eager, whose plans are not timed.
        found: the speed-up measured now, or None if it was not measured.
        speedup: `found` over `locked`, or None if either is.
        time: the plan's time per call now over the locked one, or None likewise. In a check against another PyTorch,
            the time with that over the time with this one.
        against: the other PyTorch, or empty for what holds in this environment, without any upgrade.
    """

    target: str
    mode: str
    hardware: str
    state: State
    detail: str
    way_out: str = ""
    plan: str = ""
    locked: Interval | None = None
    found: Interval | None = None
    speedup: Interval | None = None
    time: Interval | None = None
    notes: tuple[str, ...] = ()
    against: str = ""


@dataclass(frozen=True, slots=True)
class Check(codec.Document):
    """A lock file, checked on one machine.

    Attributes:
        rows: every requested section, and every named target that has no section for this machine.
        confidence: of each single interval, so that all of them hold together with 95 %. In a check against another
            PyTorch, each interval by itself holds with 95 %.
        trust: reliability of the new measurements, or None if there were none, or for checks of earlier versions.
    """

    rows: tuple[Checked, ...]
    threshold: Amount
    confidence: Share
    trust: Trust | None = None
    schema: str = SCHEMA

    def __repr__(self) -> str:
        return f"<Check of {show.pluralize(len(self.rows), 'section')}: {sentence(self)}>"

    def _repr_html_(self) -> str:
        return render_page(check_document(self))

    def select_rows(self, state: State) -> tuple[Checked, ...]:
        """Return the rows of one state."""
        return tuple(row for row in self.rows if row.state is state)

    @property
    def exit_code(self) -> int:
        """The first code that applies.

        1 if anything is stale, wrong, lost or slower, or a graph breaks. 2 if something was not checked, or nothing is
        for this machine. 4 if the measurements cannot tell. 0 if all is as locked.
        """
        if any(row.state.is_regression for row in self.rows):
            return 1
        settled = (State.GOOD, State.FASTER, State.INCONCLUSIVE)
        if self.select_rows(State.UNKNOWN) or not any(map(self.select_rows, settled)):
            return 2
        return EXIT_INCONCLUSIVE if self.select_rows(State.INCONCLUSIVE) else 0


class CheckProgress(AnalyzeProgress):
    """Listener of a check that shows the current section and its duration."""

    leader = "section by section"


def render_check(check: Check) -> RenderableType:
    """Return a check for a terminal."""
    return render_terminal(check_document(check))


def check_document(check: Check) -> Document:
    """Return the report on a check."""
    found = ((state, check.select_rows(state)) for state in TITLES)
    tone = {0: Tone.GOOD, EXIT_INCONCLUSIVE: Tone.WARNING}.get(check.exit_code, Tone.BAD)
    blocks: tuple[Block, ...] = (
        *([trust_text(check.trust)] if check.trust else []),
        *(
            Section(_choose_title(check, state), (Items(tuple(map(_describe_row, rows))),), _choose_tone(state))
            for state, rows in found
            if rows
        ),
        Text(sentence(check), tone=tone),
    )
    return Document("Check of a lock", blocks)


def sentence(check: Check) -> str:
    """Return the outcome in a sentence."""
    counts = ", ".join(f"{len(found)} {state}" for state in State if (found := check.select_rows(state)))
    if others := tuple(dict.fromkeys(row.against for row in check.rows if row.against)):
        return _advise(check, others, counts)
    if check.exit_code == 1:
        return f"The lock is not valid on this machine: {counts}."
    if check.exit_code == EXIT_INCONCLUSIVE:
        return (
            f"Inconclusive: the measurements cannot tell whether all plans are as fast as locked: {counts}. "
            "Check again on a quieter machine."
        )
    if check.exit_code == 0:
        return f"The lock is valid on this machine: {counts}."
    if not check.rows:
        return "The lock is empty: torchwise tune TARGET && torchwise lock TARGET."
    if not any(row.state is not State.ELSEWHERE for row in check.rows):
        return f"The lock has no section for this machine ({counts}): torchwise tune TARGET && torchwise lock TARGET."
    return f"The lock could not be checked: {counts}."


def _advise(check: Check, others: tuple[str, ...], counts: str) -> str:
    """Say whether to move to other versions of PyTorch."""
    worse = [other for other in others if any(row.state.is_regression for row in check.rows if row.against == other)]
    if worse:
        return f"Worse with {' and '.join(worse)}: {counts}. Pin what you have, or tune these again after the upgrade."
    advice = {
        0: "Nothing speaks against" if _is_timed(check) else "Nothing is wrong, but nothing was timed with",
        1: "Some plans are stale before any upgrade, so not all could be checked with",
        EXIT_INCONCLUSIVE: "The measurements leave open whether to move to",
    }
    start = advice.get(check.exit_code, "Not all could be checked with")
    return f"{start} {' and '.join(others)}: {counts}. After the upgrade every decision is stale: tune and lock again."


def _describe_row(row: Checked) -> str:
    against = row.against and f"with {row.against}"
    named = filter(None, (row.target, row.mode and f"({row.mode} on {row.hardware})", against))
    plan = f", {show.one_line(row.plan)}" if row.plan else ""
    way_out = f"\n  {show.one_line(row.way_out)}" if row.way_out else ""
    return f"{show.one_line(' '.join(named))}{plan}: {show.one_line(row.detail)}{way_out}"


def _choose_title(check: Check, state: State) -> str:
    is_upgrade = state is State.GOOD and any(row.against for row in check.rows)
    told = "Correct, and not slower" if _is_timed(check) else "Correct, but not timed"
    return told if is_upgrade else TITLES[state]


def _is_timed(check: Check) -> bool:
    """Whether a plan was timed on another PyTorch."""
    return any(row.time for row in check.rows)


def _choose_tone(state: State) -> Tone:
    return Tone.BAD if state.is_regression else Tone.WARNING if state in UNDECIDED else Tone.PLAIN
