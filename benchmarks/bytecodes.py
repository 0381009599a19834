"""Counts the bytecodes that Python executes: for a call, for `import torchwise`, and for `torchwise --help`.

The number is the same on every run and every machine, under any load. The search for modules on disk is excluded, as it
depends on the location of packages. Work in C code is not counted, except for the items that `map` goes through.

`host_cost.py` runs it in a process without other modules: python -S benchmarks/bytecodes.py "import torchwise"
"""

from __future__ import annotations

import builtins
import sys

TYPE_CHECKING = False  # modules imported here would not count when Torchwise imports them
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType

SEARCHES_DISK = "<frozen importlib"


def count_bytecodes(call: Callable[[], object], leave_out: CodeType | None = None) -> int:
    """Count the bytecodes that a call executes in this thread.

    Args:
        call: the call to count.
        leave_out: the code of a function whose calls do not count, with everything they call. Code that a compiler made
            from this function, under its name, is left out as well.
    """
    count, is_left_out = 0, False

    def enter(frame: FrameType, _event: str, _value: object) -> Callable[..., object] | None:
        nonlocal is_left_out
        code = frame.f_code
        if is_left_out or code.co_filename.startswith(SEARCHES_DISK):
            return None
        if leave_out and (code.co_name, code.co_filename) == (leave_out.co_name, leave_out.co_filename):
            is_left_out = True
            return leave
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return step

    def step(_frame: FrameType, event: str, _value: object) -> Callable[..., object]:
        nonlocal count
        count += event == "opcode"
        return step

    def leave(_frame: FrameType, event: str, _value: object) -> Callable[..., object]:
        nonlocal is_left_out
        is_left_out = event != "return"
        return leave

    sys._getframe().f_trace_opcodes = True  # Python 3.12 traces opcodes if a frame asks for them before `settrace`
    before = sys.gettrace(), builtins.map
    builtins.map = map_in_python  # type: ignore[assignment,misc]
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(before[0])
        builtins.map = before[1]  # type: ignore[misc]
    return count


def map_in_python(function: Callable[..., object], *iterables: Iterable[object]) -> Iterator[object]:
    """Do the same as `map` in Python, so that each item counts: a loop in C would hide the work of a call."""
    for values in zip(*iterables):  # noqa: B905
        yield function(*values)


def import_torchwise() -> None:
    __import__("torchwise")


def show_help() -> None:
    from torchwise.cli import main

    sys.argv = ["torchwise", "--help"]
    shown = sys.stdout
    with open("/dev/null", "w") as sys.stdout:
        try:
            main()
        except SystemExit:
            pass
        finally:
            sys.stdout = shown


COMMANDS = {"import torchwise": import_torchwise, "torchwise --help": show_help}

if __name__ == "__main__":
    print(count_bytecodes(COMMANDS[sys.argv[1]]))
