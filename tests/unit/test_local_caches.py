"""The caches on this machine: their sizes, and nothing outside of them is ever deleted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torchwise.artifact.local_caches import find_caches, list_caches
from torchwise.cli import local_caches
from torchwise.cli.cache import cache
from torchwise.compile.programs.build import NAME
from torchwise.errors import InputError

KIB = 2**10
HASH = "A" * 52


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Make three caches whose files were used at times 1, 2, 3 and so on."""
    home = tmp_path / "home"
    found = {"inductor": tmp_path / "ind", "triton": tmp_path / "tri", "torchwise": home / "xdg" / "torchwise"}
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(found["inductor"]))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(found["triton"]))
    for time, (name, place) in enumerate(
        [
            ("inductor", "fxgraph/aa/one"),
            ("inductor", "fxgraph/bb/two"),
            ("inductor", "cc/code.py"),
            ("triton", f"{HASH}/kernel.cubin"),
            ("torchwise", "targets/a.json"),
        ],
        start=1,
    ):
        file = found[name] / place
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * KIB)
        os.utime(file, (time, time))
    return found


def ran(*words: str) -> str:
    done = CliRunner().invoke(cache, [*words])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def read_info(file: Path) -> dict[str, Any]:
    """Return what the command writes about Inductor's cache to a file outside of it."""
    ran("info", "inductor", "--json", str(file))
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def list_files(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir())


def test_each_cache_is_listed_with_its_size_and_folder(folders: dict[str, Path]) -> None:
    lines = ran("list").splitlines()
    assert [line.split()[0] for line in lines] == list(folders)
    assert [line.split()[-1] for line in lines] == [str(folder) for folder in folders.values()]
    assert [line.split("MiB, ")[1].split("  ")[0] for line in lines] == ["3 files", "1 file", "1 file"]


def test_one_cache_is_described(folders: dict[str, Path], tmp_path: Path) -> None:
    said = ran("info", "inductor")
    assert f"Folder: {folders['inductor']}\nMoved by: TORCHINDUCTOR_CACHE_DIR\nSize: 0.0 MiB, 3 files" in said
    assert "Last used: 1970-01-01 00:00 UTC" in said
    assert "0.0 MiB  fxgraph\n" in said
    found = read_info(tmp_path / "info.json")
    assert (found["bytes"], found["files"], found["last_used"]) == (3 * KIB, 3, 3.0)


def test_without_variables_the_folders_are_those_of_pytorch_and_triton(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    monkeypatch.delenv("TRITON_CACHE_DIR")
    inductor, triton, _ = list_caches()
    assert inductor.path == Path(default_cache_dir())
    assert triton.path == Path.home() / ".triton" / "cache"
    monkeypatch.setenv("TRITON_HOME", "/elsewhere")
    assert find_caches(["triton"])[0].path == Path("/elsewhere/.triton/cache")


def test_only_the_named_cache_is_cleared_and_its_folder_stays(folders: dict[str, Path]) -> None:
    said = ran("clear", "inductor", "--yes")
    assert f"{folders['inductor']}/fxgraph/aa  0.0 MiB" in said
    assert said.splitlines()[-1] == "Deleted 0.0 MiB."
    assert list(folders["inductor"].iterdir()) == []
    assert list_files(folders["triton"]) == [f"{HASH}/kernel.cubin"]
    assert list_files(folders["torchwise"]) == ["targets/a.json"]
    assert ran("clear", "inductor", "--yes").splitlines()[-1] == "Nothing to delete."


@pytest.mark.parametrize(
    ("size", "left"),
    [
        ("1KiB", ["cc/code.py"]),
        ("2KiB", ["cc/code.py", "fxgraph/bb/two"]),
        ("2.5KiB", ["cc/code.py", "fxgraph/bb/two"]),
        ("1GB", ["cc/code.py", "fxgraph/aa/one", "fxgraph/bb/two"]),
    ],
)
def test_a_limit_deletes_the_least_recently_used(folders: dict[str, Path], size: str, left: list[str]) -> None:
    ran("limit", size, "inductor", "--yes")
    assert list_files(folders["inductor"]) == left


def test_links_are_neither_followed_nor_counted(folders: dict[str, Path], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x" * 2**20)
    (folders["inductor"] / "cc" / "link").symlink_to(outside)
    (folders["inductor"] / "cc" / "file").symlink_to(outside / "precious")
    assert read_info(tmp_path / "info.json")["bytes"] < 4 * KIB
    ran("clear", "--yes")
    assert list_files(folders["inductor"]) == []
    assert (outside / "precious").stat().st_size == 2**20


def test_a_folder_of_the_same_name_hides_no_cache(folders: dict[str, Path], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inductor").mkdir()
    assert f"Folder: {folders['inductor']}" in ran("info", "inductor")


def test_a_folder_that_another_program_deletes_meanwhile_is_left_out(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.walk
    gone = (str(folders["inductor"] / "gone"), [], [])
    monkeypatch.setattr(os, "walk", lambda top, **options: [gone, *real(top, **options)])
    assert len(find_caches(["inductor"])[0].entries()) == 3


def test_a_cache_that_is_a_link_or_holds_other_things_is_left_alone(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(folders["inductor"])
    for folder, said in ((tmp_path / "link", "is a link"), (tmp_path, "holds more than a cache"), (Path("/"), "holds")):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        with pytest.raises(InputError, match=said):
            ran("clear", "inductor", "--yes")
        with pytest.raises(InputError, match=said):
            find_caches(["inductor"])[0].remove(())
    assert len(list_files(folders["inductor"])) == 3


@pytest.mark.parametrize("variable", ["TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"])
@pytest.mark.parametrize("holder", ["XDG_CACHE_HOME", "XDG_DATA_HOME", "TORCHWISE_STORE", "prefix"])
def test_a_folder_that_also_holds_what_a_user_keeps_is_left_alone(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, holder: str
) -> None:
    shared = tmp_path / "shared"
    precious = shared / "aa" / "huggingface" / "model.safetensors"
    precious.parent.mkdir(parents=True)
    precious.touch()
    if holder == "prefix":
        monkeypatch.setattr("sys.prefix", str(shared / "venv"))
    else:
        monkeypatch.setenv(holder, str(shared / "store.db" if holder == "TORCHWISE_STORE" else shared))
    monkeypatch.setenv(variable, str(shared))
    with pytest.raises(InputError, match=f"holds more than a cache, .* let {variable} name a folder of its own"):
        ran("clear", "inductor" if "INDUCTOR" in variable else "triton", "--yes")
    assert precious.exists()


@pytest.mark.parametrize("name", ["inductor", "triton"])
def test_files_that_no_compiler_made_are_named_and_left_alone(folders: dict[str, Path], name: str) -> None:
    for foreign in ("huggingface", "notes.txt"):
        (folders[name] / foreign).mkdir()
    before = list_files(folders[name])
    for words in (("clear", name, "--yes"), ("limit", "1KiB", name, "--yes")):
        with pytest.raises(InputError, match=r"has huggingface, notes\.txt, which no compiler made, so nothing in it"):
            ran(*words)
    assert list_files(folders[name]) == before


def test_libraries_of_row_programs_are_a_part_of_inductors_cache(folders: dict[str, Path]) -> None:
    (folder := folders["inductor"] / NAME / "key").mkdir(parents=True)
    (folder / "hash.so").write_bytes(b"x" * KIB)
    ran("clear", "inductor", "--yes")
    assert list_files(folders["inductor"]) == []


def test_without_an_answer_nothing_is_deleted(folders: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="nothing is deleted, as nobody can be asked here: --yes"):
        ran("clear")
    assert len(list_files(folders["inductor"])) == 3


@pytest.mark.parametrize(("answer", "left"), [("n", 3), ("y", 0)])
def test_the_answer_decides(folders: dict[str, Path], answer: str, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_caches, "_can_ask", lambda: True)
    done = CliRunner().invoke(cache, ["clear", "inductor"], input=f"{answer}\n")
    assert "Delete these files?" in done.stdout
    assert done.exit_code == (1 if answer == "n" else 0)
    assert len(list_files(folders["inductor"])) == left


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("clear", "tritn", "--yes"), "cache is 'tritn', but must be one of inductor, triton, torchwise.*triton"),
        (("limit", "much", "--yes"), "size is 'much', but must be a finite size"),
        (("limit", "0", "--yes"), "size is '0'"),
    ],
)
def test_what_is_no_cache_and_no_size_is_refused(folders: dict[str, Path], words: tuple[str, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ran(*words)
    assert len(list_files(folders["inductor"])) == 3
