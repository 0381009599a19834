"""Count calls that the original answers in place of a plan, log each reason once, and raise an alert if too many."""

from __future__ import annotations

import logging

from torchwise.alerts import alert
from torchwise.records import Decision
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.statistics import Statistics

logger = logging.getLogger("torchwise")

MIN_CALLS = 1000
"""Calls before anything is said of the share that the original answers: the first ones of a program are odd."""
MAX_FALLBACKS = 0.05
MAX_SENTENCES = 10
"""Sentences that are logged for one reason. Details may differ from call to call, and would fill the log."""


class Fallbacks:
    """Counts such calls and logs their reasons.

    Args:
        decision: the decision whose plan was to answer.
        happens: the beginning of the message, such as "the original answers".
    """

    def __init__(self, decision: Decision, happens: str) -> None:
        self._decision, self._happens = decision, happens
        self._is_alarmed = decision.plan.is_eager
        self._said: dict[FallbackReason, set[str]] = {}  # details by reason

    def is_said(self, fallback: Fallback) -> bool:
        """Whether its sentence was logged, needs no logging, or is one too many for its reason."""
        details = self._said.get(fallback.reason)
        return details is not None and (fallback.detail in details or len(details) >= MAX_SENTENCES)

    def note_said(self, fallback: Fallback) -> None:
        """Note that a sentence was logged, or needs no logging."""
        if not self.is_said(fallback):
            self._said.setdefault(fallback.reason, set()).add(fallback.detail)

    def count(self, fallback: Fallback, statistics: Statistics) -> None:
        """Count one more call, and log its sentence if it is new."""
        if fallback.reason is FallbackReason.EAGER_DECISION:
            statistics.stayed += 1
        else:
            statistics.count(fallback)
        if not self.is_said(fallback):
            self.note_said(fallback)
            level = logging.INFO if self._decision.plan.is_eager else logging.WARNING
            logger.log(level, "torchwise: %s, because %s", self._happens, fallback)
        if not self._is_alarmed and statistics.calls >= MIN_CALLS:
            self._check_rate(statistics)

    def _check_rate(self, statistics: Statistics) -> None:
        if (rate := statistics.fallback_rate) > MAX_FALLBACKS:
            self._is_alarmed = True
            [(reason, times)] = statistics.original.most_common(1)
            plan, sentence = str(self._decision.plan), statistics.sentences[reason]
            message = (
                f"{rate:.0%} of {statistics.calls:,} calls went to the original and not to plan {plan}: {sentence}"
            )
            alert("fallback_rate", message, plan=plan, rate=rate, reason=reason.value, sentence=sentence, times=times)
