"""Run a suite on an implementation that breaks its contract."""

from __future__ import annotations

import inspect
from typing import Any

import pytest


def run_suite(suite: object, **fixtures: Any) -> dict[str, bool]:
    """Run each test of a suite that needs these fixtures alone, and return whether it passes, by name."""
    passed = {}
    for name, check in inspect.getmembers(suite, inspect.ismethod):
        wanted = inspect.signature(check).parameters
        if name.startswith("test_") and set(wanted) <= set(fixtures):
            try:
                check(**{fixture: fixtures[fixture] for fixture in wanted})
                passed[name.removeprefix("test_")] = True
            except (Exception, pytest.fail.Exception):
                passed[name.removeprefix("test_")] = False
    assert passed
    return passed
