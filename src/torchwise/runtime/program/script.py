"""Run a script or a module in this process as `python` does, unchanged, and return its exit code."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from torchwise.errors import InputError

INTERRUPTED = 130


class Script:
    """A program as it is given on a command line.

    Attributes:
        name: the name of its file, or of the module.
        words: the part of a command line that names it.
    """

    def __init__(self, target: str, args: Sequence[str], *, is_module: bool) -> None:
        """Find and compile the program.

        Raises:
            InputError: there is no such file or module, or it is no Python program.
        """
        self._main = ModuleType("__main__")
        self._main.__dict__["__builtins__"] = __builtins__
        self._code = self._find_module(target) if is_module else self._read_file(target)
        self.name = target if is_module else Path(target).name
        self.words = [*(["-m"] if is_module else []), target, *args]
        self._args = args

    def run(self) -> int:
        """Run the program as `__main__`, wait for its threads, and return its exit code.

        Its error is printed as Python prints it. `__main__` stays in place, as classes of the program live there.
        """
        sys.argv = [self._first_word, *self._args]
        sys.modules["__main__"] = self._main
        code: Any = 0
        try:
            exec(self._code, vars(self._main))
        except SystemExit as error:
            code = error.code
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BaseException as error:  # a program may raise anything, and ends by it
            trace = error.__traceback__
            error.__traceback__ = trace = trace.tb_next if trace else None  # without this function's own line
            sys.excepthook(type(error), error, trace)
            code = 1
        _join_threads()
        return _exit_code(code)

    def _read_file(self, target: str) -> CodeType:
        file = Path(target)
        if not file.is_file():
            raise InputError(
                f"script is {target!r}, but there is no such file in {Path.cwd()}: -m MODULE runs a module"
            )
        try:
            self._main.__file__ = os.path.abspath(target)  # as Python makes it
            with io.open_code(self._main.__file__) as stream:
                code = compile(stream.read(), self._main.__file__, "exec")
        except (SyntaxError, ValueError) as error:
            raise InputError(f"{target} is no Python program: {error}") from None
        sys.path.insert(0, str(file.resolve().parent))
        self._first_word = target
        return code

    def _find_module(self, target: str) -> CodeType:
        sys.path.insert(0, os.getcwd())
        try:
            spec = importlib.util.find_spec(target)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = importlib.util.find_spec(f"{target}.__main__")
        except (ImportError, ValueError) as error:
            raise InputError(f"module is {target!r}, but cannot be found: {error}") from None
        loader: Any = None if spec is None else spec.loader
        code: CodeType | None = loader.get_code(spec.name) if spec is not None and hasattr(loader, "get_code") else None
        if spec is None or code is None:
            raise InputError(f"module is {target!r}, but there is no such module with Python code: check PYTHONPATH")
        self._main.__spec__, self._main.__file__, self._main.__package__ = spec, spec.origin, spec.parent
        self._first_word = spec.origin or target
        return code


def _join_threads() -> None:
    """Wait for threads as Python does at its end, so that their calls are recorded."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon and thread is not threading.current_thread():
            thread.join()


def _exit_code(code: Any) -> int:
    """Return the code that Python would end with, and print a message given in its place."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1
