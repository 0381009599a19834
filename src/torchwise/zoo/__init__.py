"""The reference workloads, on which Torchwise itself is judged: the family `tutorial`, and those of plug-ins.

`Family` and `Entry` describe them as pure data, and `registry` turns a name into a workload. Programs are built from a
`random_inputs.Request`.
"""

from torchwise.zoo.catalogue import Entry, Family
from torchwise.zoo.registry import list_workloads, load

__all__ = ["Entry", "Family", "list_workloads", "load"]
