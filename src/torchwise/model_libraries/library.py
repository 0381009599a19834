"""Import model libraries on first use, with helpful errors if they are missing."""

from __future__ import annotations

import importlib
from typing import Any

from torchwise.errors import TargetError

REMEDY = "pip install 'torchwise[models]'"


def library(name: str, target: str) -> Any:
    """Import the module `name`, which `target` needs.

    Raises:
        TargetError: the module is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise TargetError(f"{target} needs {error.name}, which is not installed: {REMEDY}") from error
    except Exception as error:  # a build for another torch may raise any error, such as a RuntimeError
        raise TargetError(
            f"{target} needs {name}, which is installed but cannot be imported ({type(error).__name__}: {error}): "
            f"install the builds of {name} and torchvision that fit the installed torch, as pytorch.org lists them"
        ) from error
