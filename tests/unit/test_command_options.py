"""An option has one type and one meaning in all commands."""

from __future__ import annotations

import re
import typing
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from torchwise.cli import app

ROOT = typer.main.get_command(app)
LEADING_WORDS = 2
"""Words with which the help of an option begins in all commands. The rest may say more of one command."""


def walk(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield each command with its words, groups included."""
    yield " ".join(path), command
    for name, one in getattr(command, "commands", {}).items():
        yield from walk(one, (*path, name))


def list_options() -> dict[str, dict[str, Any]]:
    """List the options of all commands: by option, its parameter in each command that has it."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for words, command in walk():
        for one in command.params:
            if one.param_type_name == "option" and not one.hidden:
                for name in (*one.opts, *one.secondary_opts):
                    found[name][words] = one
    return dict(found)


OPTIONS = list_options()
SHARED = [name for name, places in OPTIONS.items() if len(places) > 1]
COMMANDS = dict(walk())


def name_type(option: Any) -> str:
    """Name the type of an option's value. One that may be repeated has that of each value."""
    annotation = option.type_descriptor.annotation
    return "".join(one.__name__ for one in typing.get_args(annotation)) or str(annotation.__name__)


FREE = {
    *("--address", "--against-python", "--against-torch", "--artifacts", "--batch-dim", "--batches", "--budget"),
    *("--by", "--calls", "--candidate-python", "--compile-timeout", "--export", "--host", "--html", "--input"),
    *("--inputs", "--iterations", "--json", "--latency-limit", "--limit", "--lock", "--max-count", "--max-size"),
    *("--memory-limit", "--metric", "--module", "--parallel", "--plots", "--port", "--public", "--python"),
    *("--reason", "--repro", "--restarts", "--resume", "--search-budget", "--seed", "--sha256", "--store", "--suite"),
    *("--threshold", "--to", "--tolerance", "--workers", "a", "b", "candidate", "file", "manifest", "place", "program"),
    *("reference", "schema", "size", "url"),
}
"""Options and arguments whose values nobody can list: numbers, texts, and files, which the shell completes."""


def test_every_value_that_can_be_listed_is_completed() -> None:
    without = {
        one.opts[-1]
        for _, command in walk()
        for one in command.params
        if not getattr(one, "is_flag", False)
        and not getattr(one, "hidden", False)
        and one._custom_shell_complete is None
    }
    assert without == FREE


@pytest.mark.parametrize("name", SHARED)
def test_an_option_has_one_type_in_all_commands(name: str) -> None:
    kinds = {words: (name_type(one), one.is_flag) for words, one in OPTIONS[name].items()}
    assert len(set(kinds.values())) == 1, kinds


@pytest.mark.parametrize("name", SHARED)
def test_an_option_has_one_meaning_in_all_commands(name: str) -> None:
    meanings = {words: re.findall(r"\w+", one.help or "")[:LEADING_WORDS] for words, one in OPTIONS[name].items()}
    assert len({tuple(words) for words in meanings.values()}) == 1, meanings
    assert all(meanings.values()), "each has a help"


def test_the_walk_finds_the_options() -> None:
    assert {"--json", "--plan", "--budget", "--limit", "--store", "--fresh"} <= OPTIONS.keys()
    assert len(OPTIONS["--json"]) > 10


@pytest.mark.parametrize("words", [words for words, command in COMMANDS.items() if hasattr(command, "commands")])
def test_a_list_of_commands_has_their_whole_first_sentences(words: str) -> None:
    shown = " ".join(CliRunner().invoke(app, [*words.split(), "--help"], terminal_width=80).output.split())
    for name, one in COMMANDS[words].commands.items():
        if not one.hidden:
            sentence = " ".join((one.help or "").strip().partition("\n\n")[0].split()).partition(". ")[0]
            assert f"{name} {sentence.rstrip('.')}." in shown


@pytest.mark.parametrize("words", COMMANDS)
def test_every_help_is_within_80_columns_and_uncut(words: str) -> None:
    done = CliRunner().invoke(app, [*words.split(), "--help"], terminal_width=80)
    assert done.exit_code == 0
    assert max(map(len, done.output.splitlines())) <= 80, [one for one in done.output.splitlines() if len(one) > 80]
    assert "…" not in done.output
    for one in COMMANDS[words].params:
        if one.help and not one.hidden:
            assert re.sub(r"\s", "", one.help) in re.sub(r"\s", "", done.output), one.name
