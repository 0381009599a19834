"""Approvals of a target's plans, as a part of a page."""

from __future__ import annotations

from collections.abc import Sequence

from torchwise.records import Approval
from torchwise.report.summary import when
from torchwise.report.template import Theme, render_part

TEMPLATE = "approvals.html.j2"


def render_approvals(approvals: Sequence[Approval], in_force: str, theme: Theme) -> str:
    """Return approvals as a part of a page. See `template.render_part`.

    Args:
        approvals: those for one target, mode and kind of hardware.
        in_force: their effect on a decision, in words, or empty if there is none.
        theme: light or dark.
    """
    return render_part(TEMPLATE, theme, approvals=approvals, in_force=in_force, when=when)
