"""A planted fault: a reference, a candidate with one mistake or trick, and the checks that may catch it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchwise.plan.requirements import Property
from torchwise.records import CheckName
from torchwise.workload import Workload

Call = Callable[..., Any]


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    Attributes:
        name: the mistake in a few words.
        kind: forward, backward, stateful, aliasing, stochastic, training or process.
        make_reference: makes the reference.
        make_candidate: makes the candidate anew, without anything that it kept.
        inputs: descriptions of the inputs, or nothing if `make_workload` gives them.
        caught_by: the checks of which one must fail.
        make_workload: makes a workload with given examples.
        options: keywords of `PairSubject`.
    """

    name: str
    kind: str
    make_reference: Callable[[], Call]
    make_candidate: Callable[[], Call]
    inputs: tuple[str, ...]
    caught_by: tuple[CheckName, ...]
    make_workload: Callable[[], Workload] | None = None
    training: bool = False
    properties: frozenset[Property] = frozenset()


FAULTS: list[Fault] = []
HANDLES: list[Any] = []
"""Handles of hooks that faults leave."""


def reset_settings() -> None:
    """Put back the settings that faults change."""
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    torch.set_autocast_enabled("cpu", False)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_flash_sdp(True)
    while HANDLES:
        HANDLES.pop().remove()


def plant(
    kind: str,
    reference: Call,
    *inputs: str,
    caught_by: CheckName | tuple[CheckName, ...] = CheckName.VALUES,
    makes: bool = False,
    **options: Any,
) -> Callable[[Call], Call]:
    """Register the decorated function, or what it makes, as a wrong candidate for a reference."""

    def register(candidate: Call) -> Call:
        names = caught_by if isinstance(caught_by, tuple) else (caught_by,)
        title = candidate.__name__.replace("_", " ")
        make_candidate = candidate if makes else lambda: candidate
        make_reference = reference if makes == "both" else lambda: reference
        FAULTS.append(Fault(title, kind, make_reference, make_candidate, inputs, names, **options))
        return candidate

    return register
