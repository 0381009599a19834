"""What keeps this machine from running, tuning or timing well, and what to do about it.

`facts` looks, once; each file of `checks/` judges what was seen, without looking itself. Nothing here imports torch
or touches a GPU: a child process does, so that there is an answer even where torch cannot be imported.
"""

from torchwise.doctor.diagnosis import diagnose, judge
from torchwise.doctor.facts import Facts, gather
from torchwise.doctor.finding import Finding, Status

__all__ = ["Facts", "Finding", "Status", "diagnose", "gather", "judge"]
