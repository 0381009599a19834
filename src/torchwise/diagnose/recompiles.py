"""Recompilations: the failed guard, and the value that varies from call to call, read from PyTorch's reasons."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchwise.diagnose import source_locations
from torchwise.records.compile_events import Frame

_COMPILED = re.compile(r"^\d+/\d+: |^!?\[?\d+\]?/\d+: ")
_IN = re.compile(r" in (?P<function>[\w<>.]+)\s*$")


@dataclass(frozen=True, slots=True)
class Failed:
    """One guard that failed.

    Attributes:
        guard: as PyTorch writes it.
        source: the expression that it checks, or empty if that is unknown.
        subject: the varying value, in words.
        want: the value that the code was compiled for, or empty if the guard names none.
        got: the value of this call, or empty if PyTorch does not report it.
        stack: the code that needs the guard.
        function: the function with that code.
    """

    guard: str
    source: str
    subject: str
    want: str = ""
    got: str = ""
    stack: tuple[Frame, ...] = ()
    function: str = ""


def read(payload: str) -> tuple[Failed, ...]:
    """Return the failed guard of each compiled version that did not fit, the last used version first."""
    reasons = json.loads(payload) if payload.startswith("[") else payload
    texts = [reasons] if isinstance(reasons, str) else [str(reason) for reason in reasons]
    return tuple(_parse_failure(text) for text in texts)


def varies(failures: Sequence[Failed]) -> str:
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
    hit = _IN.search(comment.partition(" (")[0])
    function = source_locations.plain_name(hit["function"]) if hit else ""
    return Failed(guard, *_explain(guard), stack=source_locations.read(stack), function=function)


def _explain(guard: str) -> tuple[str, str, str, str]:
    """Return a guard's expression, the varying value in words, the expected value, and the value of this call."""
    for pattern, words in _WORDS:
        if hit := pattern.match(guard):
            found = hit.groupdict()
            return found.get("source") or "", words(hit), found.get("want") or "", found.get("got") or ""
    return "", f"this no longer holds: {guard}", "", ""


def _mismatch(hit: re.Match[str]) -> str:
    what = {"size": "the size", "stride": "the stride", "rank": "the number of dimensions", "dtype": "the dtype"}
    dimension = f" of dimension {hit['index']}" if hit["index"] else ""
    return f"{what.get(hit['what'], hit['what'])}{dimension} of {hit['source']}"


def _global(hit: re.Match[str]) -> str:
    known = {"grad_mode": "whether gradients are recorded", "num_threads": "the number of threads"}
    return "the state of PyTorch: " + ", ".join(known.get(name, name) for name in hit["names"].split())


_WORDS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (
        re.compile(
            r"tensor '(?P<source>[^\n]+?)' (?P<what>\w+) mismatch(?: at index (?P<index>\d+))?\. "
            r"expected (?P<want>[^,\n]+), actual (?P<got>.+)"
        ),
        _mismatch,
    ),
    (
        re.compile(r"tensor '(?P<source>[^\n]+?)' requires_grad mismatch"),
        lambda hit: f"whether {hit['source']} requires a gradient",
    ),
    (
        re.compile(r"(?i)tensor '(?P<source>[^\n]+?)' (?P<what>[\w ]+?) mismatch"),
        lambda hit: f"the {hit['what']} of {hit['source']} (its device or its kind of tensor)",
    ),
    (
        re.compile(r"expected type of '(?P<source>[^\n]+?)' to be .*but found (?P<got>.+)"),
        lambda hit: f"the type of {hit['source']}",
    ),
    (re.compile(r"GLOBAL_STATE changed: (?P<names>.+)"), _global),
    (re.compile(r"len\((?P<source>.+)\) == (?P<want>\d+)$"), lambda hit: f"the length of {hit['source']}"),
    (re.compile(r"not (?P<source>[\w.\[\]']+)$"), lambda hit: f"the length of {hit['source']}"),
    (
        re.compile(r"___check_(?:obj|type)_id\((?P<source>.+?), \d+\)(?:, type=(?P<type>.+))?"),
        lambda hit: f"which object {hit['source']} is" + (f" (it was {hit['type']})" if hit["type"] else ""),
    ),
    (
        re.compile(r"(?P<source>[^\n]+) is (?P<other>[^\n]+)$"),
        lambda hit: f"whether {hit['source']} and {hit['other']} are one object",
    ),
    (
        re.compile(r"(?P<source>[^=<>\n]+)\.training == (?:True|False)$"),
        lambda hit: f"the mode of {hit['source']}: train() or eval()",
    ),
    (
        re.compile(r"2 <= (?P<source>[^=<>\n]+\.size\(\)\[\d+\])"),
        lambda hit: f"{hit['source']} is 0 or 1, which PyTorch compiles separately",
    ),
    (re.compile(r"(?P<source>[^=<>%()+*\n]+) == (?P<want>[^\n]+)$"), lambda hit: f"the value of {hit['source']}"),
    (
        re.compile(r".*?(?P<source>[\w.\[\]']+\.size\(\)\[\d+\])"),
        lambda hit: f"{hit['source']}: this no longer holds: {hit.string}",
    ),
)
"""Forms of guards, each with its varying value.

The first that fits counts.
"""
