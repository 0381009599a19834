"""The libraries of row programs: found by a key and a hash, made if there is none, and carried by artifacts."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

import torchwise
from live_decisions import make_decision
from row_calls import PLAN, compile_call, compile_once
from torchwise import artifact
from torchwise.artifact.build import _count_compiled_graphs
from torchwise.compile.programs import build
from torchwise.compile.programs.source import write_source
from torchwise.errors import InputError, UnsupportedError
from torchwise.records import Decision
from torchwise.workload import Workload, target


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have an empty cache, forget code that other tests compiled, and compute without gradients."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "caches"))
    compile_once(monkeypatch)
    build._find_compiler.cache_clear()
    torch.compiler.reset()
    with torch.no_grad():
        yield tmp_path / "caches"
    build._find_compiler.cache_clear()
    torch.compiler.reset()


def scale(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x * 1.25) + 3


def forbid(*_args: Any) -> NoReturn:
    raise AssertionError("it compiled, or loaded what it should not")


def hide_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _name: None)
    build._find_compiler.cache_clear()


def test_the_cache_has_the_code_in_the_next_process_even_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 5)
    compile_call(scale, x)(x)
    made = len(build.MADE)
    torch.compiler.reset()
    hide_compiler(monkeypatch)
    torch.testing.assert_close(compile_call(scale, x)(x), scale(x))
    assert len(build.MADE) == made


def test_a_library_that_was_changed_is_never_loaded_and_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(3, 5)
    compile_call(scale, x)(x)
    (library,) = place.rglob("*.so")
    data = library.read_bytes()
    library.unlink()  # this process runs the old file
    library.write_bytes(data + b"changed")
    with monkeypatch.context() as patched:
        hide_compiler(patched)
        patched.setattr(build, "import_extension", forbid)
        torch.compiler.reset()
        with pytest.raises(UnsupportedError, match=rf"{library} is not loaded, .* so delete it; row programs need a C"):
            compile_call(scale, x)(x)
    build._find_compiler.cache_clear()
    torch.compiler.reset()
    torch.testing.assert_close(compile_call(scale, x)(x), scale(x))
    assert f"{library} is not loaded" in caplog.text
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() == file.stem for file in place.rglob("*.so")]
    assert True in hashes


def test_a_library_that_cannot_be_imported_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_compile", lambda _source: b"cut short")
    x = torch.randn(3, 5)
    with pytest.raises(UnsupportedError, match="ImportError"):
        compile_call(scale, x)(x)
    monkeypatch.undo()
    torch.compiler.reset()
    torch.testing.assert_close(compile_call(scale, x)(x), scale(x))


def test_the_library_that_is_carried_is_the_one_that_could_be_loaded(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, library = build.find_library(source := write_source([]))
    (own,) = place.rglob("*.so")
    texts = (f"made with newer libraries {number}".encode() for number in itertools.count())
    foreign = next(text for text in texts if hashlib.sha256(text).hexdigest() < own.stem)  # which is looked at first
    own.with_name(f"{hashlib.sha256(foreign).hexdigest()}.so").write_bytes(foreign)  # an artifact may have brought it
    assert build.find_library(source) == (key, library)
    with pytest.raises(UnsupportedError, match="cannot be loaded: "):
        build.install_library(source, key, foreign)
    assert build.install_library(source, key, library) is not None


def test_a_cache_for_reading_alone_costs_compiling_again_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    written, write = list[Path](), build.write_whole

    def refuse(file: Path, library: bytes) -> None:
        if not written:
            written.append(file)
            raise OSError(30, "Read-only file system")
        write(file, library)

    monkeypatch.setattr(build, "write_whole", refuse)
    x = torch.randn(3, 5)
    torch.testing.assert_close(compile_call(scale, x)(x), scale(x))
    assert "is not kept: [Errno 30] Read-only file system" in caplog.text
    assert not written[0].exists()


@pytest.mark.parametrize("what", ["instructions", "torch", "build", "python", "machine", "headers", "text"])
def test_a_library_for_something_else_is_not_looked_at(place: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    here, text = build.find_folder("text"), "text"
    if what == "instructions":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ANOTHER")
    elif what == "torch":
        monkeypatch.setattr(torch, "__version__", "9.9.9")
    elif what == "build":
        monkeypatch.setattr(torch.version, "git_version", "another")
    elif what == "python":
        monkeypatch.setattr(build.sysconfig, "get_config_var", lambda _name: "another")
    elif what == "machine":
        monkeypatch.setattr(build.platform, "machine", lambda: "another")
    elif what == "headers":
        monkeypatch.setattr(build, "_hash_headers", lambda: "another")
    else:
        text = "another"
    assert build.find_folder(text) != here
    assert here.is_relative_to(place)


@pytest.mark.skipif(shutil.which("clang++") is None, reason="there is no clang++")
def test_clang_compiles_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "clang++")
    x = torch.randn(37, 70)
    torch.testing.assert_close(compile_call(scale, x)(x), scale(x))
    assert build._find_compiler()[0].endswith("clang++")


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_compiler(monkeypatch)
    x = torch.randn(3)
    with pytest.raises(UnsupportedError, match=r"need a C\+\+ compiler: install g\+\+"):
        compile_call(scale, x)(x)


def test_a_library_that_was_not_found_counts_as_compiled(place: Path) -> None:
    x, before = torch.randn(3, 5), _count_compiled_graphs()
    compile_call(scale, x)(x)
    assert _count_compiled_graphs() == before + 1
    torch.compiler.reset()
    compile_call(scale, x)(x)
    assert _count_compiled_graphs() == before + 1


MODEL = """
import torch

def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 4))
    return model.eval(), (torch.ones(1, 4),)
"""
START = """
import sys, torch, torchwise
from torchwise import artifact
from torchwise.compile.programs import build
from torchwise.workload import target
artifact.load(sys.argv[1], trust=True)
workload = target.load(sys.argv[2])
fast = torchwise.apply(workload.call, artifact.info(sys.argv[1]).decision)
(x,) = workload.examples[0].args
with torch.no_grad():
    torch.testing.assert_close(fast(x), workload.call(x))
print(fast.statistics.optimized, len(build.MADE))
"""


@dataclass
class Saved:
    """An artifact of a plan of row programs, and the model's target."""

    file: Path
    name: str
    decision: Decision
    workload: Workload


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    folder = tmp_path_factory.mktemp("saved")
    (folder / "model.py").write_text(MODEL)
    workload = target.load(name := f"{folder / 'model.py'}:make")
    decision = make_decision(workload.call, PLAN, *workload.examples[0].args)
    made = artifact.save(folder / "model.tw", name, decision)
    assert made.manifest.compiled_anew == 0, "the second process found the library"
    assert made.manifest.warm_s is not None
    assert [one for one in made.manifest.members if one.startswith(f"inductor/{build.NAME}/")]
    return Saved(folder / "model.tw", name, decision, workload)


def start_without_compiler(saved: Saved, folder: Path, **variables: str) -> tuple[str, str]:
    """Load the artifact and call the model in a process without a compiler and with an empty cache.

    Returns:
        the numbers of calls that the plan answered and of libraries that were compiled, and the log.
    """
    hidden = {"PATH": str(folder), "CXX": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(folder / "caches")}
    command = [sys.executable, "-c", START, str(saved.file), saved.name]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **hidden, **variables}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.slow
def test_a_machine_without_a_compiler_runs_the_libraries_of_an_artifact(saved: Saved, tmp_path: Path) -> None:
    assert start_without_compiler(saved, tmp_path)[0] == "1 0"


@pytest.mark.nightly
def test_a_library_for_other_instructions_is_not_used_and_the_original_answers(saved: Saved, tmp_path: Path) -> None:
    numbers, log = start_without_compiler(saved, tmp_path, ATEN_CPU_CAPABILITY="default")
    assert numbers == "0 0"
    assert "row programs need a C++ compiler: install g++, or name one in CXX" in log


@pytest.mark.slow
def test_without_trust_no_library_is_taken_from_an_artifact(saved: Saved, place: Path) -> None:
    with pytest.raises(InputError, match="trust is False"):
        artifact.load(saved.file)
    assert not list(place.rglob("*.so"))


@pytest.mark.slow
def test_a_changed_library_in_an_artifact_is_refused_and_the_original_answers(
    saved: Saved, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    changed = tmp_path / "changed.tw"
    with zipfile.ZipFile(saved.file) as before, zipfile.ZipFile(changed, "w") as after:
        for name in before.namelist():
            data = before.read(name)
            after.writestr(name, data.replace(b"region", b"REGION") if name.endswith(".so") else data)
    with pytest.raises(InputError, match=r"the SHA-256 of '.*\.so' is .*, but the manifest says"):
        artifact.load(changed, trust=True)
    assert not list(place.rglob("*.so"))
    hide_compiler(monkeypatch)
    fast = torchwise.apply(saved.workload.call, saved.decision)
    (x,) = saved.workload.examples[0].args
    torch.testing.assert_close(fast(x), saved.workload.call(x))
    assert fast.statistics.optimized == 0
    assert "row programs need a C++ compiler" in caplog.text
