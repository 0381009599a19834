"""Compile a program by components: each is tuned separately, and uses a plan only if the plan is surely faster.

Its names are loaded on first use, so that settings are read without torch.
"""

from typing import TYPE_CHECKING

from torchwise.former_packages import load_attributes

if TYPE_CHECKING:
    from torchwise.runtime.components.config import PROFILES, CompileConfig
    from torchwise.runtime.components.manager import CompileManager, compiled, default_manager

__all__ = ["PROFILES", "CompileConfig", "CompileManager", "compiled", "default_manager"]

__getattr__ = load_attributes(
    __name__,
    {
        "PROFILES": "config",
        "CompileConfig": "config",
        "CompileManager": "manager",
        "compiled": "manager",
        "default_manager": "manager",
    },
)
