"""Rewrites of the model, one file each."""
