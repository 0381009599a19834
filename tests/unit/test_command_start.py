"""The budget of a command counts from its start, and that of a call in a program from the call."""

from __future__ import annotations

import sys
import time

import pytest

from torchwise import cli
from torchwise.command_start import budget_start
from torchwise.plan.workload_spec import TuneOptions
from torchwise.study import Request


def make_request() -> Request:
    return Request.from_options(TuneOptions(budget=3), "a:b", "cpu")


@pytest.mark.parametrize(("command", "from_start"), [("tune", True), ("run", False)])
def test_a_budget_counts_from_the_start_of_a_command(
    monkeypatch: pytest.MonkeyPatch, command: str, from_start: bool
) -> None:
    """A program that `torchwise run` runs has its own time."""
    entered: list[float] = []
    begun: list[float] = []

    def run() -> None:
        entered.append(time.monotonic())
        begun.extend((budget_start(), make_request().begun or 0.0))

    monkeypatch.setattr(sys, "argv", ["torchwise", command])
    before = time.monotonic()
    cli.main(run)
    assert all(before <= one for one in begun)
    assert [one < entered[0] for one in begun] == [from_start, from_start]


def test_outside_of_a_command_it_counts_from_the_call() -> None:
    before = time.monotonic()
    assert before <= budget_start() <= time.monotonic()
    assert before <= (make_request().begun or 0.0)
