"""An analysis while it runs: one live line on a terminal, one line per phase in a log."""

from __future__ import annotations

from torchwise.report import format as show
from torchwise.report.progress import Progress


class AnalyzeProgress(Progress):
    """Listener of an analysis that shows the phase, its stage, and the time spent in it."""

    def phase(self, name: str) -> None:
        """Start a phase."""
        self._leader = "one plan, phase by phase"
        self._begin(show.one_line(name))
