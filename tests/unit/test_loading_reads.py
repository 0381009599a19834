"""A stored decision answers without profiling the model again, but only if the target loads as it did before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_study import GOOD, INDUCTOR, Table, request

import torchwise
from torchwise.environment import detect
from torchwise.plan.workload_spec import BatchDim, WorkloadSpec
from torchwise.records.listener import Listener
from torchwise.store import Storage, open_storage
from torchwise.study import run_study
from torchwise.trial import ProcessLauncher
from torchwise.trial.loading_reads import reads_file, recall_identity

MODEL = """
import json, os, pathlib
from helper import SIZE
def make():
    return json.loads(pathlib.Path("size.json").read_text()), os.path.exists("nothing"), SIZE
"""
LOAD = """
import sys
from torchwise.trial import ProcessLauncher
from torchwise.trial.loading_reads import LoadingReads
sys.path.insert(0, ".")
reads = LoadingReads()
with reads.watch():
    import model
    model.make()
    {more}
reads.keep(sys.argv[1], "the identity")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in (("model.py", MODEL), ("helper.py", "SIZE = 1"), ("size.json", "[1]")):
        Path(name).write_text(text)
        os.utime(name, (0, 0))
    return tmp_path


def load(more: str = "pass") -> Path:
    file = Path("cache", "reads.json").absolute()
    done = subprocess.run([sys.executable, "-c", LOAD.format(more=more), str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return file


def test_what_is_as_it_was_has_its_identity(folder: Path) -> None:
    file = load()
    assert recall_identity(file) == "the identity"
    load()  # now from .pyc files
    assert recall_identity(file) == "the identity"
    assert recall_identity(folder / "none.json") is None
    file.write_text("{")
    assert recall_identity(file) is None


@pytest.mark.parametrize("name", ["model.py", "helper.py", "size.json"])
def test_a_change_of_any_file_that_was_read_is_noticed(folder: Path, name: str) -> None:
    load()
    file = load()
    (folder / name).write_text((folder / name).read_text().replace("1", "2") + "\n")
    assert recall_identity(file) is None


def test_a_change_of_a_library_that_the_server_imported_is_noticed(folder: Path) -> None:
    library = folder / "library.py"
    library.write_text("")
    os.utime(library, (0, 0))
    more = "from types import ModuleType; from torchwise.trial import preload; one = ModuleType('library')"
    file = load(f"{more}; one.__file__ = {str(library)!r}; preload.imported.append(one)")
    assert recall_identity(file) == "the identity"
    library.write_text("VERSION = 2")
    assert recall_identity(file) is None


def test_a_new_file_in_a_listed_folder_is_noticed(folder: Path) -> None:
    (folder / "data").mkdir()
    os.utime(folder / "data", (0, 0))
    file = load('import os; os.listdir("data")')
    assert recall_identity(file) == "the identity"
    (folder / "output.json").write_text("of no interest")
    assert recall_identity(file) == "the identity"
    (folder / "data" / "more.bin").write_text("")
    assert recall_identity(file) is None


def test_a_missing_file_that_appears_is_noticed(folder: Path) -> None:
    file = load('import contextlib\n    with contextlib.suppress(OSError): open("optional.toml")')
    assert recall_identity(file) == "the identity"
    (folder / "optional.toml").write_text("")
    assert recall_identity(file) is None


def test_what_loading_makes_after_it_looked_for_it_is_no_same_place(folder: Path) -> None:
    """The next load finds it, and may build another model."""
    more = 'import os; os.path.isdir("made") or os.mkdir("made")'
    assert recall_identity(load(more)) is None
    assert recall_identity(load(more)) == "the identity"


LOOKS = 'os.path.exists("flag"); Path("here").is_dir(); os.access("two", os.R_OK); list(Path("data").glob("*.bin"))'


def test_a_file_that_was_only_looked_for_is_noticed_as_it_appears_or_goes(folder: Path) -> None:
    for name in ("here", "data"):
        (folder / name).mkdir()
        os.utime(folder / name, (0, 0))
    (folder / "two").write_text("")
    file = load(f"import os; from pathlib import Path; {LOOKS}")
    assert recall_identity(file) == "the identity"
    (folder / "two").write_text("its contents are of no interest")
    (folder / "here" / "more").write_text("nor are these")
    assert recall_identity(file) == "the identity"
    for path in (folder / "flag", folder / "data" / "1.bin"):
        path.write_text("")
        assert recall_identity(file) is None
        path.unlink()
        assert recall_identity(file) == "the identity"
    (folder / "two").unlink()
    assert recall_identity(file) is None


def test_a_target_may_copy_links(folder: Path) -> None:
    """shutil looks up which functions of `os` can do so."""
    (folder / "link").symlink_to("nowhere")
    load('import shutil; shutil.copy2("link", "copy", follow_symlinks=False)')
    assert (folder / "copy").is_symlink()


@pytest.mark.parametrize(
    "more",
    [
        'import subprocess; subprocess.run(["true"])',
        "import sqlite3; sqlite3.connect(':memory:')",
        "import socket, contextlib\n    with contextlib.suppress(OSError): socket.create_connection(('127.0.0.1', 9))",
        "open('size.json', 'a').write(' ')",
    ],
)
def test_what_no_file_shows_is_never_recalled(folder: Path, more: str) -> None:
    assert recall_identity(load(more)) is None
    assert folder.exists()


def test_another_target_folder_seed_or_environment_has_another_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = WorkloadSpec("model.py:make")
    files = {reads_file(spec), reads_file(replace(spec, seed=1)), reads_file(replace(spec, target="model.py:other"))}
    others = {"batch": BatchDim(0, 4), "sizes": "varying", "tolerance": 0.1, "device": "cuda", "mode": "training"}
    for name, value in others.items():
        files.add(reads_file(replace(spec, **{name: value})))
    files.add(reads_file(replace(spec, tolerance=0.2)))
    for text in ("def accuracy(model): return 1", "def accuracy(model): return 2"):  # a metric that was corrected
        (folder / "score.py").write_text(text)
        files.add(reads_file(replace(spec, tolerance=0.2, metric="score.py:accuracy")))
    files.add(reads_file(replace(spec, objective="throughput", latency_limit=0.1)))
    with monkeypatch.context() as patched:
        patched.setattr(sys, "path", ["/elsewhere", *sys.path])
        files.add(reads_file(spec))
    monkeypatch.setenv("MODEL_SIZE", "9")
    files.add(reads_file(spec))
    monkeypatch.chdir(folder.parent)
    files.add(reads_file(spec))
    assert len(files) == 15
    monkeypatch.setenv("COLUMNS", "99")
    assert reads_file(spec) in files


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with open_storage(str(tmp_path / "store.db")) as opened:
        yield opened


@pytest.fixture
def table() -> Table:
    found = Table()
    found.known[INDUCTOR] = (2.0, 10.0, GOOD)
    return found


def test_a_decision_for_the_same_model_is_reused_without_profiling_it(storage: Storage, table: Table) -> None:
    first = run_study(request(identity="identitystructure"), storage, table, Listener())
    assert ("inspect", table.ran[0][1]) == table.ran[0]
    table.ran.clear()
    again = run_study(request(identity="identitystructure"), storage, table, Listener())
    assert table.ran == []
    assert again.decision == first.decision


@pytest.mark.parametrize("options", [{"identity": "another"}, {}, {"identity": "identitystructure", "fresh": True}])
def test_another_model_or_a_fresh_search_is_profiled(
    storage: Storage, table: Table, options: dict[str, object]
) -> None:
    run_study(request(identity="identitystructure"), storage, table, Listener())
    table.ran.clear()
    run_study(request(**options), storage, table, Listener())
    assert [task for task, _ in table.ran][:1] == ["inspect"]


def test_on_another_machine_the_model_is_profiled(storage: Storage, table: Table) -> None:
    run_study(request(identity="identitystructure"), storage, table, Listener())
    table.ran.clear()
    elsewhere = replace(detect("cpu"), cpu="Another CPU")
    run_study(request(identity="identitystructure"), storage, table, Listener(), elsewhere)
    assert table.ran[0][0] == "inspect"


def test_other_calls_are_decided_for_from_the_stored_trials(storage: Storage, table: Table) -> None:
    run_study(request(identity="identitystructure"), storage, table, Listener())
    table.ran.clear()
    few = run_study(request(10, identity="identitystructure"), storage, table, Listener())
    assert table.ran == []
    assert few.decision is not None
    assert few.decision.plan.is_eager


def test_a_live_model_is_profiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs, store = torch.nn.Linear(4, 4), (torch.rand(2, 4),), str(tmp_path / "live.db")
    first = torchwise.tune(model, inputs, calls=1, store=store, progress=False)
    monkeypatch.setattr(ProcessLauncher, "run", lambda *_: pytest.fail("a worker was started"))
    again = torchwise.tune(model, inputs, calls=1, store=store, progress=False)
    assert again.decision == first.decision
    with pytest.raises(pytest.fail.Exception, match="a worker was started"):
        torchwise.tune(model, (torch.rand(3, 4),), calls=1, store=store, progress=False)
