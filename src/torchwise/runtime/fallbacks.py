"""Count calls that the original answers in place of a plan, log each reason once, and raise an alert if too many."""

from __future__ import annotations

import logging

from torchwise.alerts import alert
from torchwise.records import Decision
from torchwise.runtime.statistics import STAYS, Statistics

logger = logging.getLogger("torchwise")

MIN_CALLS = 1000
"""Calls before anything is said of the share that the original answers: the first ones of a program are odd."""
MAX_FALLBACKS = 0.05


class Fallbacks:
    """Counts such calls and logs their reasons.

    Args:
        decision: the decision whose plan was to answer.
        happens: the beginning of the message, such as "the original answers".

    Attributes:
        said: reasons that were logged, or that need no logging.
    """

    def __init__(self, decision: Decision, happens: str) -> None:
        self._decision, self._happens = decision, happens
        self._is_alarmed = decision.plan.is_eager
        self.said: set[str] = set()

    def count(self, reason: str, statistics: Statistics) -> None:
        """Count one more call."""
        if reason == STAYS:
            statistics.stayed += 1
        else:
            statistics.reasons[reason] += 1
        if reason not in self.said:
            self.said.add(reason)
            level = logging.INFO if self._decision.plan.is_eager else logging.WARNING
            logger.log(level, "torchwise: %s, because %s", self._happens, reason)
        if not self._is_alarmed and statistics.calls >= MIN_CALLS:
            self._check_rate(statistics)

    def _check_rate(self, statistics: Statistics) -> None:
        if (rate := statistics.fallback_rate) > MAX_FALLBACKS:
            self._is_alarmed = True
            [(reason, times)] = statistics.original.most_common(1)
            plan = str(self._decision.plan)
            said = f"{rate:.0%} of {statistics.calls:,} calls went to the original and not to plan {plan}: {reason}"
            alert("fallback_rate", said, plan=plan, rate=rate, reason=reason, times=times)
