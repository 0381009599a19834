"""Environments with another PyTorch, made once and kept: all other packages are those of this environment.

An environment is a virtual one that holds that PyTorch and its own requirements. Behind them it sees the packages of
this environment. So nothing but PyTorch changes, and little has to be installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from torchwise import environment
from torchwise.errors import InputError
from torchwise.trial.interpreter_launcher import is_program

_VERSION = re.compile(r"\d+(\.\w+)+(\+\w+)?")
_STAMP = "torchwise-made"
TAIL = 600
"""Characters of an installer's output in a message."""
_SEES = "import site; site.addsitedir({!r})\n"
"""A line of a `.pth` file, which runs when the interpreter starts: those packages come after its own."""


def make_environment(torch: str, say: Callable[[str], None], python: str | None = None) -> str:
    """Return the interpreter of an environment with a version of PyTorch, which is made if it does not exist.

    It is kept in the user's cache, by the versions of PyTorch and Python, and by the environment whose packages it
    sees: another project's packages are others.

    Args:
        torch: the version, such as "2.15.0".
        say: told before something is installed.
        python: the interpreter to make it with, or None for this one.

    Raises:
        InputError: there is no such version, the interpreter is of another version than this one, or the cache cannot
            be written.
    """
    from filelock import FileLock

    if not _VERSION.fullmatch(torch):
        raise InputError(f"torch is {torch!r}, but must be a version, such as 2.15.0")
    python = python or sys.executable
    version, _, program = _ask(python, "import sys; print('%d.%d' % sys.version_info[:2], sys.executable)").partition(
        " "
    )
    if version != (own := f"{sys.version_info.major}.{sys.version_info.minor}"):
        raise InputError(
            f"python is {python!r} of version {version}, but must be of {own} to share this environment's packages: "
            "make an environment for it, and give its interpreter with --against-python"
        )
    folder = locate_environments() / f"torch-{torch}-python-{version}-{_digest_environment(torch, program)}"
    interpreter = str(folder / "bin" / "python")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{folder}.lock").acquire()
    except OSError as error:
        raise InputError(
            f"{folder.parent} cannot be written: {error.strerror}. Make an environment with torch {torch} yourself, "
            "and give its interpreter with --against-python"
        ) from None
    with lock:
        # The interpreter is a link to one that may be gone by now.
        if not ((folder / _STAMP).exists() and is_program(interpreter)):
            shutil.rmtree(folder, ignore_errors=True)
            say(f"installing torch {torch} into {folder}")
            try:
                _create(folder, python, torch)
                (folder / _STAMP).touch()
            except BaseException:  # half of one may take gigabytes
                shutil.rmtree(folder, ignore_errors=True)
                raise
    return interpreter


def locate_environments() -> Path:
    """Return the folder of all environments with another PyTorch."""
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("torchwise"), "environments")


def _digest_environment(torch: str, program: str) -> str:
    """Return a digest of all that an environment with another PyTorch takes from an interpreter and from this one."""
    taken = (program, sys.prefix, _list_folders(), _is_cpu_build(torch))
    return hashlib.sha256(repr(taken).encode()).hexdigest()[:8]


def _list_folders() -> list[str]:
    """List the folders of this environment's packages."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def _is_cpu_build(torch: str) -> bool:
    """Whether a version is wanted in its build for the CPU alone, as this environment has."""
    return environment.torch_version().endswith("+cpu") and "+" not in torch


def _create(folder: Path, python: str, torch: str) -> None:
    uv, interpreter = _find_uv(), str(folder / "bin" / "python")
    _run([uv, "venv", "--python", python, str(folder)] if uv else [python, "-m", "venv", str(folder)], str(folder))
    versions = ([f"{torch}+cpu"] if _is_cpu_build(torch) else []) + [torch]
    tries = [(version, installer) for version in versions for installer in _list_installers(uv, interpreter)]
    errors: dict[str, None] = {}
    for version, installer in tries:
        try:
            _run([*installer, f"torch=={version}"], f"torch {version}")
            break
        except InputError as error:  # not every index has the builds for the CPU, under a version of their own
            errors[str(error)] = None
    else:
        raise InputError("; ".join(errors))
    share_packages(interpreter)


def _find_uv() -> str | None:
    """Return uv, of this environment or the path. It resolves some releases' requirements where pip gives up."""
    own = Path(sys.executable).with_name("uv")
    return str(own) if own.exists() else shutil.which("uv")


def _list_installers(uv: str | None, interpreter: str) -> list[list[str]]:
    """List the commands that install into an environment. pip knows indexes that uv does not, from its own settings."""
    if uv is None:  # the environment was made with a pip of its own
        return [[interpreter, "-m", "pip", "install", "-q"]]
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "-q"]
    return [[uv, "pip", "install", "--python", interpreter], *([pip] if importlib.util.find_spec("pip") else [])]


def share_packages(interpreter: str) -> None:
    """Let an interpreter of this version see the packages of this environment behind its own."""
    own = _ask(interpreter, "import sysconfig; print(sysconfig.get_path('purelib'))")
    folders = [path for path in _list_folders() if path != own]
    Path(own, "torchwise-shared.pth").write_text("".join(map(_SEES.format, folders)))


def _ask(python: str, code: str) -> str:
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise InputError(f"python is {python!r}, but must be an interpreter that can be run: {error}") from None
    return found.stdout.strip()


def _run(command: list[str], what: str) -> None:
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        said = (found.stderr or found.stdout).strip()[-TAIL:]
        raise InputError(
            f"{what} could not be installed: {said.rstrip('.')}. If it exists, make an environment with it yourself, "
            "and give its interpreter with --against-python"
        )
