"""Lists of stored records as parts of a page: studies, the progress of one, and the approvals of plans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchwise.records import Approval, Standing, Study, StudyState
from torchwise.records import format as show
from torchwise.report.document import Block, Cell, Document, Row, Table, Text, Tone, text_columns
from torchwise.report.facts import when
from torchwise.report.render.html import Theme, render_part

if TYPE_CHECKING:
    from torchwise.store import StudySummary

STUDIES = text_columns("study", "target", "where", "state", "trials", "plan", "speed-up (95 %)", "when")
APPROVALS = text_columns("plan", "status", "by", "reason", "time")


def progress(study: Study, now: float) -> str:
    """Describe the progress of a search in a sentence.

    Args:
        study: a running study.
        now: seconds since the epoch.
    """
    finished = [trial for trial in study.trials if trial.state.is_finished]
    running = [
        f"{trial.plan} for {_format_elapsed(trial.started_at, now)}" for trial in study.trials if trial not in finished
    ]
    speedups = [trial.speedup for trial in finished if trial.is_verified and trial.speedup]
    best = max((speedup.mid for speedup in speedups if speedup.is_usable), default=0)
    none_yet = "no verified plan has a reliable speed-up yet" if speedups else "no plan is verified yet"
    parts = [
        f"{show.pluralize(len(finished), 'trial')} finished",
        f"running: {', '.join(running)}" if running else "no trial is running",
        f"the best plan so far is {show.ratio(best)} as fast as eager" if best else none_yet,
    ]
    return f"Searching for {_format_elapsed(study.created_at, now)}: {', '.join(parts)}."


def _format_elapsed(then: float, now: float) -> str:
    return show.seconds(max(now - then, 0.0)) if then > 0 else "some time"


def render_studies(
    summaries: Sequence[StudySummary], place: str, theme: Theme, *, target: str | None, max_count: int
) -> str:
    """Return studies as a part of a page. See `render_part`.

    Args:
        summaries: newest first.
        place: location of the store.
        theme: light or dark.
        target: the only target shown, or None for any.
        max_count: the maximum number of studies, so that older ones may be missing.
    """
    blocks: list[Block] = [Table("Newest first", STUDIES, tuple(map(_study_row, summaries)))]
    if not summaries:
        of_target = f" of {target}" if target else ""
        blocks = [Text(f"No study yet{of_target}: torchwise tune {target or 'TARGET'} creates one.")]
    elif len(summaries) == max_count:
        note = f"These are the newest {max_count} studies. Filter by target to find older ones."
        blocks.insert(0, Text(note, tone=Tone.MUTED))
    return render_part(Document("Studies", tuple(blocks), brand=place), theme)


def _study_row(found: StudySummary) -> Row:
    link, speedup = f"study?study={found.id}", found.speedup
    is_figure = speedup is None or speedup.is_usable
    cells = (
        Cell(str(found.id), link=link),
        Cell(found.target, link=link),
        f"{found.mode} on {found.device}",
        Cell(found.state.value, Tone.GOOD if found.state is StudyState.DECIDED else Tone.WARNING),
        found.trials,
        found.plan or None,
        Cell(show.speedup(speedup), Tone.PLAIN if is_figure else Tone.WARNING),
        when(found.created_at),
    )
    return Row(cells)


def render_approvals(approvals: Sequence[Approval], in_force: str, theme: Theme) -> str:
    """Return approvals as a part of a page. See `render_part`.

    Args:
        approvals: those for one target, mode and kind of hardware.
        in_force: their effect on a decision, in words, or empty if there is none.
        theme: light or dark.
    """
    effect = [Text(in_force, "In force: ")] if in_force else []
    table = Table("Approvals", APPROVALS, tuple(map(_approval_row, approvals)))
    return render_part(Document("", (table, *effect)), theme)


def _approval_row(one: Approval) -> Row:
    standing = Cell(one.standing.value, Tone.BAD if one.standing is Standing.REJECTED else Tone.GOOD)
    return Row((str(one.plan), standing, one.by, one.reason or None, when(one.at)))
