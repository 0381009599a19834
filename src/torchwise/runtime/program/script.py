"""Run a script or a module in this process as `python` does, unchanged, and return its exit code."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib.util
import io
import itertools
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any

import torchwise
from torchwise.errors import InputError

INTERRUPTED = 130
_OWN = tuple(
    os.path.join(os.path.dirname(torchwise.__file__), *folder, "") for folder in (["runtime", "program"], ["_torch"])
)
"""Folders of the code that stands between the program and its modules."""
_POOLS: dict[str, tuple[str, str, Callable[[Any], object]]] = {
    "concurrent.futures.thread": ("_shutdown", "_threads_queues", lambda queue: queue.put(None)),
    "concurrent.futures.process": ("_global_shutdown", "_threads_wakeups", lambda wakeup: wakeup.wakeup()),
}
"""The modules of pools, with the flag that Python's end sets, their threads, and the way to wake one (Python 3.11)."""


class Script:
    """A program as it is given on a command line.

    Attributes:
        name: the name of its file, or of the module.
        words: the part of a command line that names it.
        was_interrupted: whether Ctrl-C ended it.
    """

    def __init__(self, target: str, args: Sequence[str], *, is_module: bool) -> None:
        """Find and compile the program.

        Raises:
            InputError: there is no such file or module, or it is no Python program.
        """
        self._main = ModuleType("__main__")
        self._main.__dict__.update(__builtins__=builtins, __cached__=None)
        self._target = target
        self._code = None if is_module else self._read_file(target)
        if is_module:
            self._check_module(target)
        self.name = target if is_module else Path(target).name
        self.was_interrupted = False
        self.words = [*(["-m"] if is_module else []), target, *args]
        self._args = args

    def run(self) -> int:
        """Run the program as `__main__`, wait for its threads and children, and return its exit code.

        Its error is printed as Python prints it. `__main__` stays in place, as classes of the program live there.
        """
        others = set(threading.enumerate())
        gc.freeze()  # or the program's collections would go through all that Torchwise has loaded
        sys.argv = [self._first_word, *self._args]
        sys.modules["__main__"] = self._main
        code: Any = 0
        try:
            if self._code is None:  # imports the packages around the module, which are part of the program
                self._code = self._find_module(self._target)
                sys.argv[0] = self._first_word
            exec(self._code, vars(self._main))
        except SystemExit as error:
            code = error.code
        except BaseException as error:  # a program may raise anything, and ends by it
            if self._code is None and isinstance(error, InputError):
                raise
            error.__traceback__ = _without_own_frames(error.__traceback__)
            sys.excepthook(type(error), error, error.__traceback__)
            code = INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
            self.was_interrupted = code == INTERRUPTED
        try:
            _wait_for_others(others)
        except KeyboardInterrupt:  # as of a server whose threads go on
            code, self.was_interrupted = INTERRUPTED, True
        return _exit_code(code)

    def replace_process(self) -> None:
        """End this process, and have Python run the program alone in its place, with the same process id and streams.

        So nothing that Torchwise has loaded costs the program time: some libraries go through all modules and callers.
        It returns if that cannot be done, or if this process is not the command line's own.
        """
        options = _list_python_options(self.words)
        if options is None:
            return
        flush_streams()
        with contextlib.suppress(OSError):
            os.execv(sys.executable, [sys.executable, *options, *self.words])

    def _read_file(self, target: str) -> CodeType:
        file = Path(target)
        if not file.is_file():
            raise InputError(
                f"script is {target!r}, but there is no such file in {Path.cwd()}: -m MODULE runs a module"
            )
        try:
            self._main.__file__ = os.path.abspath(target)  # as Python makes it
            with io.open_code(self._main.__file__) as stream:
                code = compile(stream.read(), self._main.__file__, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise InputError(f"{target} is no Python program: {error}") from None
        self._main.__loader__ = SourceFileLoader("__main__", self._main.__file__)
        _search_in(str(file.resolve().parent))
        self._first_word = target
        return code

    def _check_module(self, target: str) -> None:
        """Refuse a module that cannot be there, without an import of its package."""
        _search_in(os.getcwd())
        self._first_word = "-m"  # as Python says while it looks for the module
        try:
            found = importlib.util.find_spec(target.partition(".")[0])
        except (ImportError, ValueError) as error:
            raise InputError(f"module is {target!r}, but cannot be found: {error}") from None
        if found is None:
            raise InputError(f"module is {target!r}, but there is no such module: check PYTHONPATH")

    def _find_module(self, target: str) -> CodeType:
        spec = importlib.util.find_spec(target)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{target}.__main__")
        loader: Any = None if spec is None else spec.loader
        code: CodeType | None = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
        if spec is None or code is None:
            raise InputError(f"module is {target!r}, but there is no such module with Python code: check PYTHONPATH")
        self._main.__spec__, self._main.__loader__ = spec, loader
        self._main.__file__, self._main.__package__ = spec.origin, spec.parent
        self._first_word = spec.origin or target
        return code


def _search_in(folder: str) -> None:
    """Have imports look into a folder first, as Python does unless it was told not to."""
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


def flush_streams() -> None:
    """Write out the standard streams, which may be closed, full or without a reader."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # None if it was closed before the start
            stream.flush()


def _list_python_options(words: Sequence[str]) -> list[str] | None:
    """Return the options of Python itself on the command line of this process, such as -X dev.

    It is None if that command line is not `torchwise run --apply` with these words of a program: another program has
    called the command line.
    """
    own, given = sys.orig_argv[1:], sys.argv[1:]
    target, *args = words[1:] if words[0] == "-m" else words
    at = len(given) - len(args)  # a module may be named in other words, such as -mMODULE
    named = given[:at]
    is_own = own[len(own) - len(given) :] == given and given[at:] == args and "".join(named[-1:]).endswith(target)
    if not is_own or len(own) == len(given) or "--apply" not in named:
        return None
    *options, entry = own[: len(own) - len(given)]
    if (in_one_word := re.match("-[A-Za-z]*?[mc]", entry)) is not None:  # as in -Imtorchwise
        options.append(in_one_word[0])
    if options and re.fullmatch("-(?![XW])[A-Za-z]*[mc]", options[-1]):  # perhaps after others, as in -Im
        options[-1] = options[-1][:-1]
    return [option for option in options if option != "-"]


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback as the program alone would leave it."""
    kept: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_OWN):
            kept.append(trace)
        trace = trace.tb_next
    for entry, following in itertools.zip_longest(kept, kept[1:]):
        entry.tb_next = following
    return kept[0] if kept else None


def _wait_for_others(others: set[threading.Thread]) -> None:
    """Wait for threads and child processes as Python does at its end, so that their calls are recorded."""
    _end_pools(others)
    while threads := [one for one in threading.enumerate() if one not in others and _is_waited_for(one)]:
        for thread in threads:
            thread.join()
    for child in multiprocessing.active_children():
        if not child.daemon:
            child.join()


def _is_waited_for(thread: threading.Thread) -> bool:
    return not thread.daemon and thread not in (threading.main_thread(), threading.current_thread())


def _end_pools(others: set[threading.Thread]) -> None:
    """End the threads of the program's pools, which wait for work forever, as Python does at its end.

    Pools of `others` go on, such as the compiler's.
    """
    for name, (flag, threads_of, wake) in _POOLS.items():
        pool = sys.modules.get(name)
        threads = [(thread, end) for thread, end in getattr(pool, threads_of, {}).items() if thread not in others]
        if pool is None or not threads:
            continue
        setattr(pool, flag, True)
        for _, end in threads:
            wake(end)
        for thread, _ in threads:
            thread.join()
        setattr(pool, flag, False)


def _exit_code(code: Any) -> int:
    """Return the code that Python would end with, and print a message given in its place."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
