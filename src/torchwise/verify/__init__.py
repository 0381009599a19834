"""Whether a candidate gives the right answer, by a float64 reference and eager's own error as the noise floor.

Programs call the package itself: `torchwise.verify(reference, candidate, inputs)` is `torchwise.diagnose.pair.verify`.
"""

import importlib
import sys
from types import ModuleType
from typing import Any

from torchwise.verify.independence import verify_samples
from torchwise.verify.noise_floor import Sensitivity
from torchwise.verify.observe import Observation, observation_of, state_leaves
from torchwise.verify.spot_check import mismatch
from torchwise.verify.step import StepSubject, verify_step
from torchwise.verify.stochastic import is_stochastic
from torchwise.verify.verify import Subject, verify

__all__ = [
    "Observation",
    "Sensitivity",
    "StepSubject",
    "Subject",
    "is_stochastic",
    "mismatch",
    "observation_of",
    "state_leaves",
    "verify",
    "verify_samples",
    "verify_step",
]


class _CallablePackage(ModuleType):
    """A package by whose name programs call a function of a higher layer, which is imported for the call alone."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Prove that a candidate may take the place of a reference: see `torchwise.diagnose.pair.verify`."""
        return importlib.import_module("torchwise.diagnose.pair").verify(*args, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage
