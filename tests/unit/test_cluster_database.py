"""A sweep whose store's server is killed: at its beginning, and when a study begins.

`test_cluster_ray.py` has the other cases.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from postgres_server import PostgresServer
from torchwise.cli import app
from torchwise.errors import StorageError
from torchwise.store import db_errors, open_storage
from torchwise.study import cluster
from torchwise.study.cluster.sweep import retry_while_unreachable

command = importlib.import_module("torchwise.cli.sweep")  # of this name the package has the function


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """Return the server, and see to it that the next test has one that runs."""
    yield postgres
    postgres.start()


def test_a_study_that_begins_while_the_server_is_away_waits_for_it(server: PostgresServer) -> None:
    """The command that `torchwise sweep` begins its processes with, and the quickest one that reads a store."""
    url = server.store()
    server.kill()
    words = [*command._command(), "store", "info"]
    with subprocess.Popen(
        words, env=command._environment(url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as study:
        assert study.stderr is not None
        assert "cannot be reached" in study.stderr.readline()
        server.start()
        said, _ = study.communicate(timeout=60)
    assert study.returncode == 0
    assert "0 studies" in said


def test_a_study_waits_no_longer_than_the_limit_and_for_nothing_but_a_server(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, tries = server.store(), []
    monkeypatch.setattr(db_errors, "PATIENCE_S", 0.4)
    server.kill()

    def study() -> None:
        tries.append(url)
        open_storage(url)

    with pytest.raises(StorageError, match="cannot be reached"):
        retry_while_unreachable(study)
    assert len(tries) > 1
    with pytest.raises(StorageError, match="must be a path"):
        retry_while_unreachable(lambda: open_storage("nowhere").close())


def test_a_store_that_cannot_be_reached_is_refused_before_anything_runs(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = tmp_path / "sweep.toml"
    manifest.write_text("targets = ['zoo:tutorial.fusion_demo']\n")
    monkeypatch.setattr(cluster, "run_sweep", lambda *_: pytest.fail("something runs"))
    url = server.store()
    server.kill()
    done = CliRunner().invoke(app, ["sweep", str(manifest), "--device", "cpu", "--store", url])
    assert isinstance(done.exception, StorageError)
    assert "cannot be reached" in str(done.exception)
