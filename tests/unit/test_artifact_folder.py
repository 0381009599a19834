"""One folder for a fleet: each machine finds its own files, whole or not at all, and a limit removes unused ones."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from fsspec.implementations.local import LocalFileSystem
from test_artifact import CODE, INDUCTOR, NET, Recorded, X, read_files
from typer.testing import CliRunner

from live_decisions import make_decision
from torchwise import __version__, artifact, environment
from torchwise._torch import cpu_isa_cache
from torchwise.artifact import package
from torchwise.artifact.package import Manifest
from torchwise.artifact.remote_files import USED, Folder, RemoteFolder, hide_password, name_of
from torchwise.cli.cache import cache
from torchwise.errors import InputError, StalePlanError, UnsupportedError
from torchwise.records import Decision
from torchwise.workload import Workload

NUMBERS = itertools.count()


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty folder of its own in each kind of store."""
    if request.param == "file":
        yield f"file://{tmp_path}/fleet/"
        return
    name = f"{os.getpid()}-{next(NUMBERS)}"
    yield f"memory://{name}/models"
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm(f"/{name}", recursive=True)


@pytest.fixture
def on_disk(tmp_path: Path) -> str:
    return f"file://{tmp_path}/fleet"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the code, on a machine without a GPU."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "caches"))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setattr(cpu_isa_cache, "replay", lambda known: None)
    monkeypatch.setattr(environment, "default_device", lambda: "cpu")
    return tmp_path / "caches"


def a_decision(identity: str = "identity", x: torch.Tensor = X, net: Any = NET) -> Decision:
    return replace(make_decision(net, INDUCTOR, x), identity=identity)


def pack_artifact(decision: Decision, code: bytes = b"code") -> bytes:
    manifest = Manifest(__version__, environment.detect("cpu"), {}, {}, 20.0, 1.0, 0)
    return package.pack(manifest, decision, {"inductor/ab/c.so": code})[1]


def put(url: str, decision: Decision, code: bytes = b"code") -> str:
    """Put an artifact in a folder as `save` does, without a compiler."""
    return Folder(url).save(decision, pack_artifact(decision, code))


@pytest.mark.parametrize("model", [NET, Workload.of((NET, (X,)))], ids=["module", "workload"])
def test_what_is_saved_is_found_by_the_model(url: str, place: Path, model: Any) -> None:
    made = artifact.save(url, NET, a_decision(), X, launcher=Recorded())
    assert artifact.load(url, model, trust=True, sha256=made.sha256) == made.decision
    assert sorted(read_files(place).values()) == sorted(CODE.values())


def test_another_model_finds_nothing(url: str, place: Path) -> None:
    put(url, a_decision())
    for other in (torch.nn.Linear(4, 5).eval(), torch.nn.Linear(4, 4).train(), torch.sin):
        with pytest.raises(InputError, match="has no artifact for this model on this machine"):
            artifact.load(url, other, trust=True)
    assert read_files(place) == {}


def test_a_model_whose_weights_lie_nowhere_yet_finds_its_own(url: str) -> None:
    put(url, a_decision())
    with torch.device("meta"):
        empty = torch.nn.Linear(4, 4).eval()
    assert artifact.load(url, empty, trust=True) == a_decision()


def test_a_machine_never_finds_what_is_for_another(url: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = environment.detect("cpu")
    for other in (replace(here, cpu="i386"), replace(here, torch="1.0"), replace(here, python="2.7")):
        monkeypatch.setattr(environment, "detect", lambda device, other=other: other)
        put(url, replace(a_decision(), environment=other))
    monkeypatch.setattr(environment, "detect", lambda device: here)
    with pytest.raises(InputError, match=r"(models|fleet) has no artifact for this model on this machine"):
        artifact.load(url, NET, trust=True)
    with pytest.raises(InputError, match="no artifact for this machine"):
        artifact.load_all(url, trust=True)
    put(url, a_decision(), b"mine")
    artifact.load(url, NET, trust=True)
    assert list(read_files(place).values()) == [b"mine"]


def test_what_was_put_where_another_machine_looks_is_refused_there(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack_artifact(a_decision())
    monkeypatch.setattr("torchwise.artifact.package.__version__", "9.9")
    Folder(url).save(a_decision(), data)
    with pytest.raises(StalePlanError, match=r"9\.9 here"):
        artifact.load(url, NET, trust=True)


def test_no_code_is_taken_out_without_trust(url: str, place: Path) -> None:
    name = put(url, a_decision())
    for load in (lambda: artifact.load(url, NET), lambda: artifact.load_all(url)):
        with pytest.raises(InputError, match=rf"{name} holds compiled code.*give trust=True"):
            load()
    assert read_files(place) == {}


@pytest.mark.parametrize("damage", [lambda d: d[:-40], lambda d: b"", lambda d: d[:60] + bytes([d[60] ^ 255]) + d[61:]])
def test_a_damaged_one_is_refused_by_its_url(url: str, place: Path, damage: Any) -> None:
    name = put(url, a_decision())
    folder = Folder(url).place
    folder.write(name, damage(folder.read(name)))
    with pytest.raises(InputError, match=r"is no artifact, or is damaged .*build it again") as raised:
        artifact.load(url, NET, trust=True)
    assert f"{url.rstrip('/')}/{name}" in str(raised.value)
    assert read_files(place) == {}


def test_another_hash_than_is_known_is_refused(url: str, place: Path) -> None:
    put(url, a_decision())
    with pytest.raises(InputError, match="but must be " + "0" * 64):
        artifact.load(url, NET, trust=True, sha256="0" * 64)
    assert read_files(place) == {}


def test_of_several_inputs_the_newest_that_was_proven_on_these_is_taken(on_disk: str, tmp_path: Path) -> None:
    wide = torch.ones(64, 4)
    names = [
        put(on_disk, a_decision("narrow")),
        put(on_disk, a_decision("wide", wide)),
        put(on_disk, a_decision("new")),
    ]
    for age, name in zip((300, 100, 200), names, strict=True):
        os.utime(tmp_path / "fleet" / name, (1e9 - age, 1e9 - age))
    assert artifact.load(on_disk, NET, trust=True).identity == "wide"
    for name in names:
        (tmp_path / "fleet" / (name + USED)).unlink()
    assert artifact.load(on_disk, NET, (X,), trust=True).identity == "new"
    assert [name for name in RemoteFolder(on_disk).sizes() if name.endswith(USED)] == [names[2] + USED], (
        "used is what is taken"
    )
    assert artifact.load(on_disk, NET, wide, trust=True).identity == "wide"
    with pytest.raises(InputError, match="no artifact for this model and these inputs"):
        artifact.load(on_disk, NET, torch.ones(5, 4), trust=True)


def test_a_damaged_one_is_passed_over_for_an_older_whole_one(
    on_disk: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [put(on_disk, a_decision("old")), put(on_disk, a_decision("new"))]
    for age, name in zip((200, 100), names, strict=True):
        os.utime(tmp_path / "fleet" / name, (1e9 - age, 1e9 - age))
    damaged = tmp_path / "fleet" / names[1]
    damaged.write_bytes(damaged.read_bytes()[:-40])
    os.utime(damaged, (1e9, 1e9))
    assert artifact.load(on_disk, NET, trust=True).identity == "old"
    assert names[1] in caplog.text
    assert f"{names[0]} is loaded instead" in caplog.text
    (tmp_path / "fleet" / names[0]).unlink()
    with pytest.raises(InputError, match="damaged"):
        artifact.load(on_disk, NET, trust=True)


def test_readers_beside_two_writers_see_one_or_the_other_and_whole(url: str) -> None:
    codes = [os.urandom(2**18), os.urandom(2**18)]
    name, stop, seen, failures = put(url, a_decision(), codes[0]), threading.Event(), set[bytes](), []

    def repeat_until_stop(act: Any) -> None:
        try:
            while not stop.is_set():
                act()
        except BaseException as error:  # a thread has nobody else to tell
            failures.append(error)

    def read() -> None:
        seen.update(package.unpack(name, RemoteFolder(url).read(name)).code.values())

    acts = [read, read, *(lambda code=code: put(url, a_decision(), code) for code in codes)]
    threads = [threading.Thread(target=repeat_until_stop, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    stop.wait(0.7)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert seen <= set(codes)


class Slow(LocalFileSystem):
    """A store that shows halves if the line is cut, and remembers the names that it listed."""

    protocol = "slow"
    cut = False
    refuses = False
    wrote: list[str] = []  # noqa: RUF012
    listed: Any = None

    def find(self, *args: Any, **options: Any) -> Any:
        if self.listed is None:
            self.listed = super().find(*args, **options)
        return self.listed

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listed = None

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        if self.refuses:
            raise PermissionError("read-only")
        self.wrote.append(path)
        Path(path).write_bytes(value[: len(value) // 2] if self.cut else value)
        if self.cut:
            raise ConnectionError("cut off")


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(Slow, "wrote", [])
    fsspec.register_implementation("slow", Slow, clobber=True)
    monkeypatch.setattr(Slow, "_strip_protocol", classmethod(lambda cls, path: str(path).removeprefix("slow://")))
    return f"slow://{tmp_path}/slow"


def test_a_store_that_shows_halves_is_given_another_name_first(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = put(slow, a_decision())
    assert len(Slow.wrote) == 2
    assert not any(path.endswith((".tw", USED)) for path in Slow.wrote)
    monkeypatch.setattr(Slow, "cut", True)
    with pytest.raises(InputError, match=r"cannot be written \(ConnectionError: cut off\): check the address"):
        put(slow, a_decision(), b"other code")
    assert package.unpack(name, RemoteFolder(slow).read(name)).code == {"inductor/ab/c.so": b"code"}


def test_what_was_left_by_a_writer_that_was_cut_off_is_removed(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slow, "cut", True)
    with pytest.raises(InputError):
        put(slow, a_decision("cut"))
    monkeypatch.setattr(Slow, "cut", False)
    assert [name.rpartition("/")[2][0] for name in RemoteFolder(slow).sizes()] == ["."]
    name = put(slow, a_decision())
    Folder(slow).evict(1, name)
    assert set(RemoteFolder(slow).sizes()) == {name, name + USED}


def test_what_others_save_meanwhile_is_seen(slow: str, tmp_path: Path) -> None:
    name = put(slow, a_decision())
    assert Folder(slow).find("cpu") == [name]
    other = f"{name.partition('/')[0]}/other-one.tw"
    (tmp_path / "slow" / other).touch()
    assert set(Folder(slow).find("cpu")) == {name, other}


def test_who_may_only_read_still_loads(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(slow, a_decision())
    monkeypatch.setattr(Slow, "refuses", True)
    assert artifact.load(slow, NET, trust=True) == a_decision()


def test_a_place_that_cannot_be_written_is_found_before_anything_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    launcher = Recorded()
    with pytest.raises(InputError, match=r"taken/.* cannot be written"):
        artifact.save(f"file://{tmp_path}/taken/models", NET, a_decision(), X, launcher=launcher)
    assert launcher.builds == []


def set_age(folder: Path, name: str, age_s: int) -> None:
    for file in (folder / name, folder / (name + USED)):
        os.utime(file, (1e9 - age_s, 1e9 - age_s))


def test_what_was_not_used_for_longest_goes_first(on_disk: str, tmp_path: Path) -> None:
    old, older, oldest = (put(on_disk, a_decision(name)) for name in ("old", "older", "oldest"))
    for age, name in enumerate((old, older, oldest), 1):
        set_age(tmp_path / "fleet", name, 1000 * age)
    Folder(on_disk).mark(oldest)  # which makes it the last used, though the first written
    size = len(pack_artifact(a_decision("new")))
    artifact.save(on_disk, NET, a_decision("new"), X, launcher=Recorded(), limit_bytes=4 * size)
    assert {n for n in RemoteFolder(on_disk).sizes() if n.endswith(".tw")} == {name_of(a_decision("new")), old, oldest}
    assert not (tmp_path / "fleet" / (older + USED)).exists()


def test_what_another_is_just_writing_is_not_the_first_to_go(on_disk: str, tmp_path: Path) -> None:
    old, kept = put(on_disk, a_decision("old")), put(on_disk, a_decision("kept"))
    set_age(tmp_path / "fleet", old, 1000)
    Folder(on_disk).prepare(a_decision("another"))
    half = name_of(a_decision("another")).replace("/", "/.") + ".abcd"
    (tmp_path / "fleet" / half).write_bytes(b"half")
    Folder(on_disk).evict(sum(RemoteFolder(on_disk).sizes().values()) - 1, kept)
    assert half in RemoteFolder(on_disk).sizes()
    assert old not in RemoteFolder(on_disk).sizes()


def test_the_one_just_saved_stays_and_so_does_what_is_not_ours(url: str) -> None:
    first = put(url, a_decision("first"))
    home = first.partition("/")[0]
    others = {"readme.txt", "model.tw", f"{home}/notes.txt", f"elsewhere/{first.partition('/')[2]}"}
    for name in others:
        RemoteFolder(url).write(name, b"mine")
    artifact.save(url, NET, a_decision("second"), X, launcher=Recorded(), limit_bytes=1)
    second = name_of(a_decision("second"))
    assert set(RemoteFolder(url).sizes()) == {*others, second, second + USED}


def test_nothing_is_removed_within_the_limit_or_without_one(url: str) -> None:
    names = {put(url, a_decision(name)) for name in ("a", "b")}
    artifact.save(url, NET, a_decision("c"), X, launcher=Recorded())
    artifact.save(url, NET, a_decision("c"), X, launcher=Recorded(), limit_bytes=2**20)
    assert names < set(RemoteFolder(url).sizes())


def test_what_another_evicts_meanwhile_is_no_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(url, a_decision("a"))
    seen = RemoteFolder(url).sizes()
    kept = put(url, a_decision("b"))
    Folder(url).evict(1, kept)
    monkeypatch.setattr(RemoteFolder, "sizes", lambda self, folder="": {**seen, kept: 10})
    Folder(url).evict(1, kept)
    monkeypatch.undo()
    assert set(RemoteFolder(url).sizes()) == {kept, kept + USED}


def test_all_that_is_for_this_machine_is_loaded_but_what_is_damaged(
    url: str, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(url, a_decision("good"), b"good")
    bad = put(url, a_decision("bad"))
    RemoteFolder(url).write(bad, b"bad")
    with caplog.at_level(logging.WARNING, "torchwise"):
        loaded = artifact.load_all(url, trust=True)
    assert [decision.identity for decision in loaded.values()] == ["good"]
    assert list(read_files(place).values()) == [b"good"]
    assert f"{bad} is no artifact, or is damaged" in caplog.text


def test_where_all_is_damaged_that_is_said_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    RemoteFolder(url).write(put(url, a_decision()), b"bad")
    with pytest.raises(InputError, match="is no artifact, or is damaged"):
        artifact.load_all(url, trust=True)
    assert "damaged" not in caplog.text


BAD: dict[str, tuple[Any, str]] = {
    "no model": (lambda: artifact.load("memory://x"), "is a folder, so the model must be given"),
    "a target": (lambda: artifact.load("memory://x", "zoo:a.b"), "model is 'zoo:a.b', but must be the module"),
    "a model for a file": (lambda: artifact.load("x.tw", NET), "x.tw is one artifact, but a model is given"),
    "info of a folder": (lambda: artifact.info("memory://x"), "is a folder, but must be an artifact in it"),
    "all of a file": (lambda: artifact.load_all("memory://x.tw"), "is no URL of a folder"),
    "saving to the URL of a file": (
        lambda: artifact.save("memory://x.tw", NET, a_decision(), X),
        "names a file, but must name a folder",
    ),
    "a limit of nothing": (
        lambda: artifact.save("memory://x", NET, a_decision(), X, limit_bytes=0),
        "limit_bytes is 0, but must be at least 1",
    ),
    "a limit of a file": (
        lambda: artifact.save("x.tw", NET, a_decision(), X, limit_bytes=9),
        "limit_bytes is 9, but x.tw is one file",
    ),
    "no digest": (lambda: name_of(a_decision("../../etc")), "but must be digests"),
    "a scheme that nobody knows": (lambda: RemoteFolder("nosuch://x"), "nosuch://x cannot be used: Protocol not known"),
    "no URL": (lambda: RemoteFolder("models"), "url is 'models', but must be a URL"),
    "a file that is not there": (
        lambda: artifact.info("memory://x/y.tw"),
        "x/y.tw cannot be read: it, or its folder, is missing",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_meant_is_refused(case: str) -> None:
    call, message = BAD[case]
    with pytest.raises(InputError, match=message):
        call()


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(UnsupportedError, match=r"s3://bucket cannot be used: .*pip install fsspec s3fs"):
        RemoteFolder("s3://bucket")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(UnsupportedError, match=r"fsspec is missing.*pip install fsspec"):
        RemoteFolder("memory://x")


def test_a_password_is_not_shown() -> None:
    assert hide_password("ftp://me:secret@host/models/a@b") == "ftp://host/models/a@b"


def ran(*words: object) -> str:
    done = CliRunner().invoke(cache, [*map(str, words)])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_the_command_saves_into_a_folder_with_a_limit(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchwise.cli import common

    study = type("Found", (), {"decision": a_decision(), "workload": replace(a_decision().workload, target="m:f")})
    monkeypatch.setattr(common, "find_study", lambda name, store: study)
    given: dict[str, Any] = {}

    def save(path: str, target: str, decision: Decision, **options: Any) -> Any:
        given.update(options, path=path)
        return artifact.info(f"{url.rstrip('/')}/{put(url, decision)}")

    monkeypatch.setattr(artifact, "save", save)
    assert f"Wrote {url} for m:f: plan" in ran("save", "latest", url, "--limit", "2GiB")
    assert given == {"path": url, "limit_bytes": 2**31}


def test_the_command_loads_all_that_is_for_here_and_lists_it(url: str, place: Path) -> None:
    name = put(url, a_decision())
    RemoteFolder(url).write(name.replace(name.partition("-")[2][:12], "0" * 12), b"of another machine")
    where = f"{url.rstrip('/')}/{name}"
    said = ran("load", url, "--trust")
    assert f"Loaded {where}: live:test, plan" in said
    assert f"artifact.load('{url}', model, trust=True)" in said
    assert read_files(place)
    rows = ran("list", url).splitlines()
    assert sum(row.startswith(where) and row.endswith("UTC  cpu") for row in rows) == 1
    assert sum(row.endswith("other machines") for row in rows) == 1
    assert rows[-1] == "2 artifacts, 0.0 MiB"
    assert "1 files of compiled code" in ran("info", where)
    ran("info", where, "--json", str(place / "info.json"))
    assert json.loads((place / "info.json").read_text())["decision"]["plan"]
    with pytest.raises(InputError, match="--sha256 needs one file"):
        ran("load", url, "--trust", "--sha256", "0" * 64)


def test_a_folder_given_as_a_path_is_answered_with_its_url(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"but must be one artifact, or the folder's URL: {tmp_path.as_uri()}"):
        ran("load", str(tmp_path))


def test_a_mistyped_folder_is_not_taken_for_an_empty_one(url: str, tmp_path: Path) -> None:
    Path(tmp_path, "fleet").mkdir()
    assert ran("list", url).startswith(f"{url.rstrip('/')} holds no artifact: torchwise cache save STUDY ")
    Path(tmp_path, "file").touch()
    mistyped = {"flete": "there is no such folder", "file": "it is a file"}
    for name, why in mistyped.items():
        for command in ("list", "load"):
            with pytest.raises(InputError, match=f"{name} cannot be listed: {why}"):
                ran(command, f"file://{tmp_path}/{name}")
        with pytest.raises(InputError, match=why):
            artifact.load(f"file://{tmp_path}/{name}", NET, trust=True)
    with pytest.raises(InputError, match=f"such as s3://bucket/models or {(tmp_path / 'fleet').as_uri()}"):
        ran("list", str(tmp_path / "fleet"))
