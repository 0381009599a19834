"""A value that is refused as no number is named on the command line, unlike in Typer's own messages."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from torchwise.cli import app


@pytest.mark.parametrize(
    "words",
    [
        ["tune", "a.py:make", "--calls", "1e6"],
        ["tune", "a.py:make", "--budget", "ten"],
        ["plans", "delete", "latest"],
        ["dashboard", "--port", "99999"],
    ],
)
def test_a_refused_number_is_named(words: list[str]) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert words[-1] in done.output, done.output
