"""Searches that verify and time briefly, for tests that ask what comes of them and not how fast it is.

As a program it is `torchwise`, with such searches: `python tests/brief.py tune model.py:make --effort quick`.
"""

from __future__ import annotations

import dataclasses

from torchwise.plan.effort import EFFORTS

BRIEF = dataclasses.replace(EFFORTS["quick"], half_width=0.2, measure_s=0.3, noise_s=0.2, processes=1)

if __name__ == "__main__":
    from torchwise.cli import main

    EFFORTS["quick"] = BRIEF
    main()
