"""A name that PyTorch does not promise to keep, and the error for a version that lacks it."""

from __future__ import annotations

import importlib
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

from torchwise.errors import UnsupportedError


class PrivateName(NamedTuple):
    """A private name of PyTorch.

    Attributes:
        module: the module that holds it, such as "torch._dynamo.pgo".
        attribute: its name there, or `Class.member`.
    """

    module: str
    attribute: str

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}"

    def get(self, feature: str = "Torchwise") -> Any:
        """Return the object with this name.

        Args:
            feature: what needs it, for the error.

        Raises:
            UnsupportedError: this version has no such name.
        """
        try:
            module = importlib.import_module(self.module)
            if "." not in self.attribute and not hasattr(module, self.attribute):  # a module that is not imported yet
                return importlib.import_module(f"{self.module}.{self.attribute}")
            return operator.attrgetter(self.attribute)(module)
        except (ImportError, AttributeError) as error:
            import torch

            raise UnsupportedError(f"{feature} needs {self}, which torch {torch.__version__} does not have") from error


def check(feature: str, names: Iterable[PrivateName]) -> None:
    """Look every name up, before Dynamo is between a feature and its user.

    Raises:
        UnsupportedError: this version lacks one.
    """
    for name in names:
        name.get(feature)
