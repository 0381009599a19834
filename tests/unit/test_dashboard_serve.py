"""`torchwise dashboard`: where it listens, who may write, the options for Streamlit, and refused requests."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torchwise.cli import app
from torchwise.dashboard import serve
from torchwise.errors import InputError, StorageError, UnsupportedError
from torchwise.store import open_storage


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    import streamlit.web.cli

    found: list[list[str]] = []
    monkeypatch.setattr(streamlit.web.cli, "main", found.append)
    monkeypatch.setenv("TORCHWISE_STORE", "another")  # so that it is put back
    return found


@pytest.mark.parametrize(
    ("words", "read_only"),
    [
        ([], False),
        (["--host", "127.0.0.1"], False),
        (["--host", "0.0.0.0"], True),
        (["--host", "0.0.0.0", "--writable"], False),
        (["--read-only"], True),
    ],
)
def test_only_this_machine_may_rule_unless_somebody_says_so(
    words: list[str], read_only: bool, told: list[list[str]], tmp_path: Path
) -> None:
    store = str(tmp_path / "store.db")
    open_storage(store).close()
    done = CliRunner().invoke(app, ["dashboard", "--store", store, "--port", str(a_free_port()), *words])
    assert done.exit_code == 0, done.output
    (said,) = told
    assert (said[-1] == serve.READ_ONLY) == read_only
    assert os.environ["TORCHWISE_STORE"] == store
    assert store not in " ".join(said)


def test_a_store_that_is_not_there_is_refused_and_not_made(told: list[list[str]], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["dashboard", "--store", str(tmp_path / "typo.db")])
    assert isinstance(done.exception, StorageError)
    assert "typo.db does not exist" in str(done.exception)
    assert told == []
    assert not list(tmp_path.iterdir())


def test_streamlit_reports_to_nobody_and_opens_a_browser_only_where_asked() -> None:
    assert "--browser.gatherUsageStats=false" in serve.build_arguments("localhost", 1, browser=True)
    assert "--server.showEmailPrompt=false" in serve.build_arguments("localhost", 1, browser=True), (
        "the first start asks for one"
    )
    assert "--server.address=localhost" in serve.build_arguments("localhost", 1, browser=True)
    assert "--server.headless=false" in serve.build_arguments("localhost", 1, browser=True)
    assert "--server.headless=true" in serve.build_arguments("localhost", 1, browser=False)


def test_an_address_that_is_taken_is_refused_with_the_way_out(told: list[list[str]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="another --port or --host"):
        serve.serve("store.db", "127.0.0.1", taken.getsockname()[1], read_only=True, browser=False)
    with pytest.raises(InputError, match=r"no\.such\.host\.invalid"):
        serve.serve("store.db", "no.such.host.invalid", 8501, read_only=True, browser=False)
    assert told == []


def test_without_streamlit_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "streamlit" else find(name))
    with pytest.raises(UnsupportedError, match=r"pip install 'streamlit>=1.46'"):
        serve.serve("store.db", "localhost", 8501, read_only=True, browser=False)


def test_a_store_that_cannot_be_used_is_refused_before_anything_starts(told: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("no database")
    done = CliRunner().invoke(app, ["dashboard", "--store", str(tmp_path / "store.db")])
    assert done.exit_code != 0
    assert told == []


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("10.0.0.7", False), ("box", False)],
)
def test_what_is_this_machine(host: str, is_ours: bool) -> None:
    assert serve.is_this_machine(host) == is_ours


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
