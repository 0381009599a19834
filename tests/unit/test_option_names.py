"""Options of commands are named, and not left to typer: releases 0.27 take the word for a value as the name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import torchwise.cli

FOLDER = Path(str(torchwise.cli.__file__)).parent


def list_unnamed(code: str) -> list[int]:
    """List the lines of options with a word for their value, and no name."""
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == "Option"]
    valued = [call for call in made if any(keyword.arg == "metavar" for keyword in call.keywords)]
    return [call.lineno for call in valued if not call.args]


def test_an_option_without_a_name_is_found() -> None:
    assert list_unnamed('typer.Option(metavar="N")\ntyper.Option("--n", metavar="N")\ntyper.Option(help="")') == [1]


@pytest.mark.parametrize("file", sorted(FOLDER.rglob("*.py")), ids=lambda file: file.name)
def test_options_with_values_are_named(file: Path) -> None:
    assert list_unnamed(file.read_text()) == []
