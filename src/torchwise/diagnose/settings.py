"""Settings of PyTorch as they are printed, held for a while."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator


@contextlib.contextmanager
def patched(setting: str) -> Iterator[None]:
    """Hold a setting of PyTorch, written as "torch._dynamo.config.capture_scalar_outputs = True".

    Raises:
        ValueError: it is not written so.
    """
    name, _, value = setting.partition("=")
    module, _, attribute = name.strip().rpartition(".")
    if not module.startswith("torch.") or not module.endswith("config") or value.strip() not in ("True", "False"):
        raise ValueError(f"setting is {setting!r}, but must be such as torch._dynamo.config.name = True")
    with importlib.import_module(module).patch({attribute: value.strip() == "True"}):
        yield
