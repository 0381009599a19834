"""Use plans in existing training loops: under `torchrun`, in Lightning, in Hugging Face's Trainer, and others.

Names are loaded on first use, so Lightning and transformers are imported only if they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchwise.former_packages import load_attributes

if TYPE_CHECKING:
    from torchwise.runtime.training.callbacks import lightning_callback, trainer_callback
    from torchwise.runtime.training.distributed import Ranks
    from torchwise.runtime.training.forward import PlannedForward
    from torchwise.runtime.training.step import RankedStep, apply, optimize, tune

_HOMES = {
    "PlannedForward": "forward",
    "RankedStep": "step",
    "Ranks": "distributed",
    "apply": "step",
    "lightning_callback": "callbacks",
    "optimize": "step",
    "trainer_callback": "callbacks",
    "tune": "step",
}

__all__ = [
    "PlannedForward",
    "RankedStep",
    "Ranks",
    "apply",
    "lightning_callback",
    "optimize",
    "trainer_callback",
    "tune",
]

__getattr__ = load_attributes(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
