"""The file: a zip of a manifest, a decision and the compiled code, read as a whole or not at all.

The manifest is plain JSON, which can be read without running or unpacking anything. Any fault of a file is found before
any of it is used: everything is read into memory, and checked against the manifest there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import secrets
import stat
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from torchwise import __version__, environment
from torchwise.environment import Environment
from torchwise.errors import InputError
from torchwise.parsing import brief
from torchwise.records import Decision, codec
from torchwise.records.codec import Document
from torchwise.records.shown import Shown
from torchwise.records.statistics import Count, Seconds

D = TypeVar("D", bound=Document)
SCHEMA = "torchwise.artefact/1"  # the name of the format, which stays as it was first written
MANIFEST, DECISION = "manifest.json", "decision.json"
CODE = ("inductor", "triton")
"""Folders of compiled code. Anything else in an artifact is refused."""
MAX_MANIFEST_BYTES = 2**26
MAX_BYTES = 2**32
"""Maximum total size, unpacked. The largest artifact so far has a hundredth of it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file in the artifact, with the size and SHA-256 of its unpacked bytes."""

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
        compiled_anew: graphs that this second process compiled again, because no code of them is stored.
    """

    torchwise: str
    environment: Environment
    members: dict[str, Member]
    checks: dict[str, bool]
    cold_s: Seconds
    warm_s: Seconds | None
    compiled_anew: Count
    schema: str = SCHEMA

    def __repr__(self) -> str:
        return f"<Manifest of {len(self.members)} files by torchwise {self.torchwise}>"

    def differences(self) -> list[str]:
        """Name each difference between this machine and its software and those that the code was compiled on."""
        here = environment.detect(self.environment.device)
        version = [f"torchwise: {self.torchwise} there, {__version__} here"] if self.torchwise != __version__ else []
        return version + self.environment.differences(here)


@dataclass(frozen=True, slots=True)
class Info(Shown):
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

    def __repr__(self) -> str:
        return f"<Info on {self.decision.workload.target}: plan {self.decision.plan}, {self.size / 2**20:.1f} MiB>"

    def list_differences(self) -> list[str]:
        """Name each difference of this machine and software from those that the code is for.

        Versions of other makers' compilers count only for a plan that needs one.
        """
        here = environment.detect(self.manifest.environment.device)
        return list(dict.fromkeys((*self.manifest.differences(), *self.decision.list_changes(here))))

    def to_json(self) -> str:
        """Return the result as JSON."""
        return codec.to_json(self)


@dataclass(frozen=True, slots=True)
class Package:
    """An artifact that was read and found whole. `code` holds the bytes of each file of compiled code by name."""

    info: Info
    code: Mapping[str, bytes]


def pack(manifest: Manifest, decision: Decision, code: Mapping[str, bytes]) -> tuple[Info, bytes]:
    """Return an artifact and its description. The members of the manifest are filled in here."""
    members = {DECISION: decision.to_json().encode(), **code}
    described = {name: Member(len(data), _digest(data)) for name, data in members.items()}
    manifest = replace(manifest, members=described)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {MANIFEST: codec.to_json(manifest).encode(), **members}.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)  # without the time of day
    data = packed.getvalue()
    return Info(decision, manifest, _digest(data), len(data)), data


def read(path: Path, sha256: str | None = None) -> Package:
    """Read an artifact from a file, and unpack it.

    Raises:
        InputError: there is no such file, or as `unpack` does.
    """
    try:
        data = path.read_bytes()
    except IsADirectoryError:
        url = path.absolute().as_uri()
        raise InputError(f"{path} is a folder, but must be one artifact, or the folder's URL: {url}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    return unpack(str(path), data, sha256)


def unpack(path: str, data: bytes, sha256: str | None = None) -> Package:
    """Check every byte of an artifact against its manifest, and return its contents.

    Args:
        path: its source, for messages.
        sha256: expected hash of all of it, from a trusted source, or None for any.
    """
    digest = _digest(data)
    if sha256 is not None and sha256.strip().lower() != digest:
        raise InputError(f"the SHA-256 of {path} is {digest}, but must be {sha256}: it is another file, or was changed")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            manifest, members = _members(archive)
        decision = _parse(DECISION, members.pop(DECISION), Decision)
    except InputError as error:
        raise InputError(f"{path} is refused: {brief(error)}") from None
    # zipfile lets its decompressors' errors through besides its own, and has two for unsupported features.
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{path} is no artifact, or is damaged ({brief(error)}): copy it again, or build it again"
        ) from None
    return Package(Info(decision, manifest, digest, len(data)), members)


def put(path: Path, data: bytes) -> None:
    """Write a file under a temporary name in the same folder, and rename it.

    Raises:
        InputError: it cannot be written. The old file is still there.
    """
    # A plain open, unlike tempfile's, leaves the file readable by whomever the umask lets: a fleet has several users.
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise InputError(f"{path} cannot be written: {error.strerror}; nothing was changed there") from None


def _members(archive: zipfile.ZipFile) -> tuple[Manifest, dict[str, bytes]]:
    """Return the contents of the archive, every byte checked against the manifest."""
    entries = {entry.filename: entry for entry in archive.infolist()}
    if len(entries) != len(archive.infolist()):
        raise InputError("a name is in it twice")
    if MANIFEST not in entries:
        raise InputError(f"it has no {MANIFEST}")
    manifest = _parse(MANIFEST, _bytes(archive, entries.pop(MANIFEST), MAX_MANIFEST_BYTES), Manifest)
    if odd := sorted(entries.keys() ^ manifest.members.keys()):
        raise InputError(f"{odd[0]!r} is in the file or in its manifest, but must be in both")
    if DECISION not in entries:
        raise InputError(f"it has no {DECISION}")
    if wrong := next((name for name, member in manifest.members.items() if member.size < 0), None):
        raise InputError(f"the manifest says that {wrong!r} has {manifest.members[wrong].size} bytes")
    if (total := sum(member.size for member in manifest.members.values())) > MAX_BYTES:
        raise InputError(f"it unpacks to {total} bytes, but at most {MAX_BYTES} are read")
    return manifest, {name: _read_member(archive, entries[name], member) for name, member in manifest.members.items()}


def _parse(name: str, text: bytes, kind: type[D]) -> D:
    try:
        return kind.from_json(text)
    except InputError as error:
        raise InputError(f"{name}: {error}; build the artifact again") from None


def _read_member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, member: Member) -> bytes:
    name = entry.filename
    if name != DECISION:
        _check_name(name)
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise InputError(f"{name!r} is a link or a device, but must be a file")
    data = _bytes(archive, entry, member.size)
    if len(data) != member.size:
        raise InputError(f"{name!r} has {len(data)} bytes, but the manifest says {member.size}")
    if (digest := _digest(data)) != member.sha256:
        raise InputError(f"the SHA-256 of {name!r} is {digest}, but the manifest says {member.sha256}")
    return data


def _check_name(name: str) -> None:
    """Refuse a name that could lead out of the folder it is to be unpacked in."""
    folder, _, rest = name.partition("/")
    parts = rest.split("/")
    plain = not any(mark in name for mark in ("\\", ":", "\0")) and not {"", ".", ".."}.intersection(parts)
    if folder not in CODE or not plain or PurePosixPath(rest).is_absolute():
        raise InputError(f"{name!r} is in it, but only plain paths under {' and '.join(CODE)} are taken")


def _bytes(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> bytes:
    """Read an entry, but at most one byte over the expected size, whatever size it claims or unpacks to."""
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # other decompressors have other errors
        raise InputError(f"{entry.filename!r} is packed by method {entry.compress_type}, but must be deflated")
    with archive.open(entry) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{entry.filename!r} has more than {most} bytes, which is all that is expected")
    return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
