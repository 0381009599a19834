"""The plots of an explanation: kernels against the roofline, stages of compiling, and the time of calls."""

from __future__ import annotations

from torchwise.records.explanation import Explanation
from torchwise.report import format as show
from torchwise.report.plots.distribution import Samples, distribution_plot
from torchwise.report.plots.plot import Plot
from torchwise.report.plots.roofline import roofline_plot
from torchwise.report.plots.timeline import timeline_plot


def plots(explanation: Explanation) -> list[Plot]:
    """Return the plots that the explanation has the records for."""
    found = (
        roofline_plot(explanation.kernels, explanation.limits),
        timeline_plot(explanation.stages),
        _latency(explanation),
    )
    return [plot for plot in found if plot]


def _latency(explanation: Explanation) -> Plot | None:
    timed = explanation.measurement
    if not timed.candidate_s or not timed.baseline_s:
        return None
    name = "torch.compile" if explanation.plan is None else show.truncate(str(explanation.plan), 40)
    mean = "" if timed.calls_per_round == 1 else "the mean of "
    return distribution_plot(
        Samples(name, timed.candidate_s),
        Samples("eager", timed.baseline_s),
        title="Time of a call",
        unit="round",
        caption=f" A round is {mean}{show.pluralize(timed.calls_per_round, 'call')}, in alternation with eager's.",
    )
