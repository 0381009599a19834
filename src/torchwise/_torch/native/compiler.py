"""Compile the checks of each call, once for this user, this Python and this PyTorch."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from torchwise._torch.native.library import HERE, Library, UnusableError, find_torch

MAX_S = 300
"""Seconds that the compiler may take. Usually it takes 4."""
MAX_TEXT = 400
"""Characters of the compiler's message that an error has."""


def compile_checks(library: Library | None = None, options: tuple[str, ...] = ("-O2",)) -> bool:
    """Compile the checks, unless there is a library that may be loaded. Return whether the compiler ran.

    A library that fails to load is not kept, such as one that needs a newer C++ library than this Python has loaded.
    Another process that compiles the same is waited for. The folder of the library appears whole, by one rename.

    Raises:
        UnusableError: this Python can have no such checks, or compiling failed.
    """
    from filelock import FileLock, Timeout

    library = library or Library()
    if obstacle := library.find_obstacle():
        raise UnusableError(obstacle)
    try:
        library.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(f"{library.folder}.lock", timeout=MAX_S, mode=0o600):
            if library.file.is_file() and library.find_distrust() is None:
                return False
            if problem := library.find_distrust_of_folders():  # which compiling again would not change
                raise UnusableError(problem)
            _build(library, options)
            if problem := library.find_distrust():
                raise UnusableError(problem)
            return True
    except Timeout as error:
        raise UnusableError(f"another process has compiled them for {MAX_S} s") from error
    except OSError as error:
        raise UnusableError(f"{library.root} cannot be written ({error.strerror or error})") from error


def _build(library: Library, options: tuple[str, ...]) -> None:
    folder = Path(tempfile.mkdtemp(prefix="building-", dir=library.root))  # with access for this user alone
    try:
        file = folder / library.file.name
        _run(make_command(file, options))
        _try(file)
        os.chmod(file, 0o700)
        (folder / library.digest_file.name).write_text(hashlib.sha256(file.read_bytes()).hexdigest() + "\n")
        os.chmod(folder / library.digest_file.name, 0o600)
        _remove(library.folder)  # one that may not be loaded
        os.rename(folder, library.folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=MAX_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnusableError(f"the compiler {command[0]} does not run: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or ["?"]
        raise UnusableError(f"{command[0]} fails: {lines[0][:MAX_TEXT]}")


def _try(file: Path) -> None:
    """Load a library in a process of its own, as one that fails would be tried by each program that starts."""
    code = "import sys; sys.path[:] = sys.argv[2:]; from torchwise._torch.native import library as it"
    command = [sys.executable, "-c", f"{code}; it.load_file(sys.argv[1])", str(file), *sys.path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=MAX_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnusableError(f"they cannot be tried: {error}") from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UnusableError(f"they are compiled, but fail to load: {said[:MAX_TEXT]}")


def find_compiler() -> list[str]:
    """Return the command of the C++ compiler that Inductor would use, too: that of CXX, or g++, or else clang++.

    Raises:
        UnusableError: CXX is no command.
    """
    text = os.environ.get("CXX", "")
    try:
        given = shlex.split(text)
    except ValueError as error:
        raise UnusableError(f"CXX is {text!r}, which is no command: {error}") from error
    return given or [next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), "g++")]


def make_command(file: Path, options: tuple[str, ...]) -> list[str]:
    """Return the command that compiles the checks into a file.

    No option is for this CPU alone, so that machines with one home folder may share the library.
    """
    torch = find_torch()[0]
    include = [sysconfig.get_paths()["include"], torch / "include"]
    undefined = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    return [
        *find_compiler(),
        *("-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-w", *options),
        *(f"-isystem{folder}" for folder in include),
        str(HERE / "calls.cpp"),
        *(f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10", *undefined, "-o", str(file)),
    ]
