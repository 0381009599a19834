"""The Python interface: `optimize`, for a model with example inputs, or for a pipeline with a function that runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from torchwise.errors import InputError
from torchwise.keywords import checked_keywords
from torchwise.plan.workload_spec import Sizes, TuneKeywords
from torchwise.runtime.api import apply, tune
from torchwise.runtime.start_background import start_in_background

if TYPE_CHECKING:
    from torchwise.runtime import OptimizedFunction, OptimizedModule, OptimizedStep
    from torchwise.runtime.program import OptimizedProgram
    from torchwise.workload.train_step import TrainStep

T = TypeVar("T")


@overload
def optimize(
    model: T, *, run: Callable[[T], Any], sizes: Sizes = "as-given", **options: Unpack[TuneKeywords]
) -> OptimizedProgram[T]: ...


@overload
def optimize(
    model: TrainStep,
    args: Any = None,
    kwargs: None = None,
    *,
    sizes: Sizes = "as-given",
    **options: Unpack[TuneKeywords],
) -> OptimizedStep: ...


@overload
def optimize(
    model: Callable[..., Any],
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    canary: int | None = None,
    background: bool = False,
    sizes: Sizes = "as-given",
    **options: Unpack[TuneKeywords],
) -> OptimizedModule | OptimizedFunction: ...


@checked_keywords(TuneKeywords)
def optimize(
    model: Any,
    args: Any = None,
    kwargs: dict[str, Any] | None = None,
    *,
    run: Callable[[Any], Any] | None = None,
    canary: int | None = None,
    background: bool = False,
    sizes: Sizes = "as-given",
    **options: Unpack[TuneKeywords],
) -> OptimizedModule | OptimizedFunction | OptimizedStep | OptimizedProgram[Any]:
    """Tune and apply: return a callable that runs `model` in the fastest verified way.

    A stored decision for the same model, inputs and machine is reused, without profiling the model again. In inference
    mode, the plan runs only while gradients are off. So call the result under `torch.no_grad()`.

    An object that holds modules, such as a pipeline, needs no example inputs but `run`. It is called with the object,
    and shows which modules matter and how they are called. Their plans are put in place, inside the object. The result
    behaves as the object does, with a `report`, and with `restore()`, which gives the original back.

    Args:
        model: an `nn.Module`, a function or a `TrainStep`. With `run`, any object.
        args: as for `tune`.
        kwargs: as for `tune`.
        run: calls the object with representative inputs, such as `lambda pipe: pipe("a prompt")`.
        canary: as for `apply`.
        background: whether to return at once, and search in another process. The original model runs until a quick
            search has verified a plan. That plan runs until a search with `effort` has verified a better one. The
            attribute `background` of the result has the progress, and can wait for the search or stop it. If too many
            calls are of other sizes then, it searches once more, for a plan that answers those. This search has the
            whole `budget` again.
        sizes: as for `tune`, and with `run` as for `tune_program`.
        **options: as for `tune`. In the background, `progress` has no effect.

    Raises:
        InputError: an argument cannot be used, or in the background, `mode` is not inference.
    """
    from torchwise.workload import Workload

    if run is not None:
        if args is not None or kwargs is not None or canary is not None or background:
            raise InputError("run is given, and shows the inputs: leave args, kwargs, canary and background out")
        from torchwise.runtime.program import optimize_program

        return optimize_program(model, run, sizes=sizes, **options)
    if isinstance(model, (str, Workload)):
        raise InputError(f"model is of type {type(model).__name__}, but must be a module or a function")
    if background:
        return start_in_background(model, args, kwargs, canary=canary, sizes=sizes, **options)
    study = tune(model, args, kwargs, sizes=sizes, **options)
    if options.get("progress", True):
        print(f"torchwise: {study.decision.reason}", file=sys.stderr)
    return apply(model, study, canary=canary, store=options.get("store"))
