"""Graph breaks, read from the reasons that PyTorch writes to its structured trace."""

from __future__ import annotations

import re

from torchwise._torch import dynamo
from torchwise.diagnose import source_locations
from torchwise.diagnose.fixes import add_fix
from torchwise.records.compile_events import Break, Frame

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


def read(text: str) -> Break | None:
    """Return the graph break of a record `dynamo_graph_break_reason`, or None if it names no place."""
    skipped = text.startswith(_SKIPPED)
    reason = _reason(text, skipped)
    stack = _stack(text)
    if not stack:
        return None
    innermost = stack[-1]
    frame = source_locations.innermost_users(stack) or innermost
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
            excerpt=source_locations.excerpt(frame),
            whole=skipped or text.find(_WHOLE[0], 0, 2000) >= 0 or text.find(_WHOLE[1], 0, 2000) >= 0,
        )
    )


def key(graph_break: Break) -> tuple[str, int, str, Frame | None]:
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
    frames = source_locations.read(text[hits[-1].end() :].partition(_ERROR)[0]) if hits else ()
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
