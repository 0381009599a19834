"""People's approvals of a target's plans, as a part of a page."""

from __future__ import annotations

from collections.abc import Sequence

from torchwise.records import Approval
from torchwise.report.summary import when
from torchwise.report.template import Theme, render_part

TEMPLATE = "rulings.html.j2"


def render_approvals(rulings: Sequence[Approval], in_force: str, theme: Theme) -> str:
    """Return approvals as a part of a page. See `template.render_part`.

    Args:
        rulings: on one target, mode and kind of hardware.
        in_force: their effect on a decision, in words, or empty if there is none.
        theme: light or dark.
    """
    return render_part(TEMPLATE, theme, rulings=rulings, in_force=in_force, when=when)
