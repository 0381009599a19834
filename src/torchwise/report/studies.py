"""Studies in one line each, as a part of a page."""

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
    """Return the progress of a search, in a sentence.

    Args:
        study: a running study.
        now: seconds since the epoch.
    """
    finished = [trial for trial in study.trials if trial.state.is_finished]
    tried = [
        f"{trial.plan} for {_format_elapsed(trial.started_at, now)}" for trial in study.trials if trial not in finished
    ]
    speedups = [trial.speedup for trial in finished if trial.is_verified and trial.speedup]
    best = max((speedup.mid for speedup in speedups if speedup.is_usable), default=0)
    nothing = "no proven plan has a figure yet" if speedups else "nothing is proven yet"
    words = [
        f"{show.pluralize(len(finished), 'trial')} finished",
        f"being tried: {', '.join(tried)}" if tried else "nothing is being tried at the moment",
        f"the best so far is {show.ratio(best)} as fast as eager" if best else nothing,
    ]
    return f"Searching for {_format_elapsed(study.created_at, now)}: {'; '.join(words)}."


def _format_elapsed(then: float, now: float) -> str:
    return show.seconds(max(now - then, 0.0)) if then > 0 else "some time"


def render_studies(
    summaries: Sequence[StudySummary], place: str, theme: Theme, *, target: str | None, most: int
) -> str:
    """Return studies as a part of a page. See `template.render_part`.

    Args:
        summaries: newest first.
        place: location of the store.
        theme: light or dark.
        target: the only target shown, or None for any.
        most: the maximum number of studies, so that older ones may be missing.
    """
    return render_part(TEMPLATE, theme, summaries=summaries, place=place, when=when, target=target, most=most)
