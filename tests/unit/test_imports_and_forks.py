"""The benchmark of libraries that are imported before a fork: its rows, and what a library that fails leaves."""

from __future__ import annotations

import importlib
import threading
from pathlib import Path
from types import ModuleType

import pytest
import torch


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("imports_and_forks")


def test_a_thread_more_is_counted(program: ModuleType) -> None:
    before, waits = program.count_threads(), threading.Event()
    thread = threading.Thread(target=waits.wait)
    thread.start()
    assert program.count_threads() == before + 1
    waits.set()
    thread.join()


def test_a_library_that_cannot_be_imported_is_a_row_that_says_so(
    program: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = program.subprocess.CalledProcessError(1, "python", stderr="Traceback\nModuleNotFoundError: No module\n")
    late = program.subprocess.TimeoutExpired("python", 120)
    for error, cell in ((failed, "ModuleNotFoundError: No module"), (late, "over 120 s")):

        def run(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(program.subprocess, "run", run)
        assert program.describe("timm") == f"{cell} | – | – | –"


@pytest.mark.nightly
def test_a_library_is_imported_and_the_child_says_what_it_found(program: ModuleType) -> None:
    seconds, threads, files, child = program.describe("colorsys").split(" | ")
    assert seconds.endswith(" s")
    assert (threads, files) == ("+0", "+0")
    assert (child == "yes") == torch.cuda.is_available(), child
