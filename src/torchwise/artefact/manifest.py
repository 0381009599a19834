"""What an artefact says of itself, in plain JSON that can be read without running or unpacking anything."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise import __version__, environment
from torchwise.environment import Environment
from torchwise.records import Decision, codec
from torchwise.records.bounds import Count, Seconds
from torchwise.records.codec import Document

SCHEMA = "torchwise.artefact/1"


@dataclass(frozen=True, slots=True)
class Member:
    """One file in the artefact.

    Attributes:
        size: bytes, unpacked.
        sha256: of them.
    """

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest(Document):
    """What is in an artefact, and where that may be run.

    Attributes:
        torchwise: the version that wrote it, and that alone reads the compiled code.
        environment: the machine and software that the code was compiled on.
        members: every other file in the artefact, by name.
        checks: what Inductor found out about the CPU's instruction sets and the C++ compiler (`isa.py`).
        cold_s: seconds that the first calls took beyond steady ones when nothing was compiled yet.
        warm_s: the same in a second process, with what is in here; None for a plan that compiles nothing.
        compiled_anew: graphs that this second process compiled all the same, because PyTorch does not keep them.
    """

    torchwise: str
    environment: Environment
    members: dict[str, Member]
    checks: dict[str, bool]
    cold_s: Seconds
    warm_s: Seconds | None
    compiled_anew: Count
    schema: str = SCHEMA

    def differences(self) -> list[str]:
        """Name each factor in which this machine and its software differ from where the code was compiled."""
        here = environment.detect(self.environment.device)
        version = [f"torchwise: {self.torchwise} there, {__version__} here"] if self.torchwise != __version__ else []
        return version + self.environment.differences(here)


@dataclass(frozen=True, slots=True)
class Info:
    """What `info` tells of an artefact.

    Attributes:
        decision: what it was made for.
        manifest: what is in it.
        sha256: of the whole file.
        size: of the whole file, in bytes.
    """

    decision: Decision
    manifest: Manifest
    sha256: str
    size: int

    def to_json(self) -> str:
        """Return it as JSON."""
        return codec.to_json(self)
