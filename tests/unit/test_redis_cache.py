"""Inductor's Redis cache, against a real server: shared when it is there, and never in the way."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import programs
from local_server import free_port, serving
from torchwise.artifact import redis_cache, use_redis
from torchwise.errors import InputError, UnsupportedError

CHILD = """
import logging, os, signal, sys, time
logging.basicConfig(format="%(levelname)s %(message)s")
import torch
from torchwise.artifact import use_redis
started = time.perf_counter()
up = use_redis(sys.argv[1], timeout_s=1.0)
took = time.perf_counter() - started
if len(sys.argv) > 2:
    os.kill(int(sys.argv[2]), getattr(signal, sys.argv[3]))
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:  # where a service compiles, and where settings of the main thread are not seen
    answer = pool.submit(torch.compile(lambda x: (x.sin() + 1).sum()), torch.ones(10)).result()
from torch._inductor.remote_cache import cache_stats
shared = cache_stats._stats.get("RemoteFxGraphCache")
print(up, took < 30, round(answer.item(), 2), *((shared.hit, shared.miss) if shared else ("unused",)))
"""


def compile_in_process(folder: Path, *arguments: object) -> tuple[str, str]:
    """Compile in a new process with an empty cache of its own. Return its output, and its log."""
    folder.mkdir()
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", CHILD, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """Start a server. Return its URL and the id of its process."""
    program = shutil.which("redis-server")
    if program is None:
        programs.skip_without("redis-server")
    words = [program, "--save", "", "--bind", "127.0.0.1", "--dir", str(tmp_path), "--port"]
    with serving(lambda port: [*words, str(port)]) as (port, process):
        yield f"redis://127.0.0.1:{port}/0", process


@pytest.mark.nightly
def test_what_one_process_compiles_another_finds(server: tuple[str, int], tmp_path: Path) -> None:
    assert compile_in_process(tmp_path / "one", server[0])[0] == "True True 18.41 0 1"
    assert compile_in_process(tmp_path / "two", server[0])[0] == "True True 18.41 1 0"


@pytest.mark.nightly
@pytest.mark.parametrize("how", [pytest.param("SIGKILL", id="goes down"), pytest.param("SIGSTOP", id="hangs")])
def test_a_server_that_is_lost_later_is_given_up_once(server: tuple[str, int], tmp_path: Path, how: str) -> None:
    said, logged = compile_in_process(tmp_path / "one", server[0], server[1], how)
    assert said == "True True 18.41 0 1"
    assert logged.count("the Redis server is no longer asked") == 1


def test_a_server_that_is_down_is_said_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for variable in (*redis_cache.SETTINGS, redis_cache.URL):
        monkeypatch.delenv(variable, raising=False)
    assert use_redis(f"redis://127.0.0.1:{free_port()}/0") is False
    assert "no longer asked, and all is compiled here, because of ConnectionError" in caplog.text
    assert not any(variable in os.environ for variable in (*redis_cache.SETTINGS, redis_cache.URL))


def test_a_server_that_accepts_and_never_answers_costs_its_limit_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        server = redis_cache._Server(f"redis://127.0.0.1:{silent.getsockname()[1]}/0", 0.5)
        started = time.perf_counter()
        assert not server.answers()
        took = time.perf_counter() - started
        assert [server.ask("get", "key") for _ in range(100)] == [None] * 100
    assert 0.4 < took < 5
    assert time.perf_counter() - started < took + 1
    assert caplog.text.count("no longer asked") == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://host", "url has the scheme 'http', but must begin with redis://"),
        ("localhost:6379", "must begin with redis://"),
        ("redis://host:port/0", "url cannot be used"),
    ],
)
def test_a_url_that_redis_does_not_read_is_refused(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        use_redis(url)


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(InputError) as raised:
        use_redis("postgres://me:secret@host")
    assert "secret" not in str(raised.value)


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="timeout_s is 0, but must be above 0"):
        use_redis("redis://localhost", timeout_s=0)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(UnsupportedError, match=r"pip install redis"):
        use_redis("redis://localhost")
