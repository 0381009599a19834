"""Searches that verify and time briefly, for tests that ask what comes of them and not how fast it is.

As a program it is `torchwise`, with such searches: `python tests/brief.py tune model.py:make --effort quick`.
"""

from __future__ import annotations

import dataclasses

from torchwise.plan.effort import EFFORTS, EffortProfile


def make_brief(profile: EffortProfile) -> EffortProfile:
    """Return the profile of an effort with as many trials, each of which is brief."""
    return dataclasses.replace(profile, half_width=0.2, measure_s=0.3, noise_s=0.2, processes=1)


BRIEF = make_brief(EFFORTS["quick"])

if __name__ == "__main__":
    from torchwise.cli import main

    EFFORTS.update({name: make_brief(profile) for name, profile in EFFORTS.items()})
    main()
