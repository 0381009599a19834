"""The traits of a training step, and its work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from torchwise._torch.dispatch import EagerMode
from torchwise._torch.modules import BatchNorm
from torchwise.compile.optimizer import forms_open
from torchwise.measure import device_lock
from torchwise.measure.profile import matrix_rate
from torchwise.plan.trait import DIVISIBLE_BY, Trait
from torchwise.records import StepWork
from torchwise.trial.error_origin import Instruments
from torchwise.workload import Workload, pytree
from torchwise.workload.train_step import TrainStep


def step_traits(workload: Workload) -> frozenset[Trait]:
    """Return the traits that only a training step has, and none for any other workload."""
    if workload.step is None:
        return frozenset()
    return frozenset({Trait.TRAINING_STEP, *forms_open(workload.step.optimizer), *_cuts(workload, workload.step)})


def _cuts(workload: Workload, step: TrainStep) -> Iterator[Trait]:
    if any(isinstance(module, BatchNorm) for module in step.model.modules()):
        return  # its statistics are those of the whole batch
    if step.has_hooks:
        return  # it would run once for each piece, and no candidate could show the effect, as copies have no hooks
    tensors = [t for example in workload.examples for t in pytree.tensors(example.args)]
    rows = [{t.shape[0] if t.dim() else 0 for t in pytree.tensors(example.args)} for example in workload.examples]
    if any(len(lengths) != 1 for lengths in rows):
        return  # a tensor of another length than the batch is no list of samples, such as a mask over positions
    for count, trait in DIVISIBLE_BY.items():
        if all(t.dim() and t.shape[0] % (count * step.accumulate) == 0 for t in tensors):
            yield trait


def work_of(workload: Workload, call: Callable[[], Any], instruments: Instruments) -> StepWork:
    """Return the work of one step, with the first example standing for all.

    Samples are the rows of the batch. Tokens are its elements if the first tensor holds whole numbers in two
    dimensions. FLOPs are those of matrix products and convolutions, forward and backward (`torch.utils.flop_counter`).
    The peak is the rate of large matrix products at the step's precision, measured here.
    """
    first = next(iter(pytree.tensors(workload.examples[0].args)), None)
    rows = int(first.shape[0]) if first is not None and first.dim() else 1
    is_text = first is not None and first.dim() == 2 and not first.is_floating_point()
    flops = instruments.use("how many FLOPs a step takes", lambda: flops_of(call), None)
    assert workload.step is not None
    parameters = workload.step.trained()
    dtype = workload.step.autocast or next((p.dtype for p in parameters), torch.float32)
    device = parameters[0].device.type if parameters else "cpu"
    with device_lock.alone():
        peak = matrix_rate(dtype, device)
    tokens = int(first.numel()) if is_text and first is not None else None
    return StepWork(samples=rows, tokens=tokens, flops=flops, peak_flops=peak)


def flops_of(call: Callable[[], Any]) -> float:
    """Run `call` once, and count the floating-point operations of its matrix products and convolutions."""
    counter = _Counter()
    with counter:
        call()
    return counter.flops


class _Counter(EagerMode):
    """Counts as `FlopCounterMode` does, but without hooks on modules, which fail if gradients are taken in a call."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        count = flop_registry.get(getattr(func, "overloadpacket", func))
        if count is not None:
            self.flops += float(count(*args, **(kwargs or {}), out_val=found))
        return found
