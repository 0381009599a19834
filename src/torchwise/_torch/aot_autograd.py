"""AOTAutograd: it traces a graph's forward and backward pass to operators before Inductor compiles them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torchwise._torch.private_name import PrivateName

CONFIG = PrivateName("torch._functorch", "config")
CACHE_KEY = PrivateName("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCacheDetails")
"""The fields of which the key of compiled code consists."""
MAKE_FX = PrivateName("torch.fx.experimental.proxy_tensor", "make_fx")
SETTINGS = PrivateName("torch._functorch.config", "_config")
"""Each setting with its default, by name."""
RESULT_MODULE = "torch._functorch._aot_autograd.aot_autograd_result"


def patch_config(**settings: Any) -> AbstractContextManager[None]:
    """Return a context with other settings of `torch._functorch.config`."""
    context: AbstractContextManager[None] = CONFIG.get().patch(**settings)
    return context


def set_config(name: str, value: object) -> None:
    """Change a setting of `torch._functorch.config` for the life of this process."""
    setattr(CONFIG.get(), name, value)
