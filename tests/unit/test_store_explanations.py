"""`torchwise explain` keeps its output, unless that is unwanted. A failure to keep it never costs the output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from store_samples import an_explanation
from torchwise.cli.explain import explain
from torchwise.diagnose import explain as explaining
from torchwise.records import Failure
from torchwise.store import open_storage

TOLD = an_explanation()


class Worker:
    def run(self, job: Any, limits: Any, on_stage: Callable[[str], None]) -> str | Failure:
        return TOLD.to_json()


@pytest.fixture(autouse=True)
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "ProcessLauncher", Worker)


def run(*words: str) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(explain)
    done = CliRunner().invoke(app, ["zoo:tutorial.fusion_demo", *words])
    assert done.exit_code == 0, done.output
    assert "7 guards" in done.output
    return done


def test_what_was_told_is_kept_whole(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    run("--store", store, "--json", str(tmp_path / "told.json"))
    with open_storage(store) as storage:
        (summary,) = storage.explanations("zoo:tutorial.fusion_demo")
        kept = storage.get_explanation(summary.id)
    assert kept.to_json() == (tmp_path / "told.json").read_text().strip()
    assert kept.findings == TOLD.findings


def test_it_is_not_kept_where_that_is_unwanted(tmp_path: Path) -> None:
    run("--store", str(tmp_path / "store.db"), "--no-keep")
    assert not (tmp_path / "store.db").exists()


@pytest.mark.parametrize("store", ["a/folder", "nothing.txt", "postgresql://nobody@127.0.0.1:1/nothing"])
def test_a_store_that_cannot_be_written_costs_a_warning_alone(tmp_path: Path, store: str) -> None:
    (tmp_path / "a").write_text("no folder")
    place = store if "://" in store else f"{tmp_path}/{store}"
    done = run("--store", place if store != "a/folder" else f"{place}.db", "--json", str(tmp_path / "told.json"))
    assert "torchwise: this explanation is not saved: store " in done.stderr
    assert (tmp_path / "told.json").exists()
