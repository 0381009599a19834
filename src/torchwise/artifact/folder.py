"""One folder for a fleet. Each machine reads only the subfolder of the artifacts that it can use.

::

    s3://bucket/models/
        0.1.0-1f0c6f4fd2b4/                             Torchwise, and the fingerprint of machine and software
            5c1f3ab09d7e4a21-90b1d0c7e6f25a38.tw        the model's structure, and its identity with its inputs
            5c1f3ab09d7e4a21-90b1d0c7e6f25a38.tw.used   when it was last saved or loaded

There is no index that could disagree with the files. If two processes save the same at once, the later wins, and both
files are whole.

The least recently used artifact is removed first. An object store only knows the time of writing. So each use writes a
marker of one byte, if the reader may write.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime

from torchwise import __version__, environment
from torchwise.artifact.remote_files import SUFFIX, RemoteFolder
from torchwise.errors import InputError
from torchwise.records import Decision

logger = logging.getLogger("torchwise")

USED = ".used"
ARTIFACT_FILE = re.compile(r"(?P<artifact>[\w.+-]+-[0-9a-f]{12}/\.?\w+-\w+\.tw)(\.\w+)*")
"""An artifact, its marker, and the remains of a writer that was killed. Nothing else is ever removed."""
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Entry:
    """One artifact in a folder.

    Attributes:
        url: its URL.
        size: bytes.
        used: when it was last saved or loaded, or None if it was removed meanwhile.
        device: "cuda" or "cpu" if it is for this machine and its software, else None.
    """

    url: str
    size: int
    used: datetime | None
    device: str | None


class Folder:
    """Artifacts in a `RemoteFolder`. `find` and `save` name them relative to it. Raises as `RemoteFolder` does."""

    def __init__(self, url: str) -> None:
        self.place = RemoteFolder(url)

    def prepare(self, decision: Decision) -> None:
        """Check that an artifact can be written, before minutes are spent on making it.

        Raises:
            InputError: it cannot be written.
        """
        self.place.write(name_of(decision) + USED, b"\n")

    def save(self, decision: Decision, data: bytes, limit_bytes: int | None = None) -> str:
        """Write an artifact, then remove others until all of them together keep to the limit. Return its name."""
        name = name_of(decision)
        self.place.write(name, data)
        self.place.write(name + USED, b"\n")
        if limit_bytes is not None:
            self.evict(limit_bytes, name)
        return name

    def find(self, device: str, structure: str = "") -> list[str]:
        """Name the artifacts for this machine and its software, newest first, of one model or of all."""
        home = _home(device)
        begins = f"{home}/{structure}-" if structure else f"{home}/"
        names = [name for name in self.place.sizes(home) if name.startswith(begins) and name.endswith(SUFFIX)]
        return sorted(names, key=self._modification_time, reverse=True) if len(names) > 1 else names

    def entries(self) -> list[Entry]:
        """List every artifact for any machine, the most recently used first."""
        here = {_home(device): device for device in ("cpu", environment.default_device())}
        found = [
            Entry(f"{self.place.url}/{name}", size, self._last_use(name), here.get(name.partition("/")[0]))
            for name, size in self.place.sizes().items()
            if name.endswith(SUFFIX) and ARTIFACT_FILE.fullmatch(name) and "/." not in name
        ]
        return sorted(found, key=lambda entry: entry.used or NEVER, reverse=True)

    def mark(self, name: str) -> None:
        """Leave a mark that an artifact was used."""
        try:
            self.place.write(name + USED, b"\n")
        except InputError as error:  # a user who may only read the folder still can
            logger.debug("torchwise: %s", error)

    def evict(self, limit_bytes: int, keep: str) -> None:
        """Remove the least recently used artifacts until the rest keeps to a limit. `keep` stays at any size.

        Other processes that evict meanwhile remove the same artifacts. An artifact that is saved or loaded at that very
        moment may be removed, too. Then it is compiled again.
        """
        artifacts: dict[str, dict[str, int]] = defaultdict(dict)
        for name, size in self.place.sizes().items():
            if match := ARTIFACT_FILE.fullmatch(name):
                # A file being written shares the marker of its final name. That marker is new, so other artifacts are
                # removed first.
                artifacts[match["artifact"].replace("/.", "/")][name] = size
        total = sum(sum(files.values()) for files in artifacts.values())
        if total <= limit_bytes:
            return
        for artifact in sorted(artifacts.keys() - {keep}, key=lambda name: self._last_use(name) or NEVER):
            if total <= limit_bytes:
                return
            for name in artifacts[artifact]:
                self.place.remove(name)
            total -= sum(artifacts[artifact].values())

    def _last_use(self, artifact: str) -> datetime | None:
        return self.place.modification_time(artifact + USED) or self.place.modification_time(artifact)

    def _modification_time(self, name: str) -> datetime:
        return self.place.modification_time(name) or NEVER


def name_of(decision: Decision) -> str:
    """Return the location of a decision's artifact: it names everything that must be equal for use.

    Raises:
        InputError: the decision's digests are invalid, so that they could lead elsewhere.
    """
    name = f"{_home(decision.workload.device)}/{decision.structure}-{decision.identity}{SUFFIX}"
    if not ARTIFACT_FILE.fullmatch(name):
        raise InputError(
            f"structure and identity are {decision.structure!r} and {decision.identity!r}, but must be digests"
        )
    return name


def _home(device: str) -> str:
    return f"{__version__}-{environment.detect(device).fingerprint}"
