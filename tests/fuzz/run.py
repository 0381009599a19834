"""Mutated files of every kind that is read: each is read, or refused with an error of Torchwise's own.

    python tests/fuzz/run.py [--each 100000] [--seed 0] [--kind NAME] [--processes N]

What is read must be all that stands in the file: it is written again, and held against the file as Python reads it.
Prints a table, and what went wrong with the file at fault; ends with 1 where anything did.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import multiprocessing
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "unit")]

from kinds import Kind, kinds  # noqa: E402
from mutations import BYTES, slip, splice, twice  # noqa: E402

from torchwise.errors import TorchwiseError  # noqa: E402

SAMPLES_DRAWN_BY_NUMPY = ("low", "high")
IN_THE_WRITERS_WORDS = ("sentence", "reliability")
MAX_LENGTH = 2000
"""Characters of a message that a person may be asked to read."""


@dataclass
class Found:
    """The results of the mutated files of one kind."""

    read: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def count(self) -> int:
        return self.read + self.refused + len(self.wrong)

    def add(self, other: Found) -> None:
        self.read, self.refused = self.read + other.read, self.refused + other.refused
        self.wrong, self.seconds = self.wrong + other.wrong, self.seconds + other.seconds


def fuzz(kind: Kind, others: list[bytes], each: int, seed: int) -> Found:
    """Read so many mutated files. The same seed mutates them in the same way everywhere."""
    draw, found, start = random.Random(f"{kind.name} {seed}"), Found(), time.process_time()
    plain = [kind.plain(sample) for sample in kind.samples]
    for _ in range(each):
        data = mutate_file(kind, plain, others, draw)
        try:
            outcome = judge(kind, data)
        except TorchwiseError as error:
            found.refused += 1
            if problem := bad_message(str(error), of_python=kind.of_python):
                found.wrong.append(f"{problem}: {str(error)[:200]!r} for {data[:300]!r}")
        except BaseException as error:  # the fault that is looked for
            if isinstance(error, KeyboardInterrupt):
                raise
            found.wrong.append(f"{type(error).__name__}: {error!s:.200} for {data[:3000]!r}")
        else:
            found.read += 1
            found.wrong += [f"{outcome} for {data[:3000]!r}"] if outcome else []
    found.seconds = time.process_time() - start
    return found


def mutate_file(kind: Kind, plain: list[Any], others: list[bytes], draw: random.Random) -> bytes:
    """Return a damaged file."""
    place = draw.randrange(len(kind.samples))
    how = draw.random()
    if how < 0.55:
        try:
            data = kind.written(slip(plain[place], plain, draw))
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # no file can hold that
            data = kind.samples[place]
        if how < 0.05 and data[:1] == b"{":
            data = twice(data.decode(errors="replace"), draw).encode(errors="surrogatepass")
        if how > 0.1:
            return data
        return draw.choice(BYTES)(data, draw)
    if how < 0.65:
        return splice(kind.samples[place], draw.choice((*kind.samples, *others)), draw)
    return draw.choice(BYTES)(kind.samples[place], draw)


def judge(kind: Kind, data: bytes) -> str:
    """Read a file. Return the parts of it that are missing in the data that was read."""
    made = kind.read(data)
    if kind.told is None:
        return ""
    try:
        plain = kind.plain(data)
    except ValueError as error:
        return f"it was read, but Python itself refuses it ({error})"
    lost = next(differences(plain, kind.told(made), "$"), "")
    if lost:
        return f"it was read, but {lost}"
    return ""


def differences(plain: Any, told: Any, place: str) -> Iterator[str]:
    """Yield the parts of a file that are missing, or differ, in the data that was read of it."""
    if isinstance(told, (set, frozenset)):
        told = sorted(told)
        plain = sorted(plain) if isinstance(plain, list) and all(isinstance(item, str) for item in plain) else plain
    if isinstance(plain, dict) and isinstance(told, dict):
        for name, value in plain.items():
            if name not in told:
                yield f"{place}.{name} is lost"
            elif not (name in SAMPLES_DRAWN_BY_NUMPY + IN_THE_WRITERS_WORDS and _is_derived(place)):
                yield from differences(value, told[name], f"{place}.{name}")
    elif isinstance(plain, (list, tuple)) and isinstance(told, (list, tuple)):
        if len(plain) != len(told):
            yield f"{place} had {len(plain)} items, and has {len(told)}"
        if place.endswith((".options", ".traits")):  # whose order means nothing
            plain, told = (sorted(map(json.dumps, items)) for items in (plain, told))
        for index, (value, other) in enumerate(zip(plain, told, strict=False)):
            yield from differences(value, other, f"{place}[{index}]")
    elif plain is None and isinstance(told, float) and math.isinf(told):
        return
    elif isinstance(plain, bool) is not isinstance(told, bool) or not _is_same(plain, told, place):
        yield f"{place} was {plain!r:.60}, and is {told!r:.60}"


def _is_derived(place: str) -> bool:
    """Whether a study derives this value from its samples."""
    return place.endswith(("seconds_per_call", "].speedup", ".duel.speedup", "$.trust"))


def _is_same(plain: Any, told: Any, place: str) -> bool:
    if _is_derived(place.rpartition(".")[0]) and isinstance(plain, (int, float)):
        return math.isclose(plain, told, rel_tol=1e-6)
    if isinstance(told, float) and isinstance(plain, int):
        return float(plain) == told
    return bool(plain == told)


def bad_message(text: str, *, of_python: bool = False) -> str:
    """Return the fault of a message, or nothing if it can be shown."""
    if not text.strip():
        return "an empty message"
    if len(text) > MAX_LENGTH and not of_python:
        return f"a message of {len(text)} characters"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "a message that no terminal can show"
    return ""


def _part(given: tuple[str, int, int]) -> tuple[str, Found]:
    name, each, seed = given
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a disk would take most of the time
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        all_kinds = kinds(Path(folder))
        kind = next(kind for kind in all_kinds if kind.name == name)
        others = [sample for other in all_kinds for sample in other.samples]
        return name, fuzz(kind, others, each, seed)


def main() -> int:
    """Fuzz every kind, in several processes, and print the result of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=100_000, help="mutated files of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", help="this kind alone; may be given again")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    names = given.kind or [kind.name for kind in kinds(Path(tempfile.gettempdir()))]
    size = 2500
    parts = [
        (name, min(size, given.each - first), given.seed * 1_000_003 + first)
        for name in names
        for first in range(0, given.each, size)
    ]
    found: dict[str, Found] = collections.defaultdict(Found)
    with multiprocessing.get_context("forkserver").Pool(given.processes) as pool:
        for name, part in pool.imap_unordered(_part, parts):
            found[name].add(part)
    show({name: found[name] for name in names}, given.seed)
    return 1 if any(kind.wrong for kind in found.values()) else 0


def show(found: dict[str, Found], seed: int) -> None:
    """Print a table."""
    versions = f"Python {platform.python_version()}, msgspec {_version('msgspec')}, torch {_version('torch')}"
    print(f"tests/fuzz/run.py, seed {seed}, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} CPUs, {versions}")
    print(f"{'kind':<18}{'files':>9}{'read':>9}{'refused':>9}{'else':>6}{'µs each':>9}")
    for name, kind in found.items():
        each_us = 1e6 * kind.seconds / max(kind.count, 1)
        print(f"{name:<18}{kind.count:>9}{kind.read:>9}{kind.refused:>9}{len(kind.wrong):>6}{each_us:>9.0f}")
    for name, kind in found.items():
        for wrong in kind.wrong[:5]:
            print(f"\n{name}: {wrong}")


def _version(package: str) -> str:
    from torchwise.environment import package_version

    return package_version(package) or "absent"


if __name__ == "__main__":
    sys.exit(main())
