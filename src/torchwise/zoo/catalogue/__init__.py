"""Every reference workload as pure data, one file per family, so that a list of them costs no torch.

To add one: an entry in the file of its family, and `build_<operation>` in the family's code, with these keywords.
"""

from __future__ import annotations

from torchwise.zoo.catalogue import arr_coc, energy_flow, ivhl, spinlock, training, tutorial
from torchwise.zoo.entry import Entry

CATALOGUE: tuple[Entry, ...] = (
    *energy_flow.ENTRIES,
    *ivhl.ENTRIES,
    *spinlock.ENTRIES,
    *arr_coc.ENTRIES,
    *tutorial.ENTRIES,
    *training.ENTRIES,
)
"""The reference workloads, in the order in which they are shown."""
