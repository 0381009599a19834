"""Compile a program part by part: each part is tuned separately, and uses a plan only if the plan is worth it."""

from torchwise.parts.config import PROFILES, CompileConfig
from torchwise.parts.decorator import compiled, default_manager
from torchwise.parts.manager import CompileManager

__all__ = ["PROFILES", "CompileConfig", "CompileManager", "compiled", "default_manager"]
