"""The recorded calls of one module or function, by kinds of inputs, and their times."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchwise._torch.dispatch import NO_FUNCTIONS
from torchwise.plan.workload_spec import Mode
from torchwise.records.recording import Kept, RecordedInputs, RecordedModule
from torchwise.workload.workload import Example

Key = tuple[Any, ...]


@dataclass(slots=True)
class Kind:
    """Calls of one kind: inputs of one signature in one mode.

    Attributes:
        seconds: wall-clock time of all calls, which on a GPU may only be that of their launch.
        first_s: that of the first one, which may load or reserve something once.
        events: two events on the GPU around a call, for the first calls.
    """

    key: Key
    text: str
    mode: Mode
    autocast: torch.dtype | None
    example: Example | None
    kept: Kept
    calls: int = 0
    seconds: float = 0.0
    first_s: float = 0.0
    events: list[tuple[Any, Any]] = field(default_factory=list)

    @property
    def training(self) -> bool:
        """Whether the module was in training mode, which is no matter of gradients."""
        return bool(self.key[2])

    def average_s(self) -> float:
        """Return the mean time of a call on its device. The first call counts only if there is no other."""
        with contextlib.suppress(RuntimeError):  # such as events of two devices
            if self.events:
                for _, end in self.events:
                    end.synchronize()
                return statistics.fmean(begin.elapsed_time(end) for begin, end in self.events[1:] or self.events) / 1e3
        return (self.seconds - self.first_s) / (self.calls - 1) if self.calls > 1 else self.seconds

    def count(self, seconds: float, events: tuple[Any, Any] | None = None) -> None:
        """Count a call, with its wall-clock time and the events around it."""
        if not self.calls:
            self.first_s = seconds
        self.calls += 1
        self.seconds += seconds
        if events is not None:
            self.events.append(events)


@dataclass(slots=True)
class Calls:
    """All calls of one module or function.

    Attributes:
        weakly: returns the module or function while it is alive.
        held: the same, if it must stay alive for a search.
        others: calls that were only counted and timed.
        is_open: whether the calls of its parts are recorded in place of its own.
    """

    name: str
    qualname: str
    weakly: Callable[[], Any]
    held: Any = None
    parameters: int = 0
    kinds: dict[Key, Kind] = field(default_factory=dict)
    others: int = 0
    others_s: float = 0.0
    unlike: int = 0
    is_open: bool = False
    looked_s: float = 0.0
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def live(self) -> Any:
        """The module or function, or None if it is gone."""
        return self.weakly()

    @property
    def calls(self) -> int:
        """The number of all calls."""
        return sum(kind.calls for kind in self.kinds.values()) + self.others

    @property
    def timed_s(self) -> float:
        """Wall-clock time of all calls, which on a GPU may only be that of their launch."""
        return sum(kind.seconds for kind in self.kinds.values()) + self.others_s

    def count_of(self, kind: Kind) -> float:
        """Return the number of calls of a kind, those that were only counted in proportion."""
        looked = sum(each.calls for each in self.kinds.values())
        return kind.calls * self.calls / looked if looked else 0.0

    def seconds_of(self, kind: Kind) -> float:
        """Return the time of all calls of a kind, those that were only counted in proportion."""
        return kind.average_s() * self.count_of(kind)

    @property
    def seconds(self) -> float:
        """The time of all calls, without the first ones' excess."""
        return sum(map(self.seconds_of, self.kinds.values())) if self.kinds else self.timed_s

    def forget(self) -> None:
        """Free the inputs, the events, and the module, if nothing else holds it. The times stay in the record."""
        self.held = None
        for kind in self.kinds.values():
            kind.example, kind.events = None, []

    def to_record(self) -> RecordedModule:
        """Return what was recorded."""
        shapes = [
            RecordedInputs(
                kind.text,
                round(self.count_of(kind)),
                self.seconds_of(kind),
                "training" if kind.mode == "training" else "inference",
                "" if kind.autocast is None else str(kind.autocast).removeprefix("torch."),
                kind.kept,
            )
            for kind in sorted(self.kinds.values(), key=self.seconds_of, reverse=True)
        ]
        kind = "module" if self.parameters >= 0 else "function"
        return RecordedModule(
            self.name,
            kind,  # type: ignore[arg-type]
            self.calls,
            self.seconds,
            max(self.parameters, 0),
            tuple(shapes),
            self.unlike,
            notes=tuple(self.notes),
        )


def merge_calls(several: Sequence[Calls]) -> Calls:
    """Return the calls of several modules as those of the first, for modules that one plan fits."""
    first, *others = several
    if not others:
        return first
    merged = replace(first, kinds={key: replace(kind, events=[*kind.events]) for key, kind in first.kinds.items()})
    for one in others:
        merged.others, merged.others_s = merged.others + one.others, merged.others_s + one.others_s
        merged.unlike += one.unlike
        for key, kind in one.kinds.items():
            into = merged.kinds.setdefault(key, replace(kind, calls=0, seconds=0.0, events=[]))
            into.calls, into.seconds = into.calls + kind.calls, into.seconds + kind.seconds
            into.events += kind.events
            into.example = into.example or kind.example
    return merged


def device_type_of(thing: Any) -> str:
    """Return "cuda" if the first parameter of a module is there, or for a function if there is a GPU, else "cpu"."""
    device = device_of_parameters(thing)
    if device is not None:
        return device.type
    return "cuda" if torch.cuda.is_initialized() else "cpu"


def device_of_parameters(thing: Any) -> torch.device | None:
    """Return the device of the first parameter of a module, or None if it has none, as a function."""
    first = next(thing.parameters(), None) if isinstance(thing, torch.nn.Module) else None
    if first is None:
        return None
    with NO_FUNCTIONS.get()():  # a mode of the program would see that it is read
        return first.device


def is_capturing() -> bool:
    """Return whether what this thread does on a GPU becomes part of a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def record_event(thing: Any) -> Any:
    """Record an event on the GPU of a module or function, or return None without one, or while a graph is captured."""
    if not torch.cuda.is_initialized() or is_capturing() or device_type_of(thing) != "cuda":
        return None
    try:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device_of_parameters(thing)))  # which may not be that of the program
    except RuntimeError:  # the GPU failed: its error is the program's to meet
        return None
    return event
