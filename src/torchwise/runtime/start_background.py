"""Start the search in another process behind `optimize(background=True)` and the components of a program."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from torchwise.errors import InputError
from torchwise.plan.requirements import Property
from torchwise.plan.workload_spec import OptionKeywords, Sizes, TuneOptions
from torchwise.runtime.api import make_request, wrap_model
from torchwise.runtime.fallback_reason import Fallback, FallbackReason

if TYPE_CHECKING:
    from torchwise.runtime import OptimizedFunction, OptimizedModule
    from torchwise.runtime.background import Order
    from torchwise.workload import Example, Workload


def start_in_background(
    model: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    canary: int | None = None,
    examples: Sequence[Example] | None = None,
    sizes: Sizes = "as-given",
    store: str | None = None,
    minimum_speedup: float = 1.0,
    turn: threading.Lock | None = None,
    progress: bool = True,  # noqa: ARG001
    **options: Unpack[OptionKeywords],
) -> OptimizedModule | OptimizedFunction:
    """Return a callable that runs `model` as it is, until a search in another process has found a plan.

    Args:
        model: as for `tune`.
        args: as for `tune`.
        kwargs: as for `tune`.
        canary: as for `apply`.
        examples: as for `tune`.
        sizes: as for `tune`.
        store: as for `tune`.
        minimum_speedup: the speed-up over eager that a plan must surely reach.
        turn: as for `Tuning`.
        progress: without effect.
        **options: as for `tune`.

    Raises:
        InputError: an argument cannot be used, or `mode` is not inference.
    """
    from torchwise.runtime.background import Order, initial_decision, start

    def make_order(
        args: Any, kwargs: dict[str, Any] | None, examples: Sequence[Example] | None, sizes: Sizes
    ) -> tuple[Workload, Order]:
        request, workload = make_request(model, args, kwargs, examples, TuneOptions(sizes=sizes, **options))
        assert workload is not None, "there is no background search for a target"
        efforts = ("quick", request.effort) if request.plans is None else (request.effort,)
        path = tuple(sys.path)
        return workload, Order(request, tuple(dict.fromkeys(efforts)), store, path, minimum_speedup, time.monotonic())

    workload, order = make_order(args, kwargs, examples, sizes)
    request = order.request
    if request.workload.mode != "inference":
        raise InputError(
            f"mode is {request.workload.mode!r}, but background search supports only inference: call tune, then apply"
        )
    decision = initial_decision(workload, request)
    searching = Fallback(FallbackReason.TUNING_IN_BACKGROUND)
    optimized: Any = wrap_model(workload.call, decision, searching, canary=canary)
    # The plan for other sizes is compared with itself there, not with this one: samples could differ by their batch.
    is_split = Property.BATCH_INVARIANT not in request.workload.require
    learns = sizes == "as-given" and request.plans is None and is_split
    again = (lambda examples: make_order(None, None, examples, "varying")) if learns else None
    vars(optimized)["background"] = start(optimized, workload, order, canary, turn, again)
    result: OptimizedModule | OptimizedFunction = optimized
    return result
