"""The libraries that bring the models: imported on first use, and missed in words that say what to do."""

from __future__ import annotations

import importlib
from typing import Any

from torchwise.errors import TargetError

REMEDY = "pip install 'torchwise[models]'"


def library(name: str, target: str) -> Any:
    """Import the module `name`, which `target` is built with.

    Raises:
        TargetError: it is not installed, or is installed and cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TargetError(f"{target} needs {error.name}, which is not installed: {REMEDY}") from error
    except Exception as error:  # a build for another torch fails in ways of its own, such as a RuntimeError
        raise TargetError(
            f"{target} needs {name}, which is installed but cannot be imported ({type(error).__name__}: {error}): "
            f"install the builds of {name} and torchvision that fit the installed torch, as pytorch.org lists them"
        ) from error
