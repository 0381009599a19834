"""A real PostgreSQL server in a folder of its own while the tests need it, on a socket without network."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GUARDED = "guarded"
"""A user who needs a password, unlike postgres."""


class PostgresServer:
    """A server that can be stopped, killed and started again, and gives each test a database."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._names = itertools.count()
        self._template: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._ordinary = drop_privileges(folder)
        made = ["--no-sync", "--locale=C", "--encoding=UTF8", "--username=postgres", "--auth=trust"]
        self._run(["initdb", *made, "-D", str(folder / "data")], check=True, capture_output=True)
        rules = folder / "data" / "pg_hba.conf"
        rules.write_text(f"local all {GUARDED} scram-sha-256\n{rules.read_text()}")
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers. After a kill its former children may need a moment to end."""
        for _ in range(100):
            if self._process is None or self._process.poll() is not None:
                settings = ["-c", "fsync=off", "-c", "listen_addresses=", "-k", str(self._folder)]
                command = [self._program("postgres"), "-D", str(self._folder / "data"), *settings]
                with (self._folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._ordinary)
            time.sleep(0.05)
            if self._run(["pg_isready", "-q", "-h", str(self._folder)]).returncode == 0:
                return
        raise AssertionError((self._folder / "log").read_text())

    def stop(self) -> None:
        """Stop it as its administrator would: connections are broken off."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Let it crash."""
        self._end(signal.SIGKILL)

    def end(self) -> None:
        """Have it end with its children at once, and without a last word."""
        self._end(signal.SIGQUIT)

    def database(self) -> str:
        """Make an empty database and return its URL."""
        return self._make("template1")

    def store(self) -> str:
        """Make a database that is a store of the present schema, and return its URL."""
        if self._template is None:
            from torchwise.store import open_storage

            url = self.database()
            open_storage(url).close()
            self._template = url.partition("?")[0].rpartition("/")[2]
        return self._make(self._template)

    def execute(self, statement: str) -> None:
        """Do something as the administrator, in no database of a test."""
        import psycopg

        with psycopg.connect(host=str(self._folder), user="postgres", autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    def _make(self, template: str) -> str:
        name = f"test{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return f"postgresql://postgres@/{name}?host={self._folder}"

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(30)

    def _run(self, words: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([self._program(words[0]), *words[1:]], timeout=60, **self._ordinary, **options)

    def _program(self, name: str) -> str:
        return str(self._programs / name)


def drop_privileges(folder: Path) -> dict[str, Any]:
    """Return how to start a process that is not root, as PostgreSQL demands, and hand it the folder."""
    found: dict[str, Any] = {"cwd": folder, "env": {**os.environ, "LC_ALL": "C"}}
    if os.geteuid() != 0:
        return found
    user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return {**found, "user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def find_programs() -> Path | None:
    """Return the folder of the newest server: Debian keeps it off the PATH, one folder a version."""
    kept = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = shutil.which("initdb") or next(map(str, reversed(kept)), None)
    return Path(found).resolve().parent if found else None


@contextmanager
def running_server() -> Iterator[PostgresServer]:
    """Start a server, which must be installed. At the end it is gone, and so is all that it held."""
    programs = find_programs()
    assert programs is not None
    # Not below pytest's folder, which other users may not enter, and short: a socket's path has 107 characters.
    with tempfile.TemporaryDirectory(prefix="tw-pg-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = PostgresServer(programs, Path(folder))
        try:
            yield server
        finally:
            server.end()
