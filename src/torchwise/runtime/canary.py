"""A canary: now and then a call is also answered by the original, and a plan that answers otherwise is given up."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import torch

from torchwise.alerts import alert
from torchwise.errors import InputError
from torchwise.records import Decision
from torchwise.runtime.statistics import Statistics
from torchwise.verify import Observation, mismatch, observation_of
from torchwise.workload import Example, trees

logger = logging.getLogger("torchwise")


class Canary:
    """Compares one call in `every` with the original, on copies of the inputs and with the random numbers put back.

    A model whose answers are not the same twice (dropout, noise) cannot be compared: the canary finds out at the first
    difference, and is switched off. What else keeps it from comparing does so, too, and never reaches the caller.

    Args:
        every: calls per comparison.
        original: what the plan was made of.
        decision: whose error, as proven, tells how far rounding goes.
        statistics: where comparisons are counted.
        close: gives the plan up, with the reason.

    Raises:
        InputError: `every` is no whole number of at least 1.
    """

    def __init__(
        self,
        every: int,
        original: Callable[..., Any],
        decision: Decision,
        statistics: Statistics,
        close: Callable[[str], None],
    ) -> None:
        if type(every) is not int or every < 1:
            raise InputError(f"canary is {every!r}, but must be a whole number of calls, at least 1, per comparison")
        self.every = every
        self._original = original
        self._module = original if isinstance(original, torch.nn.Module) else None
        self._decision = decision
        self._statistics = statistics
        self._close = close
        self._counted = itertools.count(1)
        self._is_off = False

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call` with the comparison in it."""
        following, every = self._counted.__next__, self.every

        def watched(*args: Any, **kwargs: Any) -> Any:
            if following() % every or self._is_off:
                return call(*args, **kwargs)
            return self._compared(call, args, kwargs)

        return watched

    def _compared(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            before, buffers = Example(args, kwargs).clone(), self._buffers()
        except Exception as error:  # whatever cannot be copied cannot be compared
            self._switch_off(f"inputs or buffers cannot be copied ({error})", error)
            return call(*args, **kwargs)
        answer = call(*args, **kwargs)
        try:
            return self._judged(answer, args, kwargs, before, buffers)
        except Exception as error:  # the plan has answered: what fails here is the comparison
            self._switch_off(f"comparing failed with {type(error).__name__}", error)
            return answer

    def _judged(self, answer: Any, args: Any, kwargs: Any, before: Example, buffers: dict[str, torch.Tensor]) -> Any:
        ours, after = observation_of(answer, (args, kwargs)), self._buffers()
        theirs, _ = self._by_original(before.clone(), buffers)
        self._statistics.compared += 1
        found = mismatch(ours, theirs, self._decision.error or 0.0)
        if found is None:
            self._put(after)
            return answer
        again, _ = self._by_original(before.clone(), buffers, shifted=True)
        if mismatch(again, theirs, self._decision.error or 0.0):
            self._put(after)
            self._switch_off("the original's own answers are not the same twice")
            return answer
        self._give_up(found)
        _, right = self._by_original(before, buffers)
        for tensor, value in zip(
            trees.tensors((args, kwargs)), trees.tensors((before.args, before.kwargs)), strict=True
        ):
            if not trees.equal(tensor, value):  # what the plan wrote to an input was as wrong
                tensor.copy_(value)
        return right

    def _by_original(
        self, example: Example, buffers: dict[str, torch.Tensor], *, shifted: bool = False
    ) -> tuple[Observation, Any]:
        """Run the original from the state that the plan started from; where shifted, with other random numbers."""
        self._put(buffers)
        devices = [torch.cuda.current_device()] if self._decision.workload.device == "cuda" else []
        with torch.random.fork_rng(devices), torch.no_grad():
            if shifted:
                torch.manual_seed(torch.initial_seed() ^ 1)
            answer = self._original(*example.args, **example.kwargs)
        return observation_of(answer, (example.args, dict(example.kwargs))), answer

    def _buffers(self) -> dict[str, torch.Tensor]:
        named = self._module.named_buffers() if self._module is not None else ()
        return {name: buffer.detach().clone() for name, buffer in named}

    def _put(self, state: dict[str, torch.Tensor]) -> None:
        """Set the buffers that differ, so that those of a model without state are never written to."""
        for name, buffer in self._module.named_buffers() if self._module is not None else ():
            if name in state and not trees.equal(buffer, state[name]):
                with torch.no_grad():
                    buffer.copy_(state[name])

    def _give_up(self, found: str) -> None:
        self._statistics.mismatched += 1
        self._close(f"the canary found that {found}")
        plan = str(self._decision.plan)
        message = f"plan {plan} answered otherwise than the original, which answers from now on: {found}"
        alert("canary_mismatch", message, plan=plan, found=found)

    def _switch_off(self, reason: str, error: Exception | None = None) -> None:
        if not self._is_off:
            self._is_off = True
            logger.warning("torchwise: the canary is switched off, because %s", reason, exc_info=error)
