"""Run a study's trials on a node of a Ray cluster, and many studies side by side.

Ray is imported on first use only (the extra `ray`).
"""

from torchwise.study.cluster.launcher import RayLauncher
from torchwise.study.cluster.manifest import Manifest, Task, read_manifest
from torchwise.study.cluster.sweep import Slot, SweepResult, run_sweep

__all__ = ["Manifest", "RayLauncher", "Slot", "SweepResult", "Task", "read_manifest", "run_sweep"]
