"""How much a search may spend, and how carefully each candidate is tried: one profile for each effort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchwise.errors import InputError, did_you_mean
from torchwise.parsing import short_repr

EffortName = Literal["quick", "standard", "thorough"]


@dataclass(frozen=True, slots=True)
class EffortProfile:
    """The limits of one effort. The defaults are those of "standard".

    Attributes:
        search_s: seconds of search after which no further trial starts. It ends sooner when nothing more can pay.
        trial_s: seconds after which one candidate is ended. The longest compile among the reference workloads took
            238 s.
        max_trials: trials after which a search ends. Those of another number of threads alone, or of a compiler much
            quicker than Inductor, do not count: they must not take the place of a plan that takes longer.
        half_width: relative half-width of the speed-up's interval at which measuring stops.
        measure_s: seconds of measuring after which it stops anyhow.
        extra_draws: inputs to verify on, beyond the examples.
        noise_s: seconds for the calls of the distribution tests.
        reproduce_noise: whether a stochastic candidate is compiled once more with eager's own random numbers.
        duels: at most how many times two plans are timed against each other, if trials do not show which is faster.
        processes: in at most how many fresh processes a plan is timed, if the decision depends on its speed.
        rounds: how many times candidate and eager are timed in one process, or None until the interval is tight.
    """

    search_s: float = 900.0
    trial_s: float = 600.0
    max_trials: int = 20
    half_width: float = 0.02
    measure_s: float = 5.0
    extra_draws: int = 2
    noise_s: float = 5.0
    reproduce_noise: bool = True
    duels: int = 3
    processes: int = 5
    rounds: int | None = None


EFFORTS: dict[str, EffortProfile] = {
    "quick": EffortProfile(
        search_s=120.0,
        trial_s=120.0,
        max_trials=4,
        half_width=0.05,
        measure_s=2.0,
        extra_draws=1,
        noise_s=2.0,
        reproduce_noise=False,
        duels=1,
        processes=3,
    ),
    "standard": EffortProfile(),
    "thorough": EffortProfile(
        search_s=7200.0,
        trial_s=1800.0,
        max_trials=64,
        half_width=0.01,
        measure_s=15.0,
        extra_draws=4,
        noise_s=10.0,
        duels=5,
        processes=7,
    ),
}
"""The profiles by name, the quickest first."""
MOST = "thorough"


def check_effort(effort: object) -> None:
    """Refuse what is no effort with an `InputError` that gives the value and the efforts."""
    if not isinstance(effort, str) or effort not in EFFORTS:
        near = did_you_mean(effort, EFFORTS) if isinstance(effort, str) else ""
        raise InputError(f"effort is {short_repr(effort)}, but must be one of {', '.join(EFFORTS)}{near}")


def rank_effort(effort: str) -> int:
    """Return the place of an effort among all, that which spends least first."""
    return list(EFFORTS).index(effort)


def is_at_least(effort: str, other: str) -> bool:
    """Return whether an effort spends as much as another, or more."""
    return rank_effort(effort) >= rank_effort(other)
