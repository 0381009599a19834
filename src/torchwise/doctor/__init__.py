"""Find problems with running, tuning or timing on this machine, and give advice.

`system_info` inspects the machine once. Each file of `checks/` judges these facts, and inspects nothing itself. Nothing
here imports torch or uses a GPU. A child process does, so that the doctor works even if torch cannot be imported.
"""

from torchwise.doctor.diagnosis import diagnose, judge
from torchwise.doctor.finding import Finding, Status
from torchwise.doctor.system_info import SystemInfo, gather

__all__ = ["Finding", "Status", "SystemInfo", "diagnose", "gather", "judge"]
