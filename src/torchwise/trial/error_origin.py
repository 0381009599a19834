"""Decide whose error it is: the model's only if the original model raises it on its own example.

The model then runs without any of Torchwise's instruments: dispatch modes, the profiler, copies, generated inputs,
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from torchwise.errors import BaselineError, BudgetError, InternalError, TorchwiseError, first_line, format_error
from torchwise.records import Failure, FailureKind, WorkerStage
from torchwise.trial.job import Job

if TYPE_CHECKING:
    from torchwise.workload import Example, Workload

PLAIN = (WorkerStage.START, WorkerStage.LOAD, WorkerStage.RUN_EAGER, WorkerStage.EAGER, WorkerStage.MEASURE)
"""Stages of a worker in which the model runs without instruments, or not at all."""
T = TypeVar("T")


def call_plainly(call: Callable[..., Any], example: Example) -> Any:
    """Run the model once on an example, which it may write to, and return its answer.

    Raises:
        BaselineError: it raises.
    """
    import torch

    try:
        answer = call(*example.args, **example.kwargs)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception as error:  # the user's model may raise anything
        raise make_baseline_error(error, example) from error
    return answer


def make_baseline_error(error: Exception, example: Example) -> BaselineError:
    """Return the exception to raise if the model raised an error by itself."""
    from torchwise.compile.cuda_graphs.capture_errors import place_of
    from torchwise.workload.identity import describe_example

    place = place_of(error)
    message = format_error(error) + (f" ({place})" if place else "")
    return BaselineError(f"the model raised {message}; its inputs were {describe_example(example) or 'none'}")


class Instruments:
    """Applies instruments that not every model tolerates. An instrument that fails is left out, and noted.

    Attributes:
        notes: the facts that are unknown because an instrument failed, and why.
    """

    def __init__(self, plain: Callable[[], Any]) -> None:
        self.notes: list[str] = []
        self._plain = plain

    def use(self, what: str, instrument: Callable[[], T], otherwise: T) -> T:
        """Return the result of `instrument`, or `otherwise` if only the instrument raises.

        `what` is the name of the result, for the note.

        Raises:
            BaselineError: the model raises without it, too.
        """
        try:
            return instrument()
        except Exception as error:  # a model may fail under our instruments in any way
            self._plain()
            message = first_line(format_error(error))
            self.notes.append(f"{what} is not known: looking for it raised {message}, though the model runs by itself")
            return otherwise


def run_checks(judge: Callable[[], T], judge_eager: Callable[[], Any]) -> T:
    """Return a verdict on a candidate, unless the checks also raise for eager in its place.

    Raises:
        InternalError: the checks cannot be made of this model at all.
    """
    try:
        return judge()
    except Exception as error:  # a candidate may raise anything: the error is its own unless eager fails as well
        try:
            judge_eager()
        except Exception as eager_error:  # likewise
            raise InternalError(
                "the checks cannot be made of this model: with eager in the candidate's place they raise "
                f"{format_error(eager_error)}; please report it"
            ) from eager_error
        raise error


def make_failure_error(failure: Failure, run_again: Callable[[], str | Failure] | None = None) -> TorchwiseError:
    """Return the exception to raise if a worker on the plain model ended without an answer.

    `run_again` runs the model without instruments in another worker. It is None if that is impossible.
    """
    if failure.kind is FailureKind.RAISED:  # an error that the model raises by itself comes as a `BaselineError`
        return _make_internal_error(failure)
    if failure.kind is not FailureKind.OUT_OF_BUDGET and failure.stage not in PLAIN and run_again is not None:
        again = run_again()
        if not isinstance(again, Failure):
            return _make_internal_error(failure)
        failure = again
    if failure.kind is FailureKind.OUT_OF_BUDGET:
        return make_budget_error(failure, "the model is not profiled")
    return BaselineError(f"the original model, run without a plan, {failure}{_format_traceback(failure)}")


def make_budget_error(failure: Failure, missing: str) -> BudgetError:
    """Return the exception to raise if the budget ended a worker. `missing` says what result there is not."""
    return BudgetError(f"{failure.message}, and {missing}: it ended in stage '{failure.stage}'. Give a larger budget")


def _make_internal_error(failure: Failure) -> InternalError:
    return InternalError(
        f"Torchwise failed, and not the model, while profiling it: {failure}; please report it"
        f"{_format_traceback(failure)}"
    )


def _format_traceback(failure: Failure) -> str:
    return f"\n{failure.traceback}" if failure.traceback else ""


def check(job: Job, stage: Callable[[str], None]) -> bool:
    """Run the model once on each example and do nothing else: a worker's task.

    Raises:
        InputError: the target cannot be loaded.
        BaselineError: the model raises.
    """
    import torch

    from torchwise.trial.loading import load

    workload = load(job)
    stage(WorkerStage.RUN_EAGER)
    with torch.set_grad_enabled(job.workload.mode == "training"):
        check_plainly(workload)
    return True


def check_plainly(workload: Workload) -> None:
    """Run the model, a training step in the state that it is in and changes, once on each example.

    Raises:
        BaselineError: it raises.
    """
    for example in workload.examples:
        call_plainly(workload.call, example.clone())
