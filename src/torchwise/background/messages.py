"""What a program and the process that tunes for it tell each other: one line of JSON each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from torchwise.errors import InputError
from torchwise.realize.ahead import Code
from torchwise.records import Decision
from torchwise.study import Request

Kind = Literal["searching", "promoted", "stays", "left", "failed", "done"]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be tuned.

    Attributes:
        request: at the first effort; `efforts` are the tiers.
        efforts: one search each, the quickest first.
        store: URL of the store; None for the user's own.
        path: where the program imports from.
    """

    request: Request
    efforts: tuple[str, ...]
    store: str | None
    path: tuple[str, ...]


ExtraCalls = Literal["any", "undrawn", "none"]
"""How a model may be called besides its program's own calls: freely; without drawing random numbers, which are the
program's; or not at all, as it keeps state."""


@dataclass(frozen=True, slots=True)
class News:
    """What became of it so far.

    Attributes:
        kind: "searching" a tier, "promoted" a plan, what answers "stays" as it is, a plan is "left" because it cannot
            be carried over or did not prove itself, it "failed", or it is "done".
        text: a sentence.
        decision: of the plan that is promoted, as JSON.
        file: where its code lies; "" for a plan that compiles nothing.
        sha256: of that file.
        checks: what is known of the instruction sets (`torchwise.realize.isa`).
        extra_calls: how the model may be called besides the program's own calls.
    """

    kind: Kind
    text: str
    decision: str = ""
    file: str = ""
    sha256: str = ""
    checks: dict[str, bool] = field(default_factory=dict)
    extra_calls: ExtraCalls = "none"

    def decided(self) -> Decision:
        """Return the decision of what is promoted."""
        return Decision.from_json(self.decision)


def write_code(file: Path, codes: list[Code]) -> str:
    """Write what was compiled ahead; return the file's SHA-256."""
    data = msgspec.msgpack.encode(codes)
    file.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def read_code(file: Path, sha256: str) -> list[Code]:
    """Read what `write_code` wrote in a folder of this program's own.

    Raises:
        InputError: it is not the file that was written.
    """
    data = file.read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise InputError(f"{file} hashes to {found[:12]}…, but {sha256[:12]}… was written: its code is not loaded")
    return msgspec.msgpack.decode(data, type=list[Code])
