"""Whether the process behind a claim still lives."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from torchwise.store import LeaseOwner
from torchwise.store.claims import this_host

ME = LeaseOwner.current()
LONG = 1e9


def test_this_process_lives_whatever_its_heartbeat() -> None:
    assert ME.is_alive(0.0)
    assert ME.is_alive(LONG)


def test_the_same_process_is_the_same_owner() -> None:
    assert LeaseOwner.current() == ME


@pytest.mark.parametrize("step", [-3600.0, -1.0, 1.0, 8.0, 1e7])
def test_a_clock_that_is_set_ends_no_process(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel then moves the boot time, as on a virtual machine that goes on after a while."""
    _set_clock(monkeypatch, step)
    assert ME.is_alive(LONG)
    assert LeaseOwner.current() == ME
    assert not replace(ME, started=ME.started + step).is_alive(0.0)


def _set_clock(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    """Have psutil tell of starts so much later."""
    create_time = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: create_time(process) + step)


def test_a_start_in_seconds_since_the_epoch_is_known_as_well() -> None:
    """Earlier versions wrote it, and other systems do."""
    former = replace(ME, started=psutil.Process().create_time())
    assert former.is_alive(LONG)
    assert not replace(former, started=former.started - 60).is_alive(0.0)


def test_without_linux_the_start_is_that_of_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_missing(path: Path, **_: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", raise_missing)
    owner = LeaseOwner.current()
    assert owner.started == psutil.Process().create_time()
    assert owner.is_alive(LONG)


def test_an_earlier_process_of_the_same_number_is_dead() -> None:
    assert not replace(ME, started=ME.started - 60).is_alive(0.0)


def test_a_process_that_ended_is_dead_even_before_its_parent_asks() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = LeaseOwner(ME.host, child.pid, psutil.Process(child.pid).create_time() - psutil.boot_time())
    assert owner.is_alive(LONG)
    child.kill()
    deadline = time.monotonic() + 10
    while owner.is_alive(0.0) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert not owner.is_alive(0.0)
    child.communicate()
    assert not owner.is_alive(0.0)


def test_another_user_s_process_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> None:
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(psutil, "Process", refuse)
    assert ME.is_alive(LONG)


def test_on_another_host_the_heartbeat_decides() -> None:
    other = replace(ME, host="another-host")
    assert other.is_alive(590)
    assert not other.is_alive(610)


def test_hosts_of_one_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter([b"one\n", b"another\n", b"one"])
    monkeypatch.setattr(Path, "read_bytes", lambda path: next(ids))
    first, second, again = (this_host.__wrapped__() for _ in range(3))
    assert first == again != second
    assert first.startswith(f"{platform.node()}/")
    assert "one" not in first.removeprefix(platform.node())


def test_a_host_without_an_id_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_missing(path: Path) -> bytes:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_bytes", raise_missing)
    assert this_host.__wrapped__() == platform.node()
