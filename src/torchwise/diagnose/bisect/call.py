"""`torchwise.bisect`: bisect from Python, also for a live model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchwise.diagnose.bisect.request import AUTO, LIMIT_S, BisectRequest
from torchwise.diagnose.bisect.run import run_bisection
from torchwise.diagnose.worker_arguments import make_spec, sent
from torchwise.plan import EAGER, Plan
from torchwise.records.bisection import Bisection
from torchwise.workload import Example, Workload
from torchwise.workload.target import read_workload


def bisect(
    model: Callable[..., Any] | Workload | str,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    examples: Sequence[Example] | None = None,
    what: str = AUTO,
    plan: Plan = EAGER,
    mode: str = "inference",
    device: str | None = None,
    limit: float = LIMIT_S,
    budget: float | None = None,
    repro: str | Path | None = None,
    progress: bool = True,
) -> Bisection:
    """Find where a fault of `torch.compile`, or of a plan, enters.

    Every probe runs in a process of its own: a crash or a hang costs only that probe. The model is not changed.

    Args:
        model: an `nn.Module`, a function, a `Workload`, or a target such as "path/file.py:factory".
        args: example arguments, a tuple (or one tensor).
        kwargs: example keyword arguments.
        examples: several example inputs, in place of `args`.
        what: "wrong", "nan", "crash", "hang", "slow", or "auto" for any of them except "slow".
        plan: a plan of Torchwise to bisect, by default plain `torch.compile`.
        mode: "inference" or "training" (with a backward pass).
        device: "cpu" or "cuda", by default the device of the model and its inputs, and for a target "cuda" if
            available.
        limit: seconds after which one probe is ended, and counts as a hang.
        budget: seconds after which no further probe starts, or None for no limit.
        repro: .py file for a program that shows the fault, or None for no program. Its inputs go to a .pt file there.
        progress: whether to show the progress.

    Raises:
        InputError: an argument cannot be used, or nothing of the model is compiled.
        BaselineError: the original model fails, or does not agree with its own float64 reference.
        UnsupportedError: this torch lacks a feature that bisecting or the plan needs.
    """
    from torchwise.report.progress import BisectProgress, Silent
    from torchwise.trial import ProcessLauncher

    workload = read_workload(model, args, kwargs, examples)
    spec = make_spec(model, workload, device, mode=mode)
    request = BisectRequest(spec, what, plan, limit, budget, str(repro) if repro is not None else None)
    display: AbstractContextManager[Any] = BisectProgress() if progress else nullcontext(Silent())
    with sent(workload, spec.target) as file, display as listener:
        request = replace(request, source=file.source, settings=file.settings)
        return run_bisection(request, ProcessLauncher(), listener)
