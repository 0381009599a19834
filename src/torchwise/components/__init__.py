"""Compile a program by components: each is tuned separately, and uses a plan only if the plan is surely faster."""

from torchwise.components.config import PROFILES, CompileConfig
from torchwise.components.decorator import compiled, default_manager
from torchwise.components.manager import CompileManager

__all__ = ["PROFILES", "CompileConfig", "CompileManager", "compiled", "default_manager"]
