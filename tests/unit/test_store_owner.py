"""Whether the process behind a claim still lives."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from torchwise.store import Owner

ME = Owner.current()
NOW = time.time()
LONG_AGO = 0.0


def test_this_process_lives_whatever_its_heartbeat() -> None:
    assert ME.is_alive(NOW)
    assert ME.is_alive(LONG_AGO)


def test_the_same_process_is_the_same_owner() -> None:
    assert Owner.current() == ME


def test_an_earlier_process_of_the_same_number_is_dead() -> None:
    assert not replace(ME, started=ME.started - 60).is_alive(NOW)


def test_a_process_that_ended_is_dead_even_before_its_parent_asks() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = Owner(ME.host, child.pid, psutil.Process(child.pid).create_time())
    assert owner.is_alive(LONG_AGO)
    child.kill()
    deadline = time.monotonic() + 10
    while owner.is_alive(NOW) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE
    assert not owner.is_alive(NOW)
    child.communicate()
    assert not owner.is_alive(NOW)


def test_another_user_s_process_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> None:
        raise psutil.AccessDenied(pid)

    monkeypatch.setattr(psutil, "Process", refuse)
    assert ME.is_alive(LONG_AGO)


def test_on_another_host_the_heartbeat_decides() -> None:
    other = replace(ME, host="another-host")
    assert other.is_alive(time.time())  # now, and not when this file was imported
    assert other.is_alive(time.time() - 590)
    assert not other.is_alive(time.time() - 610)
