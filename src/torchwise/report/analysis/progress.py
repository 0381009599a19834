"""An analysis while it runs: one live line on a terminal, one line per phase in a log."""

from __future__ import annotations

from torchwise.report import format as show
from torchwise.report.progress import Progress


class AnalyzeProgress(Progress):
    """Shows the phase and its stage, and for how long; an analysis's listener."""

    def phase(self, name: str) -> None:
        """A phase is begun."""
        self._leader = "one plan, phase by phase"
        self._begin(show.one_line(name))
