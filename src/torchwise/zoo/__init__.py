"""The reference workloads: real programs from five fields, on which Torchwise itself is judged.

One file per family holds the programs. `catalogue` lists them as pure data, and `registry` turns a name into a
workload.
"""

from torchwise.zoo.entry import Entry
from torchwise.zoo.registry import list_workloads, load

__all__ = ["Entry", "list_workloads", "load"]
