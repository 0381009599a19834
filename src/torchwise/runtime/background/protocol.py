"""The protocol between a program and the process that tunes for it: one line of JSON per message."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import msgspec

from torchwise.compile.aot import Code
from torchwise.errors import InputError
from torchwise.records import Decision, codec
from torchwise.study import Request
from torchwise.trial.loading import save
from torchwise.workload import Workload

Kind = Literal["searching", "promoted", "stays", "left", "failed", "done"]


@dataclass(frozen=True, slots=True)
class Order:
    """The order for a tuning process.

    Attributes:
        request: what to tune. Its budget holds for everything from `started` on.
        efforts: a search for each, the quickest first.
        store: as for `tune`.
        path: the import path to use.
        minimum_speedup: the speed-up over eager that a plan must surely reach.
        started: the time of the order, by the monotonic clock, which all processes of a machine share and nobody sets.
    """

    request: Request
    efforts: tuple[str, ...]
    store: str | None
    path: tuple[str, ...]
    minimum_speedup: float = 1.0
    started: float = field(default_factory=time.monotonic)


ExtraCalls = Literal["any", "undrawn", "none"]
"""How a model may be called besides its program's own calls.

"any" means freely. "undrawn" means without drawing random numbers, which are the program's. "none" means not at all, as
the model keeps state.
"""


@dataclass(frozen=True, slots=True)
class Message:
    """A message about the tuning's progress.

    Attributes:
        kind: "searching" (a tier), "promoted" (a plan), "stays" (the current plan remains), "left" (a plan is
            rejected), "failed" or "done". A plan is left if it cannot be carried over, or is not verified or not
            faster.
        text: a sentence for the user.
        decision: the decision of the promoted plan, or of one below the minimum speed-up, as JSON.
        file: the file of its code, or "" for a plan that compiles nothing.
        checks: results of the checks of instruction sets (`torchwise._torch.cpu_isa_cache`).
    """

    kind: Kind
    text: str
    decision: str = ""
    file: str = ""
    sha256: str = ""
    checks: dict[str, bool] = field(default_factory=dict)
    extra_calls: ExtraCalls = "none"

    def parse_decision(self) -> Decision:
        """Return the plan's decision."""
        return Decision.from_json(self.decision)


def write_code(file: Path, codes: list[Code]) -> str:
    """Write ahead-of-time compiled code, and return the file's SHA-256."""
    data = msgspec.msgpack.encode(codes)
    file.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def read_code(file: Path, sha256: str) -> list[Code]:
    """Read a file of `write_code` from this program's own folder.

    Raises:
        InputError: the file changed since it was written.
    """
    data = file.read_bytes()
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        raise InputError(f"{file} hashes to {found[:12]}…, but {sha256[:12]}… was written: its code is not loaded")
    return msgspec.msgpack.decode(data, type=list[Code])


def write_order(workload: Workload, order: Order) -> Path:
    """Write the model and the order, with the model's place, and return their folder.

    Raises:
        WorkloadError: the model cannot be sent to another process.
    """
    folder = Path(tempfile.mkdtemp(prefix="torchwise-background-"))
    try:
        model = str(folder / "model.pt")
        save(workload, model)
        order = replace(order, request=replace(order.request, source=model))
        (folder / "order.json").write_text(codec.to_json(order))
    except BaseException:  # raised again
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder
