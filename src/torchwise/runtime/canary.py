"""A canary: now and then a call is also answered by the original, and a plan that answers otherwise is given up."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import torch

from torchwise.alerts import alert
from torchwise.errors import InputError, is_count
from torchwise.realize.glance import glance_at
from torchwise.realize.signature import is_strided, opaque_leaves
from torchwise.records import Decision
from torchwise.runtime.statistics import Statistics
from torchwise.verify import mismatch, observation_of
from torchwise.workload import Example, trees

logger = logging.getLogger("torchwise")


class Canary:
    """Compares one call in `every` with the original, on copies of the inputs; random numbers are put back afterwards.

    A model that draws random numbers cannot be compared: at the first difference the canary is switched off. So it is
    where an input is an object that cannot be copied, and where the model keeps state outside its buffers. Calls whose
    inputs share memory are passed over, as copies of them would not. What else keeps it from comparing does so, too,
    and never reaches the caller.

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
        if not is_count(every):
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
        """Return `call` with the comparison in it; `call` itself is its attribute `plain`."""
        following, every = self._counted.__next__, self.every

        def watched(*args: Any, **kwargs: Any) -> Any:
            if following() % every or self._is_off:
                return call(*args, **kwargs)
            return self._compared(call, args, kwargs)

        watched.plain = call  # type: ignore[attr-defined]
        return watched

    def _compared(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            if not self._may_compare(args, kwargs):
                return call(*args, **kwargs)
            given, buffers = Example(args, kwargs).clone(), self._buffers()
        except Exception as error:  # whatever cannot be looked at or copied cannot be compared
            self._switch_off(f"inputs or buffers cannot be copied ({error})", error)
            return call(*args, **kwargs)
        answer = call(*args, **kwargs)
        try:
            found, right = self._judged(answer, args, kwargs, given, buffers)
        except Exception as error:  # the plan has answered: what fails here is the comparison
            self._switch_off(f"comparing failed with {type(error).__name__}", error)
            return answer
        if found is None:
            return answer
        self._give_up(found)
        return self._mended(right, args, kwargs, given)

    def _may_compare(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return False
        if opaque := opaque_leaves((args, kwargs)):
            self._switch_off(f"an input holds {opaque[0]}, which cannot be copied")
            return False
        memory = [t.untyped_storage().data_ptr() for t in trees.tensors((args, kwargs)) if is_strided(t)]
        return len(set(memory)) == len(memory)

    def _judged(
        self, answer: Any, args: Any, kwargs: Any, given: Example, buffers: dict[str, torch.Tensor]
    ) -> tuple[str | None, Any]:
        """Return what is wrong with an answer, if anything is, and the original's own."""
        ours, after = observation_of(answer, (args, kwargs)), self._buffers()
        unchanged = glance_at(self._module) if self._module is not None else lambda: True
        self._put(buffers)  # from the state that the plan started from
        right, drew = self._by_original(given)
        self._statistics.compared += 1
        found = mismatch(ours, observation_of(right, (given.args, dict(given.kwargs))), self._decision.error or 0.0)
        if not unchanged():
            self._switch_off("the model keeps state outside its buffers, which each comparison advances")
        elif found and drew:
            self._switch_off("the model draws random numbers")
        elif found:
            return found, right
        self._put(after)
        return None, None

    def _by_original(self, given: Example) -> tuple[Any, bool]:
        """Return the original's answer, and whether it drew random numbers, which are put back."""
        devices = [torch.cuda.current_device()] if self._decision.workload.device == "cuda" else []

        def states() -> list[torch.Tensor]:
            return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]

        with torch.random.fork_rng(devices), torch.no_grad():
            before = states()
            answer = self._original(*given.args, **given.kwargs)
            drew = not all(map(torch.equal, before, states()))
        return answer, drew

    def _mended(self, right: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: Example) -> Any:
        """Return the original's answer, with what the plan wrote to the inputs made right as well."""
        theirs, copies = trees.tensors((args, kwargs)), given.tensors()
        known = {id(copy): tensor for copy, tensor in zip(copies, theirs, strict=False)}
        try:
            for copy, tensor in zip(copies, theirs, strict=False):
                if not trees.equal(tensor, copy):
                    tensor.copy_(copy)
            return trees.map_tensors(lambda tensor: known.get(id(tensor), tensor), right)
        except Exception as error:  # the answer is right whatever cannot be written
            logger.warning("torchwise: what the plan wrote to an input could not be mended", exc_info=error)
            return right

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
        reason = f"the canary found that {found}"
        self._statistics.mismatched += 1
        self._statistics.optimized -= 1  # this call, which is about to be counted as the plan's
        self._statistics.reasons[reason] += 1
        self._close(reason)
        plan = str(self._decision.plan)
        message = f"plan {plan} answered otherwise than the original, which answers from now on: {found}"
        alert("canary_mismatch", message, plan=plan, found=found)

    def _switch_off(self, reason: str, error: Exception | None = None) -> None:
        if not self._is_off:
            self._is_off = True
            logger.warning("torchwise: the canary is switched off, because %s", reason, exc_info=error)
