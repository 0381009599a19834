"""Find problems with running, tuning or timing on this machine, and give advice.

`facts` inspects the machine once. Each file of `checks/` judges the facts, without inspecting anything itself. Nothing
here imports torch or touches a GPU. A child process does, so that there is an answer even if torch cannot be imported.
"""

from torchwise.doctor.diagnosis import diagnose, judge
from torchwise.doctor.finding import Finding, Status
from torchwise.doctor.system_info import Facts, gather

__all__ = ["Facts", "Finding", "Status", "diagnose", "gather", "judge"]
