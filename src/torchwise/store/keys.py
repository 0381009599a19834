"""The key of a study, and a study in one line.

Also here: convert records to text and back. An error about an unreadable row names the row.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from torchwise.errors import InputError, StorageError
from torchwise.parsing import parse_json
from torchwise.plan import Numerics
from torchwise.records import Interval, Study, StudyState, codec


@dataclass(frozen=True, slots=True)
class StudyKey:
    """The key of a study. A second request with an equal key resumes the study of the first.

    The key lacks the target's name, the number of calls and restarts, and the effort. They change the decision or the
    number of trials, but not the measurements.

    Attributes:
        identity: the model and inputs, as in `torchwise.workload.identity`.
        fingerprint: the machine and software, as in `Environment.fingerprint`.
        device: "cpu" or "cuda".
        mode: "inference" or "training".
        objective: "latency", "throughput" or "memory".
        allow: the loosest numerics allowed, by `Numerics.former_name`.
    """

    identity: str
    fingerprint: str
    device: str
    mode: str
    objective: str
    allow: str

    @classmethod
    def from_study(cls, study: Study) -> StudyKey:
        """Return the key of `study`."""
        workload = study.workload
        return cls(
            identity=study.inspection.identity,
            fingerprint=study.environment.fingerprint,
            device=workload.device,
            mode=workload.mode,
            objective=workload.objective,
            allow=Numerics.of(study.allow).former_name,
        )


@dataclass(frozen=True, slots=True)
class StudySummary:
    """A study in one line, without its samples.

    Attributes:
        id: the id of the study in the store.
        target: the target of the last request. In a list of one target's studies, it is that target.
        device: device of the study.
        mode: "inference" or "training".
        state: whether the search has ended. In a list of one target's studies, it is that target's state.
        trials: number of trials, running ones included.
        plan: the decided plan as text, or None while undecided.
        speedup: of the decided plan, or None while undecided, and for eager.
        created_at: seconds since the epoch.
    """

    id: int
    target: str
    device: str
    mode: str
    state: StudyState
    trials: int
    plan: str | None
    speedup: Interval | None
    created_at: float


T = TypeVar("T")
State = TypeVar("State", bound=StrEnum)

WAY_OUT = "delete the study, or read it with the version of Torchwise that wrote it"


def dump(record: Any) -> str:
    """Return a record as JSON text. It may contain Infinity and NaN, which Python reads, but strict JSON lacks."""
    return json.dumps(codec.to_builtins(record), separators=(",", ":"))


def load(text: str, kind: type[T], *, row: str, written: str, known: str, way_out: str = WAY_OUT) -> T:
    """Read the output of `dump`.

    Args:
        text: the stored text.
        kind: class of the record.
        row: name of the row in a message, such as "trial 3 of study 1".
        written: the row's format.
        known: the format that this version reads.
        way_out: advice for a row that cannot be read.

    Raises:
        StorageError: the format is another one, or the text is no such record.
    """
    if written != known:
        raise StorageError(f"{row} has format {written!r}, but this version reads {known!r}; {way_out}")
    try:
        return codec.from_builtins(parse_json(text, constants=True), kind, stored=True)
    except InputError as error:
        raise StorageError(f"{row} cannot be read: {error}; {way_out}") from error


def state_of(text: str, kind: type[State], *, row: str, way_out: str = WAY_OUT) -> State:
    """Read a state from its own column.

    Raises:
        StorageError: this version knows no such state.
    """
    try:
        return kind(text)
    except ValueError:
        raise StorageError(f"{row} is {text!r}, but this version knows {', '.join(kind)}; {way_out}") from None
