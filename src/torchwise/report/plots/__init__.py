"""Plots of a study, one file each: an inline SVG that takes its colours from the page, and the table behind it."""

from torchwise.report.plots.plot import Plot, Series

__all__ = ["Plot", "Series"]
