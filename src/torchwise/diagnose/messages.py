"""Read PyTorch's messages: its tracebacks, the reasons of graph breaks, and the guards that failed."""

from __future__ import annotations

import functools
import json
import linecache
import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchwise._torch import dynamo
from torchwise.diagnose.break_fixes import add_fix
from torchwise.records.compile_events import Break, Frame
from torchwise.zoo.registry import find_program_folders

_OWN = Path(__file__).parents[1]
_FRAME = re.compile(r'^[ \t]*File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<function>[^\n]+))?', re.MULTILINE)
_RESUMED = re.compile(r"^(torch_dynamo_resume_in_)+(?P<function>.+?)(_at_\d+)+$")
_PLACE = re.compile(r"^Graph break in user code at (?P<file>.+):(?P<line>\d+)$", re.MULTILINE)
_SKIPPED = "Graph break: torch.compile cannot properly resume"
_WHOLE = ("Failed to handle graph break gracefully", "Skipping the function and falling back to eager")
_PREAMBLE = re.compile(r"^(Encountered graph break|Failed to handle graph break)[^\n]*:\s*", re.MULTILINE)
_RAISED = re.compile(rf"^{re.escape(dynamo.ERRORS)}\.\w+: ", re.MULTILINE)
_STACK = re.compile(r"^(User code traceback|The graph break occurred in the following user code):\n", re.MULTILINE)
_ERROR = "\nTraceback (most recent call last):"
_ENDS = ("\n*** While handling", "\nStack variable source attribution:", "\nUser code traceback:", "\nfrom user code:")
_CODE = re.compile(r"/gb/gb(?P<number>\d+)\.html")
_PART = re.compile(r"^ +(?P<name>Explanation|Hint|Developer debug context): ?", re.MULTILINE)
_REPORT = re.compile(
    r"^(Please (report|file) an issue|This graph break may have been caused by an earlier graph break)"
)
_COMPILED = re.compile(r"^\d+/\d+: |^!?\[?\d+\]?/\d+: ")
_IN_FUNCTION = re.compile(r" in (?P<function>[\w<>.]+)\s*$")


def read_frames(text: str) -> tuple[Frame, ...]:
    """Return the frames of a traceback as Python writes it, without the compiler's, the outermost first.

    A function that goes on after a graph break appears twice in PyTorch's stack: at its earlier break, and at its
    present line. The first of these is left out.
    """
    frames = [
        Frame(hit["file"], int(hit["line"]), (hit["function"] or "").strip())
        for hit in _FRAME.finditer(text)
        if not is_compiler(hit["file"])
    ]
    kept: list[Frame] = []
    for frame in frames:
        plain = plain_name(frame.function)
        if kept and plain != frame.function and (kept[-1].file, kept[-1].function) == (frame.file, plain):
            kept.pop()
        kept.append(replace(frame, function=plain))
    return tuple(kept)


def plain_name(function: str) -> str:
    """Return the name of the function that continues after a graph break: "f" for "torch_dynamo_resume_in_f_at_3"."""
    hit = _RESUMED.match(function)
    return plain_name(hit["function"]) if hit else function


def is_compiler(file: str) -> bool:
    """Return whether a file belongs to the compiler, whose frames say nothing about the program."""
    return _is_within(file, [str(_torch() / dynamo.FOLDER)])


@functools.lru_cache(maxsize=4096)
def is_library(file: str) -> bool:
    """Return whether a file is installed code: torch, site-packages, the standard library, Torchwise, but no zoo."""
    return _is_within(file, _libraries()) and not _is_within(file, _programs())


def _is_within(file: str, folders: Iterable[str]) -> bool:
    return file.startswith("<frozen ") or any(file.startswith(folder + os.sep) for folder in folders)


@functools.cache
def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib") if name in paths]
    return (str(_torch()), str(_OWN), *installed)


@functools.cache
def _programs() -> tuple[str, ...]:
    return find_program_folders()


@functools.cache
def _torch() -> Path:
    import torch  # here, as `torchwise.watch` is imported where there may be no torch

    return Path(torch.__file__).parent


def read_break(text: str) -> Break | None:
    """Return the graph break of a record `dynamo_graph_break_reason`, or None if it names no place."""
    skipped = text.startswith(_SKIPPED)
    reason = _reason(text, skipped)
    stack = _stack(text)
    if not stack:
        return None
    innermost = stack[-1]
    frame = next((frame for frame in reversed(stack) if not is_library(frame.file)), innermost)
    sections = _split_sections(reason)
    code = _CODE.search(reason)
    return add_fix(
        Break(
            file=frame.file,
            line=frame.line,
            function=frame.function,
            code=f"GB{code['number']}" if code else "",
            reason=sections["reason"][0],
            explanation=" ".join(sections["Explanation"]),
            hints=tuple(hint for hint in sections["Hint"] if not _REPORT.match(hint)),
            context=" ".join(sections["Developer debug context"]),
            stack=stack,
            library=innermost if innermost != frame else None,
            excerpt=linecache.getline(frame.file, frame.line).strip(),
            whole=skipped or text.find(_WHOLE[0], 0, 2000) >= 0 or text.find(_WHOLE[1], 0, 2000) >= 0,
        )
    )


def break_key(graph_break: Break) -> tuple[str, int, str, Frame | None]:
    """Return the identity of a break: the line and PyTorch's code, and the library's line that it lies in."""
    return (graph_break.file, graph_break.line, graph_break.code or graph_break.reason, graph_break.library)


def _reason(text: str, skipped: bool) -> str:
    """Return PyTorch's message without its header and traceback, or the error's message for a skipped function."""
    if skipped:
        return _cut(_RAISED.split(text)[-1])
    return _cut(_PREAMBLE.sub("", text.partition("Graph Break Reason: ")[2]))


def _cut(text: str) -> str:
    return text[: min((at for at in map(text.find, _ENDS) if at >= 0), default=len(text))].strip()


def _stack(text: str) -> tuple[Frame, ...]:
    """Return the frames down to the break, or the place in the first line if there is no traceback."""
    hits = list(_STACK.finditer(text))
    frames = read_frames(text[hits[-1].end() :].partition(_ERROR)[0]) if hits else ()
    place = _PLACE.match(text)
    if place and not frames:
        return (Frame(place["file"], int(place["line"])),)
    return frames


def _split_sections(reason: str) -> dict[str, list[str]]:
    """Return the sections of a message: its first line as "reason", and lists of the others by name."""
    parts: dict[str, list[str]] = {name: [] for name in ("reason", "Explanation", "Hint", "Developer debug context")}
    pieces = _PART.split(reason)
    parts["reason"].append(pieces[0].strip().partition("\n")[0])
    for name, body in zip(pieces[1::2], pieces[2::2], strict=True):
        parts[name].append(body.partition("\n\n")[0].strip())
    return parts


@dataclass(frozen=True, slots=True)
class Failed:
    """One guard that failed.

    Attributes:
        source: the expression that it checks, or empty if that is unknown.
        subject: the varying value, in words.
        want: the value that the code was compiled for, or empty if the guard names none.
        got: the value of this call, or empty if PyTorch does not report it.
        stack: the code that needs the guard.
    """

    guard: str
    source: str
    subject: str
    want: str = ""
    got: str = ""
    stack: tuple[Frame, ...] = ()
    function: str = ""


def read_failures(payload: str) -> tuple[Failed, ...]:
    """Return the failed guard of each compiled version that did not fit, the last used version first."""
    reasons = json.loads(payload) if payload.startswith("[") else payload
    texts = [reasons] if isinstance(reasons, str) else [str(reason) for reason in reasons]
    return tuple(_parse_failure(text) for text in texts)


def describe_variation(failures: Sequence[Failed]) -> str:
    """Name the varying value and its range, from every version that failed because of the same value as the first."""
    first = failures[0]
    same = [failed for failed in reversed(failures) if failed.subject == first.subject]
    expected = list(dict.fromkeys(failed.want for failed in same if failed.want))
    if not expected:
        return first.subject + (f": now {first.got}" if first.got else "")
    return f"{first.subject}: {', '.join(expected)}, then {first.got or 'another'}"


def _parse_failure(text: str) -> Failed:
    head, _, stack = text.partition("\nUser stack trace:")
    guard, _, comment = _COMPILED.sub("", head.strip()).partition("  # ")
    guard = guard.strip()
    hit = _IN_FUNCTION.search(comment.partition(" (")[0])
    function = plain_name(hit["function"]) if hit else ""
    return Failed(guard, *_describe_guard(guard), stack=read_frames(stack), function=function)


def _describe_guard(guard: str) -> tuple[str, str, str, str]:
    """Return a guard's expression, the varying value in words, the expected value, and the value of this call."""
    for pattern, words in _WORDS:
        if hit := re.match(pattern, guard):
            found = hit.groupdict()
            subject = words.format(guard=guard, **found) if isinstance(words, str) else words(hit)
            return found.get("source") or "", subject, found.get("want") or "", found.get("got") or ""
    return "", f"this no longer holds: {guard}", "", ""


def _describe_mismatch(hit: re.Match[str]) -> str:
    what = {"size": "the size", "stride": "the stride", "rank": "the number of dimensions", "dtype": "the dtype"}
    dimension = f" of dimension {hit['index']}" if hit["index"] else ""
    return f"{what.get(hit['what'], hit['what'])}{dimension} of {hit['source']}"


def _describe_global_state(hit: re.Match[str]) -> str:
    known = {"grad_mode": "whether gradients are recorded", "num_threads": "the number of threads"}
    return "the state of PyTorch: " + ", ".join(known.get(name, name) for name in hit["names"].split())


_WORDS: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (
        r"tensor '(?P<source>[^\n]+?)' (?P<what>\w+) mismatch(?: at index (?P<index>\d+))?\. "
        r"expected (?P<want>[^,\n]+), actual (?P<got>.+)",
        _describe_mismatch,
    ),
    (r"tensor '(?P<source>[^\n]+?)' requires_grad mismatch", "whether {source} requires a gradient"),
    (
        r"(?i)tensor '(?P<source>[^\n]+?)' (?P<what>[\w ]+?) mismatch",
        "the {what} of {source} (its device or its kind of tensor)",
    ),
    (r"expected type of '(?P<source>[^\n]+?)' to be .*but found (?P<got>.+)", "the type of {source}"),
    (r"GLOBAL_STATE changed: (?P<names>.+)", _describe_global_state),
    (r"len\((?P<source>.+)\) == (?P<want>\d+)$", "the length of {source}"),
    (r"not (?P<source>[\w.\[\]']+)$", "the length of {source}"),
    (
        r"___check_(?:obj|type)_id\((?P<source>.+?), \d+\), type=(?P<type>.+)",
        "which object {source} is (it was {type})",
    ),
    (r"___check_(?:obj|type)_id\((?P<source>.+?), \d+\)", "which object {source} is"),
    (r"(?P<source>[^\n]+) is (?P<other>[^\n]+)$", "whether {source} and {other} are one object"),
    (r"(?P<source>[^=<>\n]+)\.training == (?:True|False)$", "the mode of {source}: train() or eval()"),
    (
        r"2 <= (?P<source>[^=<>\n]+\.size\(\)\[\d+\])",
        "{source} is 0 or 1, which PyTorch compiles separately",
    ),
    (r"(?P<source>[^=<>%()+*\n]+) == (?P<want>[^\n]+)$", "the value of {source}"),
    (r".*?(?P<source>[\w.\[\]']+\.size\(\)\[\d+\])", "{source}: this no longer holds: {guard}"),
)
"""Forms of guards, each with its varying value. The first that fits counts."""
