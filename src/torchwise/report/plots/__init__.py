"""Plots for pages, one file for each subject. Each plot is drawn once, and holds the figures behind it as a table."""
