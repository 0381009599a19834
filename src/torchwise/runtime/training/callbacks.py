"""Plans for the Trainers of Lightning, from either of its two packages, and of Hugging Face."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any, Unpack

from torchwise.errors import InputError, UnsupportedError
from torchwise.installation import suggest_extra
from torchwise.keywords import checked_keywords
from torchwise.plan.workload_spec import TuneKeywords
from torchwise.records import Decision
from torchwise.runtime.training.distributed import PATIENCE_S
from torchwise.runtime.training.forward import PlannedForward

logger = logging.getLogger("torchwise")

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


@checked_keywords(TuneKeywords)
def lightning_callback(
    decision: Decision | None = None,
    *,
    part: str | None = None,
    patience: float = PATIENCE_S,
    **options: Unpack[TuneKeywords],
) -> Any:
    """Return a callback that runs the forward of the LightningModule, or of a part of it, by a plan.

    ::

        trainer = Trainer(callbacks=[torchwise.training.lightning_callback(part="net", calls=100_000)])

    Lightning keeps its loop: optimizers, precision, accumulation, clipping and strategy. See `PlannedForward` for the
    time of tuning and the calls that the plan answers.

    Args:
        decision: the result of `torchwise.tune(part, …, mode="training")`, or None to tune after the first step.
        part: name of the submodule that `training_step` calls, such as "net", or None if it calls the LightningModule
            itself, `self(x)`.
        patience: seconds that ranks wait for each other.
        **options: as for `torchwise.tune`, if there is no decision.

    Raises:
        UnsupportedError: neither package can be imported.
        InputError: (in `fit`) there is no such part, or the LightningModule has no forward of its own.
    """
    package = _package()
    callback = type("TorchwiseCallback", (_LightningHooks, package.Callback), {})
    return callback(package.LightningModule, decision, part, {"patience": patience, **options})


class _LightningHooks:
    def __init__(self, base: type, decision: Decision | None, part: str | None, options: dict[str, Any]) -> None:
        self._base, self._part = base, part
        self._decision, self._options = decision, options
        self.planned: PlannedForward | None = None

    def on_train_start(self, _trainer: Any, module: Any) -> None:
        """Replace the forward."""
        self.planned = PlannedForward(self._find_submodule(module), self._decision, **self._options)

    def on_train_batch_start(self, *_args: Any, **_kwargs: Any) -> None:
        """Tune the plan, before the second batch."""
        if self.planned is not None:
            self.planned.between_steps()

    def on_train_end(self, *_args: Any) -> None:
        """Restore the forward."""
        if self.planned is not None:
            self.planned.close()

    def on_exception(self, *_args: Any) -> None:
        """Restore the forward."""
        self.on_train_end()

    def _find_submodule(self, module: Any) -> Any:
        if self._part is not None:
            try:
                return module.get_submodule(self._part)
            except AttributeError as error:
                names = ", ".join(name for name, _ in module.named_children())
                raise InputError(f"part is {self._part!r}, but {type(module).__name__} has {names}") from error
        if type(module).forward is self._base.forward:  # type: ignore[attr-defined]
            raise InputError(
                f"{type(module).__name__} has no forward, so that there is nothing to plan: name the part that its "
                "training_step calls, as part='net'"
            )
        return module


def _package() -> Any:
    """Return the package that the program has imported, or else one that can be imported."""
    for name in sorted(PACKAGES, key=lambda name: name not in sys.modules):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise UnsupportedError(
        "neither lightning nor pytorch_lightning can be imported, but this callback is for their Trainer: "
        + suggest_extra("lightning")
    )


@checked_keywords(TuneKeywords)
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
            "transformers cannot be imported, but this callback is for its Trainer: " + suggest_extra("trainer")
        ) from error
    return type("TorchwiseCallback", (_TrainerHooks, base), {})(decision, {"patience": patience, **options})


class _TrainerHooks:
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
