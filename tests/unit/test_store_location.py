"""From the user's text to a database."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from store_samples import create
from torchwise.errors import StorageError
from torchwise.store import default_url, open_storage
from torchwise.store.location import locate

POSTGRES = "postgresql+psycopg://me:secret@host/db"


def test_the_default_is_a_file_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHWISE_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert re.fullmatch(r"sqlite:///.*torchwise/torchwise\.db", default_url())
    if sys.platform == "linux":
        assert default_url() == f"sqlite:///{tmp_path}/torchwise/torchwise.db"


@pytest.mark.parametrize("given", ["{}/mine.db", "sqlite:///{}/mine.db"])
def test_the_environment_names_another(given: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHWISE_STORE", given.format(tmp_path))
    with open_storage() as storage:
        assert storage.place == str(tmp_path / "mine.db")
    assert (tmp_path / "mine.db").exists()


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHWISE_STORE", "")
    assert default_url().startswith("sqlite:///")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("a.db", "{cwd}/a.db"),
        ("sqlite:///a.db", "{cwd}/a.db"),
        ("sqlite:////tmp/a.anything", "/tmp/a.anything"),
        ("/tmp/with space%20&?#.db", "/tmp/with space%20&?#.db"),
        ("~/a.db", "{home}/a.db"),
    ],
)
def test_files_become_absolute(given: str, meant: str) -> None:
    assert locate(given).database == meant.format(cwd=Path.cwd(), home=Path.home())


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_is_reached_by_psycopg(scheme: str) -> None:
    url = locate(f"{scheme}://me:secret@host/db")
    assert url.render_as_string(hide_password=False) == POSTGRES


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mysql://host/db", "store has the scheme 'mysql', but must be a path ending in .db, a sqlite:///PATH or"),
        ("postgresql+psycopg2://host/db", "scheme 'postgresql+psycopg2'"),
        ("store.json", "store is 'store.json', but must be a path ending in .db"),
        ("sqlite://", "which other processes cannot read"),
        ("sqlite:///:memory:", "which other processes cannot read"),
        ("sqlite://host/a.db", "three slashes"),
        ("sqlite:///a.db?mode=ro", "no parameters"),
        ("postgresql://me:secret@host:port/db", "store is a malformed postgresql:// URL"),
        ("postgresql://me:sec@secret@host/db", "with several @: write an @ in the password as %40"),
    ],
)
def test_what_is_no_store_is_refused_with_the_rule(given: str, said: str) -> None:
    with pytest.raises(StorageError, match=re.escape(said)) as caught:
        open_storage(given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["odd ?#%20&.db", "höhe.db"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    with open_storage(str(tmp_path / "new" / name)) as storage:
        create(storage)
    assert (tmp_path / "new" / name).stat().st_size > 0


def test_a_relative_file_stays_when_the_process_goes_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with open_storage("here.db") as storage:
        monkeypatch.chdir("/")
        create(storage)
    assert (tmp_path / "here.db").exists()


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # importing it fails, installed or not
    with pytest.raises(StorageError, match=re.escape("pip install 'psycopg[binary]'")) as caught:
        open_storage(POSTGRES)
    assert "secret" not in str(caught.value)


def test_the_command_line_starts_without_a_database_library() -> None:
    code = "import sys, torchwise.cli; print({'sqlalchemy', 'alembic', 'torchwise.store'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


def test_the_store_opens_without_the_migration_library(tmp_path: Path) -> None:
    open_storage(str(tmp_path / "a.db")).close()
    code = (
        "import sys, torchwise.store as s; s.open_storage(sys.argv[1]); print({'alembic', 'torch'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.db")], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"
