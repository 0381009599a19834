"""Programs made of parts: each part is tuned by itself, and answers by a plan only where that is worth it."""

from torchwise.parts.config import PROFILES, CompileConfig
from torchwise.parts.decorator import compiled, default_manager
from torchwise.parts.manager import CompileManager

__all__ = ["PROFILES", "CompileConfig", "CompileManager", "compiled", "default_manager"]
