"""Whether a candidate gives the right answer, by a float64 reference and eager's own error as the noise floor."""

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
