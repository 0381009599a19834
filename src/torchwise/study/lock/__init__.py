"""The lock file of a team: the plan of each target on each kind of hardware, to review like code and to check in CI.

Reading it needs neither torch nor a store. `check`, which starts workers, is not loaded here.
"""

from torchwise.study.lock.entry import Entry
from torchwise.study.lock.file import DEFAULT, Lock, decision, read, write

__all__ = ["DEFAULT", "Entry", "Lock", "decision", "read", "write"]
