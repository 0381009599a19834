"""`torchwise run --keep-memory`: freed memory stays with the process, and a system that cannot do it is told so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torchwise.cli import app, kept_memory
from torchwise.errors import InputError

COUNTS = """
import os, resource, subprocess, sys
from torchwise.cli.kept_memory import keep_freed_memory

def count_page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block = b"1" * 2**24
    del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if len(sys.argv) == 1:
    plain = [count_page_faults() for _ in range(2)][1]
    keep_freed_memory()
    kept = [count_page_faults() for _ in range(2)][1]
    print(plain, kept, int(subprocess.check_output([sys.executable, __file__, "child"])))
else:
    print([count_page_faults() for _ in range(2)][1])
"""


def test_large_memory_is_fetched_once_also_in_processes_that_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (*kept_memory.SETTINGS, "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "counts.py").write_text(COUNTS)
    told = subprocess.check_output([sys.executable, str(tmp_path / "counts.py")])
    plain, kept, in_child = map(int, told.split())
    assert plain > 4000, "16 MiB in pages of 4 KiB"
    assert kept < 100
    assert in_child < 100


def test_the_users_own_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in kept_memory.SETTINGS:
        monkeypatch.setenv(variable, "131072")
    monkeypatch.setattr("ctypes.CDLL", lambda name: type("Library", (), {"mallopt": None, "is": name}))
    with pytest.raises(InputError, match="only glibc on Linux can keep freed memory: leave it out"):
        kept_memory.keep_freed_memory()
    monkeypatch.setattr("ctypes.CDLL", lambda name: type("Library", (), {"mallopt": pytest.fail, "is": name}))
    kept_memory.keep_freed_memory()


def test_a_threshold_of_the_user_for_mapped_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given = list[int]()
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "131072")
    for variable in kept_memory.SETTINGS:
        monkeypatch.setenv(variable, "")  # so that it is restored
        monkeypatch.delenv(variable)

    def mallopt(number: int, _value: int) -> int:
        given.append(number)
        return 1

    keep_with(mallopt, monkeypatch)
    assert given == [-1]


def test_glibc_before_2_35_keeps_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a threshold for mapped memory (-3) above 32 MiB."""
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    for variable in kept_memory.SETTINGS:
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    keep_with(lambda number, value: int(number != -3 or value <= 2**25), monkeypatch)
    assert os.environ.keys() >= kept_memory.SETTINGS.keys()


def keep_with(mallopt: Callable[[int, int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    library = type("Library", (), {"mallopt": staticmethod(mallopt)})
    monkeypatch.setattr("ctypes.CDLL", lambda _: library)
    kept_memory.keep_freed_memory()


def test_what_glibc_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    monkeypatch.setattr("ctypes.CDLL", lambda name: type("Library", (), {"mallopt": lambda *_: 0, "is": name}))
    with pytest.raises(InputError, match="glibc refuses MALLOC_TRIM_THRESHOLD_=2147483647: leave it out"):
        kept_memory.keep_freed_memory()


def test_run_keeps_memory_only_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[bool]()
    monkeypatch.setattr("torchwise.cli.kept_memory.keep_freed_memory", lambda: asked.append(True))
    (tmp_path / "program.py").write_text("print(1)")
    for words, times in (([], 0), (["--keep-memory"], 1)):
        assert CliRunner().invoke(app, ["run", *words, str(tmp_path / "program.py")]).exit_code == 0
        assert len(asked) == times
