"""Use one plan for a training step on every rank.

Rank 0 tunes, all ranks receive the decision, and all or none use the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Unpack

import torch

from torchwise import environment
from torchwise.errors import InputError
from torchwise.keywords import checked_keywords
from torchwise.plan.workload_spec import TuneKeywords
from torchwise.records import Decision
from torchwise.records import Study as StudyRecord
from torchwise.runtime import OptimizedStep, api, stale_because, unwrap
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.step import FAILED_ON_RANK, FIRST_CALLS, StepDispatcher
from torchwise.runtime.training.distributed import (
    PATIENCE_S,
    Ranks,
    as_decided_for,
    bare,
    find_rank_refusal,
    rehearsing,
    without_rank,
)
from torchwise.study.apply_approvals import apply_stored_approvals
from torchwise.study.decision import decide
from torchwise.study.history import History
from torchwise.workload import Example
from torchwise.workload.module_state import preserve_generators
from torchwise.workload.train_step import TrainStep, find_sharded_modules

logger = logging.getLogger("torchwise")

OTHER_RANK = Fallback(FallbackReason.OTHER_RANK)


@checked_keywords(TuneKeywords)
def tune(
    model: Callable[..., Any],
    args: Any = None,
    kwargs: Any = None,
    *,
    patience: float = PATIENCE_S,
    **options: Unpack[TuneKeywords],
) -> Decision:
    """Find the fastest verified plan for a step or model, the same for all ranks. Every rank must call this.

    Rank 0 tunes on its own device, and all ranks receive the decision. It tunes the step of one rank, with the model
    taken out of `DistributedDataParallel`. A process without rank tunes as `torchwise.tune` does.

    Args:
        model: as for `torchwise.tune`.
        args: as for `torchwise.tune`, taken from rank 0.
        kwargs: as for `torchwise.tune`.
        patience: seconds for the other ranks to wait.
        **options: as for `torchwise.tune`.

    Raises:
        InputError: (on every rank) an argument cannot be used, or the model is sharded already.
        BaselineError: the model raises on its own inputs.
        TorchwiseError: a rank ended meanwhile.
    """
    found = unwrap(model)
    alone = bare(found) if isinstance(found, TrainStep) else found
    with Ranks(patience) as ranks:

        def decision() -> str:
            with without_rank():
                record = api.tune(alone, args, kwargs, **options).record
            return (_decide_for_ranks(record) if ranks.are_several else record.decision).to_json()  # type: ignore[union-attr]

        return Decision.from_json(ranks.broadcast_from_rank0(decision))


@checked_keywords()
def apply(
    step: TrainStep, decision: Decision | api.Study, *, patience: float = PATIENCE_S, store: str | None = None
) -> RankedStep | OptimizedStep:
    """Return `step` with the decided plan, on all ranks or on none. Every rank must call this.

    Args:
        step: the step of the decision. Its model may have been wrapped or sharded since.
        decision: the decision from `tune`, the same on every rank.
        patience: seconds for ranks to wait for one that compiles slower.
        store: as for `torchwise.apply`. The approvals that rank 0 reads there hold on all ranks.

    Raises:
        TorchwiseError: a rank ended meanwhile.
    """
    decision = decision.decision if isinstance(decision, api.Study) else decision
    step, ranks = unwrap(step), Ranks(patience)
    if not ranks.are_several:
        return api.apply(step, decision, store=store)
    text = decision.to_json()
    is_another = ranks.broadcast_from_rank0(lambda: text) != text
    decision = Decision.from_json(
        ranks.broadcast_from_rank0(lambda: apply_stored_approvals(Decision.from_json(text), store).decision.to_json())
    )
    with as_decided_for(step) as before:
        stale = stale_because(before, decision)
    refusal = Fallback(FallbackReason.STALE_DECISION, stale) if stale else find_rank_refusal(decision.plan)
    if is_another:
        refusal = Fallback(FallbackReason.RANKS_DISAGREE)
    return RankedStep(step, decision, refusal, ranks, patience)


@checked_keywords(TuneKeywords)
def optimize(
    step: TrainStep, args: Any = None, *, patience: float = PATIENCE_S, **options: Unpack[TuneKeywords]
) -> RankedStep | OptimizedStep:
    """Tune and apply, on every rank. See `tune` and `apply` for arguments and errors.

    ::

        step = torchwise.TrainStep(DistributedDataParallel(model), loss, optimizer)
        step = torchwise.training.optimize(step, (x, y), calls=100_000)
    """
    return apply(step, tune(step, args, patience=patience, **options), patience=patience, store=options.get("store"))


class RankedDispatcher(StepDispatcher):
    """Takes the steps of one rank by the plan that all ranks use."""

    def freeze(self) -> None:
        """Refuse, as a rank that takes a step as written, or fails, leaves the others waiting.

        Raises:
            InputError: its ranks train by one plan.
        """
        if self._is_ranked:
            raise InputError(
                "it is a training step of several ranks, which cannot be frozen: a rank cannot take a step as written "
                "alone. Take a step on a batch of every shape before time counts"
            )
        super().freeze()


class RankedStep(OptimizedStep):
    """A training step by a plan, on every rank or on none.

    All ranks meet at the first batch of a verified kind on each rank. Each takes the plan's first steps on that batch,
    in which it compiles, and undoes their changes. Ranks train by the plan only after all have succeeded. So a rank
    that compiles slower makes the others wait here, and not in a collective that times out. If one rank cannot use the
    plan, none does. Batches of another kind run the original step.

    From then on, a failure of the plan fails the step, as eager's own failures do. One rank cannot repeat it alone.

    Args:
        original: the original step.
        decision: the decision for it.
        refusal: why this rank may not use the plan, or None.
        ranks: the ranks, to meet.
        patience: seconds to wait for the others.
    """

    _copied_as = OptimizedStep

    def __init__(
        self, original: TrainStep, decision: Decision, refusal: Fallback | None, ranks: Ranks, patience: float
    ) -> None:
        self._hold(RankedDispatcher(original, decision, refusal, is_ranked=True))
        self._ranks: Ranks | None = ranks
        self._patience = patience

    def __call__(self, *batch: Any) -> torch.Tensor:
        """Take one training step, and return its loss, detached."""
        if self._ranks is not None:
            self._meet(self._ranks, batch)
        return super().__call__(*batch)

    def _meet(self, ranks: Ranks, batch: tuple[Any, ...]) -> None:
        step: StepDispatcher = self._dispatcher
        holds, can_try = ranks.everywhere(step.refusal is None, step.find_unverified(batch) is None)
        if not holds:
            self._end_meeting(step.refusal or OTHER_RANK)
        elif can_try:
            failure = self._rehearse(batch)
            (all_came,) = ranks.everywhere(failure is None)
            step.accept(batch)
            refusal = OTHER_RANK
            if failure is not None:
                refusal = Fallback(FallbackReason.PLAN_FAILED, f"{type(failure).__name__}: {failure}")
            self._end_meeting(None if all_came else refusal)

    def _end_meeting(self, refusal: Fallback | None) -> None:
        assert self._ranks is not None, "they meet once"
        self._ranks.close()
        self._ranks = None
        if refusal is not None:
            self._dispatcher.close(refusal)
            if not self.decision.plan.is_eager:
                logger.warning("torchwise: training goes on as written on every rank: %s", refusal)

    def _rehearse(self, batch: tuple[Any, ...]) -> Exception | None:
        """Take the plan's first steps, undo all their effects, and return the error, or None."""
        step, planned = self.original, None
        try:
            planned, restore = self._dispatcher.compile(batch), step.snapshot()
            with preserve_generators(self.decision.workload.device), rehearsing(step.model, self._patience):
                try:
                    for _ in range(FIRST_CALLS):
                        planned(*Example(batch).clone().args)  # a copy, as a model may write to its inputs
                finally:
                    restore()
                    step.optimizer.zero_grad(set_to_none=True)
        except Exception as error:  # after any error, every rank takes the original step
            if planned is not None and find_sharded_modules(step.model):  # others may wait for this rank in an exchange
                error.add_note(f"torchwise: {FAILED_ON_RANK}")
                raise
            logger.debug("torchwise: how the plan failed", exc_info=error)
            return error
        return None


def _decide_for_ranks(record: StudyRecord) -> Decision:
    """Return the decision, or the best one that several ranks can run together."""
    assert record.decision is not None, "tune returns decided studies only"
    if find_rank_refusal(record.decision.plan) is None:
        return record.decision
    fit = tuple(trial for trial in record.trials if find_rank_refusal(trial.plan) is None)
    history = History(record.decision.workload, record.inspection, fit)
    return decide(history, environment.detect(record.workload.device))
