"""Plans for Hugging Face's Trainer."""

from __future__ import annotations

import importlib
import logging
from typing import Any, Unpack

from torchwise.errors import UnsupportedError
from torchwise.plan.workload_spec import TuneKeywords
from torchwise.records import Decision
from torchwise.runtime.training.distributed import PATIENCE_S
from torchwise.runtime.training.forward import PlannedForward

logger = logging.getLogger("torchwise")


def trainer_callback(
    decision: Decision | None = None, *, patience: float = PATIENCE_S, **options: Unpack[TuneKeywords]
) -> Any:
    """Return a callback that runs the forward of a `transformers.Trainer`'s model by a plan.

    ::

        Trainer(model, args, train_dataset=data, callbacks=[torchwise.training.trainer_callback(calls=100_000)])

    The Trainer keeps its loop: optimizer, precision, accumulation, clipping and scaling. See `PlannedForward` for the
    time of tuning and the calls that the plan answers. Pass the callback to the Trainer's constructor: it must exist
    before Accelerate wraps the model.

    Args:
        decision: the result of `torchwise.tune(model, None, batch, mode="training")`, or None to tune after the first
            step.
        patience: seconds that ranks wait for each other.
        **options: as for `torchwise.tune`, if there is no decision.

    Raises:
        UnsupportedError: transformers cannot be imported.
    """
    try:
        base = importlib.import_module("transformers").TrainerCallback
    except ImportError as error:
        raise UnsupportedError(
            "transformers cannot be imported, but this callback is for its Trainer: pip install 'torchwise[trainer]'"
        ) from error
    return type("TorchwiseCallback", (_Hooks, base), {})(decision, {"patience": patience, **options})


class _Hooks:
    def __init__(self, decision: Decision | None, options: dict[str, Any]) -> None:
        self._decision, self._options = decision, options
        self._is_open = False
        self.planned: PlannedForward | None = None

    def on_init_end(self, _args: Any, _state: Any, _control: Any, *, model: Any = None, **_others: Any) -> None:
        """Replace the forward."""
        self._open(model)

    def on_train_begin(self, args: Any, _state: Any, _control: Any, *, model: Any = None, **_others: Any) -> None:
        """Replace the forward again after an earlier training restored it, but not for replicas on several GPUs."""
        if not self._is_open:
            self._open(model)
        if getattr(args, "n_gpu", 1) > 1:
            logger.warning(
                "torchwise: no search runs, as DataParallel spreads the model over %d GPUs: start it by torchrun, "
                "with a process for each",
                args.n_gpu,
            )
            self._close()

    def on_step_begin(self, *_args: Any, **_others: Any) -> None:
        """Tune the plan, before the second step."""
        if self.planned is not None and self._is_open:
            self.planned.between_steps()

    def on_train_end(self, *_args: Any, **_others: Any) -> None:
        """Restore the forward."""
        self._close()

    def _open(self, model: Any) -> None:
        if model is not None:
            self.planned = PlannedForward(model, self._decision, **self._options)
            self._is_open = True

    def _close(self) -> None:
        if self.planned is not None:
            self.planned.close()
        self._is_open = False
