"""Find the tensors that calls write to, and whether that matters when inputs share memory in an unverified way.

A call that writes nothing answers the same in any memory layout of its inputs. One that writes may change its own later
reads. After a plan that failed, the state that it wrote to is restored, and the original starts from the call's inputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchwise.compile import Signature
from torchwise.compile.signature import forget_oldest
from torchwise.errors import UnsupportedError
from torchwise.runtime.call_guard import VerifiedInputs
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.workload import pytree
from torchwise.workload.input_spec import InputSpec
from torchwise.workload.layouts import count_writes, overlap_of
from torchwise.workload.module_state import State

logger = logging.getLogger("torchwise")

OVERLAPS = Fallback(FallbackReason.INPUTS_SHARE_MEMORY)
MAX_READING = 1024
"""Maximum number of signatures remembered as writing nothing: views of one memory may overlap in many ways."""
Slot = tuple[Mapping[str, Any], str]
"""The place of a tensor in a module: its dict of parameters or buffers, and the name."""


class OverlapError(UnsupportedError):
    """Inputs share memory with the model's tensors, which the call writes to."""


class InputWrites:
    """Remembers for each signature the tensors that its calls write to, as far as that was observed.

    The own tensors of an original that is a module are checked, too.
    """

    def __init__(self, original: Any, verified: VerifiedInputs) -> None:
        self._module = original if isinstance(original, torch.nn.Module) else None
        self._verified = verified
        self._reading: dict[Signature, bool] = {}  # whether the original wrote nothing
        self._written: dict[Signature, list[Slot]] = {}

    def is_verified(self, key: Signature, spec: InputSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a first call of a signature shares memory as verified, or may do so as it writes nothing."""
        if self._reading.get(key, False):
            return True
        return self._verified.cover_memory(spec) and not self._meet(_slots(self._module), args, kwargs)

    def may_go_on(self, key: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a later call's inputs are apart from the tensors that the first one wrote to."""
        return key not in self._written or not self._meet(self._written[key], args, kwargs)

    def take_snapshot(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, closely: bool = False
    ) -> TensorSnapshot | None:
        """Record inputs and the module's own tensors before a call, or return None if that is impossible.

        `closely` compares the values of inputs, too, as not every kernel has its writes counted.
        """
        try:
            return TensorSnapshot(pytree.tensors((args, kwargs)), _slots(self._module), closely=closely)
        except Exception as error:  # an input may be of any kind, and memory may be short
            logger.debug("torchwise: the writes of a call could not be observed", exc_info=error)
            return None

    def note(self, key: Signature, snapshot: TensorSnapshot | None) -> None:
        """Note the writes of the plan's first call of a signature. Without a snapshot, they may be to any tensor."""
        written = _slots(self._module) if snapshot is None or snapshot.inputs_written() else snapshot.own_written()
        if written:
            self._written[key] = written

    def forget(self, key: Signature) -> None:
        """Forget the writes of a signature, whose next call then counts as its first."""
        self._written.pop(key, None)

    def learn_from_call(
        self,
        key: Signature,
        original: Callable[..., Any],
        fallback: Fallback,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Have the original answer a call, and observe whether it writes nothing: the plan may then answer the next.

        Each signature is observed once.
        """
        if key in self._reading or key in self._written:
            return original(fallback, args, kwargs)
        snapshot = self.take_snapshot(args, kwargs, closely=True)
        answer = original(fallback, args, kwargs)
        self._reading[key] = snapshot is not None and not snapshot.inputs_written() and not snapshot.own_written()
        forget_oldest(self._reading, MAX_READING)
        return answer

    def guard_overlaps(self, key: Signature, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return `call`, made to raise if its inputs share memory with tensors that such calls write to.

        Raises (on call):
            OverlapError: they do.
        """
        if key not in self._written:
            return call

        def call_or_raise(*args: Any, **kwargs: Any) -> Any:
            if not self.may_go_on(key, args, kwargs):
                raise OverlapError(str(OVERLAPS))
            return call(*args, **kwargs)

        return call_or_raise

    def _meet(self, own: list[Slot], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an input shares memory with one of the module's tensors."""
        inputs = pytree.tensors((args, kwargs))
        input_storages = {place for tensor in inputs if (place := _place(tensor))}
        near = [tensor for tensor in _tensors(own) if _place(tensor) in input_storages]
        return any(overlap_of([tensor, one]) is not None for tensor in near for one in inputs)


class TensorSnapshot:
    """Inputs and a module's own tensors before a call, to be compared after it."""

    def __init__(self, inputs: list[torch.Tensor], own: list[Slot], *, closely: bool) -> None:
        self.own = own
        self._counted = [(tensor, count_writes(tensor)) for tensor in inputs]
        self._values = [(t, t.detach().clone()) for t, count in self._counted if closely or count is None]
        self._counts = [*map(_slot_version, own)]

    def inputs_written(self) -> bool:
        """Whether an input holds other values, or was written to."""
        if any(count_writes(tensor) != count for tensor, count in self._counted):
            return True
        return not all(pytree.equal(tensor, values) for tensor, values in self._values)

    def own_written(self) -> list[Slot]:
        """List the module's own tensors that were written to or replaced, and those that keep no count of writes."""
        pairs = zip(self.own, self._counts, strict=True)
        return [slot for slot, was in pairs if was[1] is None or _slot_version(slot) != was]


def _slots(module: torch.nn.Module | None) -> list[Slot]:
    parts = module.modules() if module is not None else ()
    dicts = (holder for part in parts for holder in (part._parameters, part._buffers))
    return [(holder, name) for holder in dicts for name, tensor in holder.items() if tensor is not None]


def _tensors(slots: list[Slot]) -> list[torch.Tensor]:
    return [tensor for slot in slots if (tensor := _tensor(slot)) is not None]


def _tensor(slot: Slot) -> torch.Tensor | None:
    try:
        found: torch.Tensor | None = slot[0][slot[1]]
    except KeyError:  # it was removed
        return None
    return found


def _place(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # it is sparse, or stands for another one
        return 0


def _slot_version(slot: Slot) -> tuple[int, int | None]:
    """Return the identity of the tensor in a slot, and the number of writes to it."""
    tensor = _tensor(slot)
    return id(tensor), count_writes(tensor) if tensor is not None else None


class InputSnapshot:
    """The state of the model and of a call's inputs, kept before the call.

    A plan of several pieces may fail at a later one, when an earlier one has written already. Only first calls of a
    signature are kept so: copying on each call would cost more than most plans gain.
    """

    def __init__(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._state: State | None = None
        try:
            self._state = State.from_call(original, args, kwargs)
        except Exception as error:  # an input may be of any kind, and memory may be short: the call goes on without
            logger.debug("torchwise: the inputs and state of a first call could not be copied", exc_info=error)

    def __call__(self) -> None:
        """Restore the places written to since, and release the copies."""
        state, self._state = self._state, None
        try:
            if state is not None:
                state.restore()
        except Exception as error:  # a tensor may have become of any kind, and the original must still answer
            logger.warning("torchwise: the writes of a plan before its failure cannot be undone", exc_info=error)
