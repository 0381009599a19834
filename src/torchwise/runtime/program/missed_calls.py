"""Keep the calls that no plan was verified on from one run of a program to the next search."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from torchwise.compile import signature_of
from torchwise.errors import InputError, StorageError
from torchwise.records import Decision
from torchwise.records.missed_calls import MissedKind
from torchwise.runtime.call_guard import VerifiedInputs
from torchwise.runtime.program.calls import Calls, Kind
from torchwise.runtime.program.missed_files import Key, Missed, Stored, StoredCalls, path_of, read_missed, write_missed
from torchwise.runtime.program.missed_recorder import MissedCallRecorder
from torchwise.runtime.program.recorder import MAX_KINDS, tensors_of
from torchwise.workload import Example
from torchwise.workload.identity import describe_example
from torchwise.workload.input_spec import parse_inputs
from torchwise.workload.plain_inputs import to_plain
from torchwise.workload.stand_in import read_statistics, with_values

logger = logging.getLogger("torchwise")

MAX_WAIT_S = 10.0
"""Seconds to wait for another run of the program that writes its calls."""


@dataclass(frozen=True)
class PlacedPlans:
    """The plans that stood in front of the modules of one structure in a run."""

    name: str
    decision: Decision
    others: Decision | None

    @property
    def key(self) -> Key:
        """The key that tells the modules from others."""
        return self.name, self.decision.structure

    def cover(self, form: str) -> bool:
        """Whether one of the plans was verified on inputs of such a form."""
        spec = parse_inputs(form)
        plans = [self.decision, *([self.others] if self.others is not None else [])]
        return any(VerifiedInputs(one.inputs, dynamic=one.plan.shapes == "dynamic").cover(spec) for one in plans)


def list_missed(recorder: MissedCallRecorder) -> Stored:
    """Return the calls of this run, and free the recorder's own."""
    found: Stored = {}
    for key, calls in recorder.modules.items():
        kinds = [_to_missed(calls, kind) for kind in sorted(calls.kinds.values(), key=calls.seconds_of, reverse=True)]
        if calls.calls:
            found[key] = StoredCalls(1, kinds, calls.unlike)
    return found


def _to_missed(calls: Calls, kind: Kind) -> Missed:
    example, kept = kind.example, kind.kept
    try:
        to_plain(example) if example is not None else None
    except InputError:  # the calls are counted all the same
        example, kept = None, "none"
    form = kind.text if kind.example is None else describe_example(kind.example)
    autocast = "" if kind.autocast is None else str(kind.autocast).removeprefix("torch.")
    counted, seconds = calls.count_of(kind), calls.seconds_of(kind)
    told = MissedKind(kind.text, form, counted, seconds, 1, kind.mode, kind.training, autocast, kept)
    return Missed(told, example)


def add_run(program: str, store: str | None, run: Stored, placed: Iterable[PlacedPlans]) -> None:
    """Add the calls of a run to those of the runs before.

    Raises:
        StorageError: the file cannot be written or read, or another run holds it.
    """
    from filelock import FileLock, Timeout

    file, placed = path_of(program, store), [*placed]
    if not run and not (placed and file.exists()):
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(f"{file}.lock", timeout=MAX_WAIT_S, mode=0o600):
            try:
                stored = read_missed(program, store)
            except StorageError:  # which is an InputError, too: another run may read it
                raise
            except InputError as error:  # nothing can be read from it, now or later
                logger.warning("torchwise: %s; it is replaced", error)
                stored = {}
            merge_run(stored, run, placed)
            write_missed(program, store, stored)
    except Timeout:
        raise StorageError(f"{file} is in use by another run since {MAX_WAIT_S:.0f} s") from None
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error.strerror or error}") from None


def merge_run(stored: Stored, run: Stored, placed: Iterable[PlacedPlans]) -> None:
    """Add the calls of a run. A kind that the plans answer by now has no such calls, and keeps its number of runs."""
    plans = {one.key: one for one in placed}
    for key in plans.keys() | run.keys():
        if key not in stored and key not in run:
            continue
        before = stored.setdefault(key, StoredCalls())
        before.runs += 1
        known = {missed.kind.identity: missed for missed in before.kinds}
        for missed in before.kinds:
            if key not in plans or not plans[key].cover(missed.kind.form):
                missed.kind = replace(missed.kind, runs=missed.kind.runs + 1)
        for new in run.get(key, StoredCalls()).kinds:
            _add(before, known.get(new.kind.identity), new)
        before.others += run[key].others if key in run else 0
        before.kinds.sort(key=lambda missed: missed.kind.seconds, reverse=True)
        before.others += round(sum(missed.kind.calls for missed in before.kinds[MAX_KINDS:]))
        del before.kinds[MAX_KINDS:]


def _add(before: StoredCalls, same: Missed | None, new: Missed) -> None:
    if same is None:
        before.kinds.append(Missed(replace(new.kind, runs=before.runs), new.example))
        return
    kept = new.kind.kept if same.example is None else same.kind.kept
    calls, seconds = same.kind.calls + new.kind.calls, same.kind.seconds + new.kind.seconds
    same.kind = replace(same.kind, calls=calls, seconds=seconds, kept=kept)
    same.example = same.example or new.example


def add_missed(calls: Calls, stored: StoredCalls | None) -> tuple[Calls, str]:
    """Return the calls of a recorded module with those that earlier runs by plans missed, and a note about these.

    A kind that the recording has, too, counts as often as there. Each other one counts as often as in a mean run. Kinds
    on a device that no recorded input lies on are left out.
    """
    recorded = [kind.example for kind in calls.kinds.values() if kind.example is not None]
    devices = set().union(*map(_devices_of, recorded))
    found = [missed for missed in stored.kinds if missed.example is not None] if stored is not None else []
    # The program may run on another device by now.
    usable = [missed for missed in found if missed.example is not None and _devices_of(missed.example) <= devices]
    if not usable:
        return calls, ""
    looked = sum(kind.calls for kind in calls.kinds.values())
    scale = calls.calls / looked if looked else 1.0  # of a recording that looked at some calls alone
    forms = {_identity_of(kind) for kind in calls.kinds.values() if kind.example is not None}
    kinds, total, others, others_s = {**calls.kinds}, 0.0, float(calls.others), calls.others_s
    for missed in usable:
        if missed.kind.identity in forms:
            continue
        kind = _to_kind(missed, scale)
        kinds[kind.key] = kind
        total += missed.kind.calls_per_run
        others += kind.calls * (scale - 1)
        others_s += kind.seconds * (scale - 1)
    if not total:
        return calls, ""
    count = len(kinds) - len(calls.kinds)
    note = f"{count} more kind{'s' * (count != 1)} of calls came in runs by plans, {total:.3g} a run"
    return replace(calls, kinds=kinds, others=round(others), others_s=others_s), f"{note}: they count here, too"


def _devices_of(example: Example) -> set[str]:
    """Return the kinds of devices that inputs lie on, or that the inputs of their stand-ins lay on."""
    return {(read_statistics(tensor) or tensor).device.type for tensor in tensors_of(example)}


def _identity_of(kind: Kind) -> tuple[str, str, bool, str]:
    assert kind.example is not None, "it has one"
    autocast = "" if kind.autocast is None else str(kind.autocast).removeprefix("torch.")
    return describe_example(kind.example), kind.mode, kind.training, autocast


def _to_kind(missed: Missed, scale: float) -> Kind:
    """Return a kind as a recording has it, which looked at one in `scale` calls."""
    told, example = missed.kind, missed.example
    assert example is not None, "only kinds with inputs are tuned for"
    autocast: torch.dtype | None = getattr(torch, told.autocast) if told.autocast else None
    drawn = with_values(example)
    key = (signature_of(drawn.args, dict(drawn.kwargs)), told.mode, told.training, autocast)
    calls = max(round(told.calls_per_run / scale), 1)
    each_s = told.seconds / told.calls if told.calls else 0.0
    return Kind(key, told.inputs, told.mode, autocast, example, told.kept, calls, calls * each_s, each_s)


def rank_kinds(run: Mapping[Key, StoredCalls]) -> Sequence[tuple[str, MissedKind]]:
    """List the kinds of calls of a run with the names of their modules, those with the most seconds first."""
    found = [(name, missed.kind) for (name, _), calls in run.items() for missed in calls.kinds]
    return sorted(found, key=lambda pair: pair[1].seconds, reverse=True)
