"""Checks of instruction sets are kept for later commands on the same machine with the same compiler."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchwise._torch.cpu_isa_cache import TimedCheck
from torchwise.trial import known_checks

CHECKS = {"avx": TimedCheck(True, 2.0, 0.5)}


@pytest.fixture(autouse=True)
def _first_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    begin_command(monkeypatch)


def begin_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_checks, "_known", {})


def test_a_later_command_knows_what_an_earlier_one_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_checks.known_checks() == {}
    known_checks.add_checks(CHECKS)
    begin_command(monkeypatch)
    assert known_checks.known_checks() == CHECKS


def test_another_compiler_is_checked_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known_checks.add_checks(CHECKS)
    begin_command(monkeypatch)
    other = tmp_path / "c++"
    other.touch(mode=0o755)
    monkeypatch.setenv("CXX", str(other))
    assert known_checks.known_checks() == {}


def test_old_checks_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known_checks.add_checks(CHECKS)
    begin_command(monkeypatch)
    file = known_checks.checks_file()
    at = file.stat().st_mtime - known_checks.MAX_AGE_S
    os.utime(file, (at, at))
    assert known_checks.known_checks() == {}


@pytest.mark.parametrize("text", ["", "[]", '{"avx": 1}', "\xff"])
def test_a_spoilt_file_is_no_file(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known_checks.add_checks(CHECKS)
    begin_command(monkeypatch)
    known_checks.checks_file().write_bytes(text.encode("latin-1"))
    assert known_checks.known_checks() == {}


def test_a_folder_that_cannot_be_written_costs_the_file_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "torchwise").write_text("no folder")
    known_checks.add_checks(CHECKS)
    assert known_checks.known_checks() == CHECKS
