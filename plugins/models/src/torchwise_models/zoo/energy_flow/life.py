"""How flows grow, divide and die, and why rounding never decides it.

A flow carries energy in several modes. Its level is their mean. In a step the level relaxes towards the offer of the
surroundings, 1 for the young and 0 for the mature (energy, lengths and steps are dimensionless):

    level' = 3/4 · level + 1/4 · [age < 5]

It dies if level' < 21/64, or at the age of 7 steps. It divides if its gate opens, which is near level' > 11/16. Parent
and child then take half the energy each. So the young cycle through three levels, 0.366 → 0.525 → 0.644 → (0.733,
divided by 2), and every flow has one child in its life. The number of live flows changes at every step without growing
or shrinking for ever.

The net distributes the energy over the modes. But it moves the level by rounding alone, and the gate by a bounded
amount. Every level that occurs is then at least 0.02 from a threshold. So a float32 and a float64 run take the same
decisions for any number of flows and steps, since the relaxation shrinks deviations too. Without such a gap, two
correct answers would part for good at the first flow that is near a threshold.
"""

from __future__ import annotations

import torch

MODES = 32
"""Modes that a flow's energy is spread over."""
RETENTION = 0.75
"""Part of its energy that a flow keeps in a step. It gives off the rest, and the young take up 1 − RETENTION."""
MATURITY = 5
"""Age in steps from which a flow takes up no energy."""
LIFESPAN = 7
"""Age in steps at which a flow dies."""
FLOOR = 0.328125
"""Level below which a flow dies: 21/64, in the middle of 0.295 and 0.362, between which no level occurs."""
DIVISION = 0.6875
"""Level around which the gate opens: 11/16, in the middle of 0.644 and 0.733."""
_DIVIDED = (1 - RETENTION**3) / (2 - RETENTION**3)
"""Level of the new-born, x = (1 − (1 − x) · RETENTION³) / 2: three steps of growth, then a division."""
CYCLE = (_DIVIDED, 1 - (1 - _DIVIDED) * RETENTION, 1 - (1 - _DIVIDED) * RETENTION**2)
"""The levels of the young, from one division to the next."""


def level_of(energies: torch.Tensor) -> torch.Tensor:
    """Return the level of each flow, (B,), from energies of shape (B, MODES)."""
    return energies.mean(dim=-1)


def survives(energies: torch.Tensor, ages: torch.Tensor) -> torch.Tensor:
    """Say which flows live on, (B,) bool, from their energies (B, MODES) and ages (B,) after the step."""
    return (level_of(energies) >= FLOOR) & (ages < LIFESPAN)
