"""Record the calls of a run by stored plans that no plan was verified on, as `torchwise run` records all calls.

A call that a plan answers does not come here, and so costs nothing more.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchwise.runtime.program.calls import Calls
from torchwise.runtime.program.recorder import CallRecorder

KEPT_BYTES = 32_000_000
"""Maximum memory of inputs that are kept, which are then written to a file. Above that, stand-ins are."""

Record = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Answers a call by the function that it gets, and records it."""


class MissedCallRecorder(CallRecorder):
    """Records calls that are given to it one by one. It looks at as few and keeps as little as its base class.

    Modules of one structure, such as the blocks of a model, count as one.

    Attributes:
        modules: the calls of each module, by the name of its class and by its structure.
    """

    def __init__(self) -> None:
        super().__init__(kept_bytes=KEPT_BYTES)
        self.modules: dict[tuple[str, str], Calls] = {}
        self._autocasts: dict[int, torch.dtype | None] = {}
        self._process = os.getpid()

    def watch(self, thing: Any, name: str, structure: str, autocast: torch.dtype | None) -> Record:
        """Return a function that records such calls of a module or function.

        Its plan answers under an autocast, or under none. That around a call is off when the call comes here, as
        the plan contains it.
        """
        reference = weakref.ref(thing)
        calls = self.modules.get((name, structure))
        if calls is None:
            calls = self.modules[name, structure] = Calls(name, name, reference)
            calls.parameters = 0 if isinstance(thing, torch.nn.Module) else -1
            self.calls.append(calls)
        elif calls.live is None:
            calls.weakly = reference
        self._by_id[id(thing)], self._autocasts[id(thing)] = calls, autocast

        def record(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            live = reference()
            if live is None or os.getpid() != self._process:  # another thread of the parent may have held the lock
                return run(*args, **kwargs)
            return self._answer(live, run, args, kwargs)

        return record

    def _find(self, thing: Any) -> Calls | None:
        return self._by_id.get(id(thing))

    def _autocast_of(self, thing: Any) -> torch.dtype | None:
        return self._autocasts.get(id(thing))

    def _may_open(self, calls: Calls) -> bool:  # noqa: ARG002
        return False  # the module has a plan, and its parts have none
