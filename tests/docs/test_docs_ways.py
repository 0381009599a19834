"""The ways from one person's file to a server and to a cluster, as their pages show them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from doc_pages import blocks
from typer.testing import CliRunner

from postgres_server import PostgresServer
from store_samples import a_study, claim, complete_trial, create
from torchwise.cli import app
from torchwise.store import open_storage
from torchwise.study.cluster import read_manifest
from torchwise.study.cluster.manifest import Entry

CLUSTER, STORE = "docs/howto/cluster.md", "docs/howto/team-store.md"
PLACE = "postgresql://tuner@localhost/torchwise"


def session(page: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of a page, each with its output there."""
    for _line, block in blocks(page, "console"):
        for entry in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, printed = entry.partition("\n")
            yield command, printed


def test_the_way_to_a_server_prints_what_the_page_shows(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, server = str(tmp_path / "store.db"), postgres.database()
    with open_storage(file) as storage:
        for study in (create(storage, a_study("a")), create(storage, a_study("b"))):
            storage.finish_trial(study.id, complete_trial(claim(storage, study.id)))
    with open_storage(server) as storage:
        place = storage.place
    monkeypatch.setenv("TORCHWISE_STORE", file)
    for command, printed in session(STORE):
        if command.startswith("torchwise "):
            done = CliRunner().invoke(app, shlex.split(command.replace(PLACE, server))[1:], catch_exceptions=False)
            assert done.stdout.replace(place, PLACE) == printed, command
        if "copy" in command:  # from here on the page has the server's URL in the environment
            monkeypatch.setenv("TORCHWISE_STORE", server)


@pytest.mark.parametrize(("page", "ends"), [(STORE, "torchwise store info"), (CLUSTER, "--launcher ray")])
def test_the_way_takes_three_commands_at_most(page: str, ends: str) -> None:
    found = [block for _line, block in blocks(page, "console") if ends in block]
    assert found[0].count("$ ") <= 3


def test_the_manifest_is_what_the_page_says_of_it(tmp_path: Path) -> None:
    file, ((_line, text),) = tmp_path / "sweep.toml", blocks(CLUSTER, "toml")
    file.write_text(text)
    tasks = read_manifest(file).with_device("cpu").tasks
    shown = [block for _line, block in blocks(CLUSTER, "text")]
    for task in tasks:
        task.request()
        assert [f"{task.name}: " in block for block in shown] == [True, True]
    page = (Path(__file__).parents[2] / CLUSTER).read_text()
    lists = re.findall(r"`((?:sizes|devices|modes) = \[.*?\])`", page)
    file.write_text(text.replace('sizes = ["small"]\n', "\n".join(lists)))
    assert (len(tasks), len(read_manifest(file).tasks)) == (2, 16)
    assert [name for name in Entry.__struct_fields__ if not re.search(rf"\b{name}\b", page)] == []
