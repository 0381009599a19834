"""One part of a program: plain until a plan is found for it, and whenever that plan is not worth it or not allowed."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchwise.errors import TorchwiseError
from torchwise.parts.autocast import autocast_of, device_of, under_autocast
from torchwise.parts.config import CompileConfig
from torchwise.parts.disabled import VARIABLE, is_disabled
from torchwise.parts.search import Find, Found, by_evidence, judged
from torchwise.realize.private import look_up
from torchwise.records import Interval
from torchwise.workload import Example, trees

logger = logging.getLogger("torchwise")

FIRST = "it was the first call, with whose inputs a plan is then sought"
BUSY = "a search is going on"
DISABLED = f"{VARIABLE} is set"
SWITCHED_OFF = "it is switched off"
WITHIN = "a part around it runs by a plan, which was proven with this one plain"
UNUSUAL = "somebody records a CUDA graph, or a transform of functions is active: no time to seek a plan"

_transforms: Callable[[], Any] = look_up("a part of a program", ("torch._C._functorch", "peek_interpreter_stack"))
_searching = threading.Lock()
"""One search at a time in a process: two would spoil each other's timings. The original answers meanwhile."""
_here = threading.local()
"""`within` is whether this thread is inside a part that runs by a plan, `first` whether inside a part's first call."""


@dataclass(frozen=True, slots=True)
class PartStatistics:
    """What became of a part, since it was registered or last cleared.

    Attributes:
        plan: the plan it runs by; None where the original answers.
        reason: why, in a sentence.
        optimized: calls that the plan answered.
        original: calls that the original answered, by reason.
        speedup: of what was decided, kept or not; None where there is none.
        compile_s: seconds that calls took by which the plan was compiled or captured in this process.
        search_s: seconds that the search took.
        failures: by the type of the error: failures of the search, and of the plan in calls.
    """

    plan: str | None = None
    reason: str = "no plan was sought yet"
    optimized: int = 0
    original: Mapping[str, int] = field(default_factory=dict)
    speedup: Interval | None = None
    compile_s: float = 0.0
    search_s: float = 0.0
    failures: Mapping[str, int] = field(default_factory=dict)


class Part:
    """Answers the calls of one part of a program.

    The first call is answered by the original, so that an error of its own is the caller's and costs no search. Then a
    plan is sought with its inputs, while the caller waits; other threads are answered by the original meanwhile. What
    is found, or that the search failed, is kept until `clear`.
    """

    def __init__(
        self,
        name: str,
        original: Callable[..., Any],
        config: CompileConfig,
        find: Find = by_evidence,
        examples: Sequence[Example] = (),
        changes: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare.

        Args:
            name: in statistics and logs.
            original: what is tuned, and what answers elsewhere.
            config: what is asked for.
            find: how a plan is found.
            examples: inputs to find one for; by default those of the first call.
            changes: what sets the config apart from the manager's.
        """
        self.name = name
        self.changes = dict(changes or {})
        self.original = original
        self.config = config
        self._find = find
        self._examples = tuple(examples)
        self.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel switched off: a worker must run this part plainly, and a copy is no part of the program."""
        return Part, (self.name, self.original, CompileConfig.of("development", autocast=self.config.autocast))

    def configure(self, config: CompileConfig) -> None:
        """Change what is asked for; what was found in another mode is forgotten."""
        before, self.config = self.config, config
        if before.mode != config.mode:
            self.clear()

    def clear(self) -> None:
        """Forget the plan, failures and statistics: the next call seeks anew."""
        self._found: Found | None = None
        self._calls: Counter[str] = Counter()  # a search that is going on writes to what it began with

    def answer(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer a call of the program's.

        Args:
            plain: the original as the program sees it.
            args: of the call.
            kwargs: of the call.

        Raises:
            TorchwiseError: the config has no fallback, and a plan was not found or failed.
        """
        if torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        reason, found = self._aside(), self._found
        if reason is None and found is None:
            return self._first(plain, args, kwargs)
        if reason is None and found is not None:
            if found.optimized is not None:
                return self._by_plan(found.optimized, args, kwargs)
            self._raise_unless_fallback(found)
            reason = found.reason
        assert reason is not None
        return self._plainly(reason, plain, args, kwargs)

    def seek(self, examples: Sequence[Example] = ()) -> None:
        """Seek a plan now, and wait for it, as well as for a search of another thread's that is going on.

        Raises:
            TorchwiseError: the config has no fallback, and the search failed.
        """
        if getattr(_here, "first", False):  # this thread would wait for itself; the part's turn is its own first call
            return
        with _searching:
            if self._found is None and self._aside() is None:
                self._seek(self._examples or tuple(examples))

    @property
    def statistics(self) -> PartStatistics:
        """What became of this part so far."""
        found, original = self._found, Counter(self._calls)
        if found is None:
            return PartStatistics(original=dict(original))
        served = getattr(found.optimized, "statistics", None)
        failures = Counter(served.failures) if served else Counter()
        failures.update([type(found.error).__name__] if found.error else [])
        decision = found.decision
        return PartStatistics(
            str(decision.plan) if decision and found.optimized else None,
            found.reason,
            served.optimized if served else 0,
            dict(original + served.original if served else original),
            decision.speedup if decision else None,
            served.first_calls_s if served else 0.0,
            found.seconds,
            dict(failures),
        )

    def _aside(self) -> str | None:
        """Return why no plan may answer, whatever was found, or None."""
        if is_disabled():
            return DISABLED
        if not self.config.enabled:
            return SWITCHED_OFF
        return WITHIN if getattr(_here, "within", False) else None

    def _first(self, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_unusual():
            return self._plainly(UNUSUAL, plain, args, kwargs)
        if not _searching.acquire(blocking=False):
            return self._plainly(BUSY, plain, args, kwargs)
        _here.first = True
        try:
            if self._found is not None:  # another thread was faster
                return self._plainly(BUSY, plain, args, kwargs)
            given = self._examples or _copied(args, kwargs)  # before the call, which may write to its inputs
            result = self._plainly(FIRST, plain, args, kwargs)
            self._seek(given)
            return result
        finally:
            _here.first = False
            _searching.release()

    def _seek(self, examples: tuple[Example, ...]) -> None:
        calls, config, begun = self._calls, self.config, time.perf_counter()
        logger.info("torchwise: seeking a plan for part %s; the caller waits", self.name)
        try:
            original = under_autocast(self.original, config)
            trains = _trains(original, examples) if config.training is None else config.training
            found = judged(original, self._find(original, examples, replace(config, training=trains)), config)
        except Exception as error:  # whatever ails a search, the program goes on; it is logged, and kept until clear()
            found = Found(None, f"no plan could be sought ({type(error).__name__}: {error})", error=error)
            logger.warning("torchwise: part %s stays plain until clear()", self.name, exc_info=error)
        if calls is self._calls:  # not cleared meanwhile
            self._found = replace(found, seconds=time.perf_counter() - begun)
            logger.info("torchwise: part %s: %s", self.name, found.reason)
        self._raise_unless_fallback(found)

    def _by_plan(self, optimized: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _here.within = True
        try:
            if self.config.autocast is None:
                result = optimized(*args, **kwargs)
            else:  # the plan brings it along, and would leave to the original what runs under anybody else's
                with torch.autocast(device_of(self.config), enabled=False):
                    result = optimized(*args, **kwargs)
        finally:
            _here.within = False
        if not self.config.fallback and (failures := self.statistics.failures):
            raise TorchwiseError(
                f"the plan of part {self.name!r} failed ({', '.join(failures)}; the log says how): clear() seeks anew, "
                "and fallback=True lets the original answer"
            )
        return result

    def _plainly(self, reason: str, plain: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._calls[reason] += 1
        if self.config.autocast is None:
            return plain(*args, **kwargs)
        with autocast_of(self.config):
            return plain(*args, **kwargs)

    def _raise_unless_fallback(self, found: Found) -> None:
        if found.error is not None and not self.config.fallback:
            raise TorchwiseError(
                f"part {self.name!r}: {found.reason}: clear() seeks anew, and fallback=True lets the original answer"
            ) from found.error


def _copied(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Example, ...]:
    try:
        return (Example(args, kwargs).clone(),)
    except Exception:  # an input may be of any kind; the search then says what is wrong with it
        return (Example(args, kwargs),)


def _trains(original: Callable[..., Any], examples: Sequence[Example]) -> bool:
    """Whether a call as the first one needs gradients."""
    tensors = trees.tensors([(example.args, dict(example.kwargs)) for example in examples])
    tensors += list(original.parameters()) if isinstance(original, torch.nn.Module) else []
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _is_unusual() -> bool:
    """Whether inputs may not be what they seem, or may not be copied, right now."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return True
    return torch.autograd.forward_ad._current_level >= 0 or _transforms() is not None
