"""Count the calls of a served plan by their result, and log those that the original answers."""

from __future__ import annotations

import logging
import math
import time
from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from torchwise._torch.dynamo import count_compiled_graphs
from torchwise.alerts import alert
from torchwise.compile.cuda_graphs.compile_freeze import count_captured_graphs
from torchwise.compile.recompiles import RecompileLimitError
from torchwise.records import Decision
from torchwise.records.format import seconds
from torchwise.records.shown import Shown
from torchwise.runtime.fallback_reason import Fallback, FallbackReason

logger = logging.getLogger("torchwise")

MIN_CALLS, MIN_SLOW_CALLS, MIN_STEPS = 1000, 20, 20
"""Calls before anything is said of the share that the original answers: the first ones of a program are odd.

Slow calls need not be as many (`MIN_S`), nor training steps, which repeat each other.
"""
MIN_S = 10.0
"""Seconds since the first call that the original answered, from which calls count as slow."""
MAX_FALLBACKS = 0.05
MAX_SENTENCES = 10
"""Sentences that are logged for one reason. Details may differ from call to call, and would fill the log."""

EAGER_DECISION = Fallback(FallbackReason.EAGER_DECISION)
BOUNDS_S = tuple(float(f"{digit}e{power}") for power in range(-6, 2) for digit in (1, 2, 5))
"""Upper bounds of the histogram's buckets in seconds, 1 microsecond to 50 seconds. Longer durations have a bucket, too.
"""
MAX_ERROR_TYPES = 20
"""Types of error that are counted apart. Further ones count as `OTHER`, so that metrics stay bounded."""
OTHER = "other"
MAX_LATENCIES = 10_000
"""Requests whose latency is kept, the latest ones."""


class Histogram:
    """Counts of durations by bucket.

    Attributes:
        counts: one for each of `BOUNDS_S`, and one for longer durations.
        sum_s: the sum of all durations.
    """

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def quantile(self, share: float) -> float | None:
        """Return the upper bound of the bucket that this share of the durations reaches, or None without durations.

        The largest bound stands for all longer durations.
        """
        total, cumulated = sum(self.counts), 0
        for count, bound in zip(self.counts, (*BOUNDS_S, BOUNDS_S[-1]), strict=True):
            cumulated += count
            if total and cumulated >= share * total:
                return bound
        return None


@dataclass(slots=True)
class Statistics(Shown):
    """The counts of the calls so far.

    Counts are exact for calls that follow one another. Calls of several threads at once may be missed now and then, as
    a lock on every call would cost more than the counts are worth.

    Attributes:
        optimized: calls that the plan answered.
        reasons: calls that the original answered, by reason, without those that `stayed`.
        latest: the latest fallback for each reason, with its details.
        stayed: calls that the original answered because the decision is to stay with eager. It is a plain number, as
            next to nothing may stand before a call that a plan does not make faster (`benchmarks/dispatch.py`).
        failures: failures of the plan, by the type of the error, or `OTHER` after `MAX_ERROR_TYPES` types. The original
            answered those calls.
        unverified: calls on inputs that the plan was not verified on, by how those differ, or `OTHER` after some kinds.
        opened: number of times that failures kept the plan from answering, for a time or for good.
        compared: calls that were also answered by the original, to compare.
        mismatched: those of them in which the answers differed.
        recompiles: calls that the plan had answered before and that compiled or captured something again, as something
            other than the inputs varied.
        first_calls: calls of a new kind, which compiled or captured something.
        first_calls_s: the seconds that these took.
        later_compiles: pieces of code that were compiled in other calls than these. A value or size inside a call
            varied, or a branch was taken for the first time.
        later_compiles_s: the seconds of these compilations.
        latency: durations of a sample of the plan's calls. On a GPU, durations of the work there.
        at_freeze: numbers of graphs compiled and captured in this process when the plan was frozen, or None if it is
            not.
    """

    optimized: int = 0
    reasons: Counter[FallbackReason] = field(default_factory=Counter)
    latest: dict[FallbackReason, Fallback] = field(default_factory=dict)
    stayed: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    unverified: Counter[str] = field(default_factory=Counter)
    opened: int = 0
    compared: int = 0
    mismatched: int = 0
    recompiles: int = 0
    first_calls: int = 0
    first_calls_s: float = 0.0
    later_compiles: int = 0
    later_compiles_s: float = 0.0
    latency: Histogram = field(default_factory=Histogram)
    at_freeze: tuple[int, int] | None = None

    def __repr__(self) -> str:
        failed = f", {sum(self.failures.values())} failures" if self.failures else ""
        return f"<Statistics: {self.optimized} calls by the plan, {sum(self.original.values())} as written{failed}>"

    def __setstate__(self, state: tuple[None, dict[str, Any]]) -> None:
        """Read a pickle. One of an earlier version lacks some counts."""
        self.__init__()  # type: ignore[misc]
        for name, value in state[1].items():
            setattr(self, name, value)

    @property
    def original(self) -> Counter[FallbackReason]:
        """Calls that the original answered, by reason."""
        found = self.reasons.copy()  # at once, while other threads count
        if self.stayed:
            found[FallbackReason.EAGER_DECISION] += self.stayed
        return found

    @property
    def sentences(self) -> dict[FallbackReason, str]:
        """The latest sentence for each reason in `original`, with names and figures."""
        latest = self.latest.copy()  # at once, as above
        if self.stayed:
            latest[FallbackReason.EAGER_DECISION] = EAGER_DECISION
        return {reason: str(fallback) for reason, fallback in latest.items()}

    @property
    def calls(self) -> int:
        """All calls so far."""
        return self.optimized + self.stayed + sum(self.reasons.values())

    @property
    def missed(self) -> dict[FallbackReason, int]:
        """Calls that the original answered although a plan was to, by reason."""
        return {reason: times for reason, times in self.reasons.copy().items() if not reason.is_choice}

    @property
    def fallback_rate(self) -> float:
        """The share of all calls that the original answered in place of a plan, 0 to 1, and 0 before the first call.

        Calls that no plan was to answer are no fallbacks (`FallbackReason.is_choice`).
        """
        missed = self.missed
        return sum(missed.values()) / self.calls if missed else 0.0

    @property
    def compiles(self) -> int | None:
        """Graphs that PyTorch compiled in this process since the freeze, for any purpose, or None if not frozen."""
        return count_compiled_graphs() - self.at_freeze[0] if self.at_freeze else None

    @property
    def captures(self) -> int | None:
        """CUDA graphs recorded in this process since the freeze, for any purpose, or None if not frozen."""
        return count_captured_graphs() - self.at_freeze[1] if self.at_freeze else None

    def count(self, fallback: Fallback) -> None:
        """Count a call that the original answered."""
        if fallback.reason is FallbackReason.EAGER_DECISION:
            self.stayed += 1
            return
        self.reasons[fallback.reason] += 1
        self.latest[fallback.reason] = fallback

    def count_failure(self, error: BaseException) -> None:
        """Count a failure of the plan by the type of its error."""
        add_bounded(self.failures, type(error).__name__)

    def freeze(self) -> None:
        """Count compilations and captures from now on, unless they are counted already."""
        self.at_freeze = self.at_freeze or (count_compiled_graphs(), count_captured_graphs())

    def unfreeze(self) -> None:
        """Count no compilations and captures any more."""
        self.at_freeze = None

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as plain data, to be logged or sent."""
        return {
            "calls": self.calls,
            "optimized": self.optimized,
            "original": {reason.value: times for reason, times in self.original.items()},
            "original_sentences": {reason.value: sentence for reason, sentence in self.sentences.items()},
            "fallback_rate": self.fallback_rate,
            "failures": dict(self.failures),
            "unverified": dict(self.unverified),
            "opened": self.opened,
            "compared": self.compared,
            "mismatched": self.mismatched,
            "recompiles": self.recompiles,
            "first_calls": self.first_calls,
            "first_calls_s": self.first_calls_s,
            "later_compiles": self.later_compiles,
            "later_compiles_s": self.later_compiles_s,
            "compiles_since_freeze": self.compiles,
            "captures_since_freeze": self.captures,
            "latency": {
                "calls": sum(self.latency.counts),
                "p50_s": self.latency.quantile(0.5),
                "p99_s": self.latency.quantile(0.99),
            },
        }


@dataclass(slots=True)
class Counts(Shown):
    """Calls by size and bucket so far. Counts are exact for sequential calls, as in `Statistics`.

    Attributes:
        calls: calls by bucket.
        sizes: calls by size. Sizes beyond the largest bucket are rounded up to a power of two, so that the counts stay
            small.
        beyond: calls beyond the largest bucket, which the original answers.
        padding: total padding, in units of the size.
        computed: total computed size of the calls, with padding, in the same units.
        compiles: graphs that PyTorch compiled in this process since the freeze, or None before it.
        captures: CUDA graphs that were recorded in this process since the freeze, or None before it.
        first_calls: calls that compiled or captured something since the freeze, or None before it.
    """

    calls: Counter[int] = field(default_factory=Counter)
    sizes: Counter[int] = field(default_factory=Counter)
    beyond: int = 0
    padding: int = 0
    computed: int = 0
    compiles: int | None = None
    captures: int | None = None
    first_calls: int | None = None

    def __repr__(self) -> str:
        return f"<Counts: {sum(self.calls.values())} calls in {len(self.calls)} buckets, {self.beyond} beyond them>"

    @property
    def padded_share(self) -> float:
        """The padded share of the computed sizes, 0 to 1, or 0 before the first call."""
        return self.padding / self.computed if self.computed else 0.0

    def snapshot(self) -> dict[str, Any]:
        """Return the counts as plain data, for logging or sending."""
        return {
            "calls_by_bucket": dict(self.calls),
            "beyond": self.beyond,
            "padded_share": self.padded_share,
            "compiles_since_freeze": self.compiles,
            "captures_since_freeze": self.captures,
            "first_calls_since_freeze": self.first_calls,
        }


def add_bounded(counts: Counter[str], name: str) -> None:
    """Count a name, or `OTHER` if there are `MAX_ERROR_TYPES` names already."""
    counts[name if name in counts or len(counts) < MAX_ERROR_TYPES else OTHER] += 1


class Fallbacks:
    """Counts the calls that a decision's plan was to answer, and logs their reasons."""

    def __init__(self, decision: Decision, happens: str, min_calls: int = MIN_CALLS) -> None:
        self._decision, self._happens, self._min_calls = decision, happens, min_calls
        self._is_alarmed = decision.plan.is_eager
        self._calls_before = 0
        self._missed_before: dict[FallbackReason, int] = {}
        self._since: float | None = None  # the first call that is counted here
        self._said: dict[FallbackReason, set[str]] = {}  # details by reason

    def begin(self, statistics: Statistics) -> None:
        """Leave out the calls so far: another plan was to answer them."""
        self._calls_before, self._missed_before = statistics.calls, statistics.missed

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
        statistics.count(fallback)
        if not self.is_said(fallback):
            self.note_said(fallback)
            level = logging.INFO if self._decision.plan.is_eager else logging.WARNING
            logger.log(level, "torchwise: %s, because %s", self._happens, fallback)
        if not self._is_alarmed:
            self._check_rate(statistics)

    def are_too_many(self, times: int, statistics: Statistics) -> bool:
        """Whether so many calls are too large a share of those that the plan was to answer. Few calls say nothing."""
        now, calls = time.monotonic(), statistics.calls - self._calls_before
        self._since = now if self._since is None else self._since
        are_enough = calls >= self._min_calls or (calls >= MIN_SLOW_CALLS and now - self._since >= MIN_S)
        return are_enough and times > MAX_FALLBACKS * calls

    def tell_limit(self, error: RecompileLimitError, statistics: Statistics, ending: str = "") -> Fallback:
        """Raise an alert that the plan was compiled again too often, once for each place that varies."""
        fallback = Fallback(FallbackReason.RECOMPILE_LIMIT, error.reason)
        if not self.is_said(fallback):
            self.note_said(fallback)
            self.alert_limit(error, statistics, ending)
        return fallback

    def alert_limit(self, error: RecompileLimitError, statistics: Statistics, ending: str = "") -> None:
        """Raise the alert that the plan was compiled again too often."""
        plan, reason = str(self._decision.plan), FallbackReason.RECOMPILE_LIMIT.value
        facts: dict[str, Any] = {"reason": reason, "sentence": error.reason, "recompiles": statistics.recompiles}
        alert("recompile_limit", f"plan {plan}: {error}{ending}", plan=plan, **facts)

    def _check_rate(self, statistics: Statistics) -> None:
        missed = {reason: n - self._missed_before.get(reason, 0) for reason, n in statistics.missed.items()}
        if not self.are_too_many(sum(missed.values()), statistics):
            return
        self._is_alarmed = True
        calls, (reason, times) = statistics.calls - self._calls_before, max(missed.items(), key=lambda item: item[1])
        rate, plan, sentence = sum(missed.values()) / calls, str(self._decision.plan), statistics.sentences[reason]
        message = f"{rate:.0%} of {calls:,} calls went to the original and not to plan {plan}: {sentence}"
        alert("fallback_rate", message, plan=plan, rate=rate, reason=reason.value, sentence=sentence, times=times)


@dataclass(slots=True)
class BatchStatistics(Shown):
    """The counts of a batching server.

    Attributes:
        requests: requests answered, also by an error.
        samples: their samples.
        batches: calls that answered them.
        padding: samples that were added to fill batches up.
        split: batches that failed, so that their requests were answered one by one.
        failures: requests answered by an error.
        refused: requests refused because too many were waiting.
        latencies_s: seconds from request to answer, of the latest requests.
    """

    requests: int = 0
    samples: int = 0
    batches: int = 0
    padding: int = 0
    split: int = 0
    failures: int = 0
    refused: int = 0
    latencies_s: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_LATENCIES))

    def latency_s(self, share: float = 0.99) -> float | None:
        """Return the seconds within which this share of the latest requests was answered, or None without any."""
        found = sorted(self.latencies_s.copy())
        return found[max(0, math.ceil(share * len(found)) - 1)] if found else None

    def __repr__(self) -> str:
        late = self.latency_s()
        p99 = "" if late is None else f", p99 {seconds(late)}"
        odd = [f"{count} {word}" for word in ("split", "failures", "refused") if (count := getattr(self, word))]
        answered = f"{self.requests} requests in {self.batches} batches"
        return f"<BatchStatistics: {', '.join([answered, *odd])}{p99}>"
