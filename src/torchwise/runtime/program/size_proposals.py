"""Say of a recording how a search would handle the sizes of each module, before there is a search."""

from __future__ import annotations

import logging
from dataclasses import replace

from torchwise.records.recording import Recording
from torchwise.runtime.program.missed_files import Stored
from torchwise.runtime.program.recorder import CallRecorder
from torchwise.runtime.program.sizes import choose_mix
from torchwise.runtime.program.tuned import TunedModule
from torchwise.runtime.program.tuning import find_reason_against, group_alike, merge_group

logger = logging.getLogger("torchwise")


def propose_sizes(recorder: CallRecorder, recording: Recording, missed: Stored | None = None) -> Recording:
    """Return the recording with a note about each module whose inputs have several sizes.

    `missed` are calls of earlier runs by plans that no plan was verified on. They count beside those of the recording.
    The choice is the one that `torchwise run --tune` makes on the same calls, by the same code. Modules that it would
    not tune have no note.
    """
    records = {record.name: record for record in recording.modules}
    modules = [TunedModule(calls, records[calls.name]) for calls in recorder.ranked() if calls.name in records]
    chosen: list[TunedModule] = []
    for group in group_alike(modules):
        if find_reason_against(group, recording, chosen) is not None:
            continue
        chosen.append(group)
        if text := _propose(group, missed or {}):
            for one in (group, *group.alike):
                record = records[one.record.name]
                records[record.name] = replace(record, notes=(*record.notes, text))
    return replace(recording, modules=tuple(records[record.name] for record in recording.modules))


def _propose(group: TunedModule, missed: Stored) -> str:
    try:
        calls, note = merge_group(group, missed)
        text = choose_mix(calls, None, pads=False).propose()  # a later run by stored plans pads nothing
        return "; ".join(filter(None, (note, text)))
    except Exception as error:  # no inputs were kept, or they are of any kind, and the report can do without this note
        logger.debug("torchwise: no choice of sizes for %s", group.record.name, exc_info=error)
        return ""
