"""An artifact's description of itself, in plain JSON that can be read without running or unpacking anything."""

from __future__ import annotations

from dataclasses import dataclass

from torchwise import __version__, environment
from torchwise.environment import Environment
from torchwise.records import Decision, codec
from torchwise.records.codec import Document
from torchwise.records.statistics import Count, Seconds

SCHEMA = "torchwise.artefact/1"  # the name of the format, which stays as it was first written


@dataclass(frozen=True, slots=True)
class Member:
    """One file in the artifact.

    Attributes:
        size: bytes when unpacked.
        sha256: hash of the unpacked bytes.
    """

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest(Document):
    """Contents of an artifact, and the environment for running them.

    Attributes:
        torchwise: the version that wrote it. No other version reads the compiled code.
        environment: the machine and software that the code was compiled on.
        members: every other file in the artifact, by name.
        checks: Inductor's findings about the CPU's instruction sets and the C++ compiler (`cpu_isa_cache.py`).
        cold_s: seconds of the first calls beyond steady ones when nothing was compiled yet.
        warm_s: the same in a second process, with this artifact's contents, or None for a plan that compiles nothing.
        compiled_anew: graphs that this second process compiled again, because PyTorch does not store them.
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
        """Name each difference between this machine and its software and those that the code was compiled on."""
        here = environment.detect(self.environment.device)
        version = [f"torchwise: {self.torchwise} there, {__version__} here"] if self.torchwise != __version__ else []
        return version + self.environment.differences(here)


@dataclass(frozen=True, slots=True)
class Info:
    """Result of `info` for an artifact.

    Attributes:
        decision: the decision that it was made for.
        manifest: its contents.
        sha256: hash of the whole file.
        size: size of the whole file, in bytes.
    """

    decision: Decision
    manifest: Manifest
    sha256: str
    size: int

    def to_json(self) -> str:
        """Return the result as JSON."""
        return codec.to_json(self)
