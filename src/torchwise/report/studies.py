"""A table of studies, as a part of a page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchwise.records import Study
from torchwise.report import format as show
from torchwise.report.summary import when
from torchwise.report.template import Theme, render_part

if TYPE_CHECKING:
    from torchwise.store import StudySummary

TEMPLATE = "studies.html.j2"


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
    """Return studies as a part of a page. See `template.render_part`.

    Args:
        summaries: newest first.
        place: location of the store.
        theme: light or dark.
        target: the only target shown, or None for any.
        max_count: the maximum number of studies, so that older ones may be missing.
    """
    return render_part(TEMPLATE, theme, summaries=summaries, place=place, when=when, target=target, max_count=max_count)
