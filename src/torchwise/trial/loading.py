"""Load a workload in a worker, and send a live model there."""

from __future__ import annotations

import copy
import gc
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from torchwise._torch import inductor
from torchwise.errors import InputError, WorkloadError, format_error
from torchwise.measure import device_lock
from torchwise.trial import pickling
from torchwise.trial.job import Job
from torchwise.trial.loaded_model import take_kept
from torchwise.trial.pickling import methods_put_in, put_in
from torchwise.workload import Workload, target
from torchwise.workload.bounds import OutOfBoundsError, count_calls_within_bounds, ends_process
from torchwise.workload.module_state import Turns, from_one_state, make_continuing_call
from torchwise.workload.other_sizes import add_other_sizes, strip_marks
from torchwise.workload.step_state import check_loss, loss_of
from torchwise.workload.train_step import TrainStep
from torchwise.workload.workload import Example, check_device, scale_batch

MAX_CONTINUED = 16
"""Calls on a GPU after which a program starts over from its first state: each is made once more before, to be safe."""
MAX_SKIPPED = 40
"""Steps that a gradient scaler may skip until its scale fits: from 65,536 it halves sixteen times down to 1."""


def load(job: Job) -> Workload:
    """Build the job's workload on its device, with the user's process settings in force.

    A workload that an inspection in this worker has kept for it is not built again.

    Raises:
        InputError: the target or its factory cannot be used, or it is a training step and the mode is another.
    """
    if job.settings is not None:
        job.settings.apply()
    if job.cores:
        _limit_threads(len(job.cores))
    check_device(job.workload.device)
    device_lock.join(job.workload.device)
    workload = kept if (kept := take_kept()) is not None else _load_workload(job)
    if workload.step:
        workload = replace(workload, call=RepeatableStep.from_step(workload.step))
    if workload.step and job.workload.mode != "training":
        raise InputError("the workload is a training step, but mode is 'inference': use mode 'training'")
    if workload.step and job.workload.sizes == "varying":
        raise InputError("sizes is 'varying', but a training step takes batches: give batches of several sizes instead")
    batch = job.batch or job.workload.batch
    if batch is not None:
        return scale_batch(workload, batch)
    spec = job.workload
    is_searched = spec.sizes == "varying" and not spec.varying  # the inspection still reads the marks
    return workload if is_searched else add_other_sizes(strip_marks(workload), spec.varying)


def _limit_threads(cores: int) -> None:
    """Have operators and Inductor use no more threads than this worker has cores of its own.

    Both have counted the cores of the workers' server, from which this process was forked.
    """
    if torch.get_num_threads() > cores:
        torch.set_num_threads(cores)
    inductor.limit_compile_threads(cores)


class RepeatableStep(TrainStep):
    """A training step in a worker, whose schedules start over when it is taken more often than they provide for.

    `OneCycleLR` raises beyond its last step, and timing alone may take more steps than a training has left.
    """

    _start: list[Any]

    @classmethod
    def from_step(cls, step: TrainStep) -> RepeatableStep:
        """Return the step with schedules that start over from their present state."""
        found = cls.__new__(cls)
        vars(found).update(vars(step), _start=[copy.deepcopy(s.state_dict()) for s in step.schedulers])
        return found

    def advance(self) -> None:
        """Step the schedulers and the averaged weights.

        Schedulers raise only if even their start does.
        """
        try:
            super().advance()
        except Exception:  # a scheduler may raise anything
            for scheduler, start in zip(self.schedulers, self._start, strict=True):
                scheduler.load_state_dict(copy.deepcopy(start))
            super().advance()


def refuse_step(workload: Workload, who: str) -> None:
    """Refuse a training step, as `who` works on calls of a model.

    Raises:
        InputError: it is one.
    """
    if workload.step:
        raise InputError(
            f"the workload is a training step, but {who} needs calls of a model: give the model that it trains"
        )


def _load_workload(job: Job) -> Workload:
    if job.source is None:
        return target.load(job.workload.target, device=job.workload.device, seed=job.workload.seed)
    # Written moments ago by the process that started this one, into a folder of its own, and never from a store.
    # Tensors in attributes and objects, which `to` does not move, return to their former device.
    place = "cpu" if job.workload.device == "cpu" else None
    with open(job.source, "rb") as file:
        call, examples, name, methods = torch.load(file, map_location=place, weights_only=False)
    put_in(methods)
    _give_main_its_names()
    return Workload(call, examples, name).to(job.workload.device)


def _give_main_its_names() -> None:
    """Put the names that the user's script refers to into `__main__`, where Dynamo searches for them.

    Functions that travel by value bring their globals along, in dicts of their own.
    """
    names = vars(sys.modules["__main__"])
    for found in gc.get_objects():
        if type(found) is types.FunctionType and found.__module__ == "__main__":
            names.update({name: value for name, value in found.__globals__.items() if name not in names})


def save(workload: Workload, path: str) -> None:
    """Write a live model and its inputs for `load`, classes of the user's script and notebook included.

    Raises:
        WorkloadError: the model or its inputs cannot be pickled, or the loss of a step cannot be copied.
    """
    if workload.step:
        check_loss(workload.step)
    try:
        if workload.step and any(isinstance(m, torch.jit.ScriptModule) for m in _list_submodules(workload.step)):
            raise TypeError("a module of TorchScript is written apart from the optimizer of its weights")
        methods = methods_put_in(_objects(workload))
        torch.save((workload.call, workload.examples, workload.name, methods), path, pickle_module=pickling)
    except Exception as error:  # pickling runs the user's own hooks, which may raise anything
        raise WorkloadError(
            f"the model cannot be sent to a worker process ({format_error(error)}); "
            "give a factory instead, as package.module:factory or path/file.py:factory"
        ) from error


def _objects(workload: Workload) -> list[Any]:
    """List the objects whose classes are called: the modules, and the callable itself."""
    modules = workload.step.modules().values() if workload.step else filter(None, [workload.module])
    return [workload.call, *(part for module in modules for part in module.modules())]


def _list_submodules(step: TrainStep) -> list[Any]:
    return [part for module in step.modules().values() for part in module.modules()]


def with_optimizer_state(workload: Workload) -> Workload:
    """Take a training step as written, so that the optimizer has its state, from which all candidates start.

    A step that the scaler skips makes no state: then another one follows, at half the scale.

    Other workloads are not called.
    """
    if workload.step:
        scaler = workload.step.scaler
        for _ in range(MAX_SKIPPED):
            scale = scaler.get_scale() if scaler else 0.0
            example = workload.examples[0].clone()
            workload.step(*example.args, **example.kwargs)
            if scaler is None or scaler.get_scale() >= scale:
                break
    return workload


def runner(
    call: Callable[..., Any],
    example: Example,
    mode: str,
    *,
    original: Any = None,
    restores: bool = False,
    turns: Turns | None = None,
) -> Callable[[], Any]:
    """Return one call on one example in its timed form: in training, with the backward pass.

    Args:
        call: the callable to run.
        example: its inputs, copied once, so that the example itself is never written.
        mode: "inference" or "training".
        original: the model, whose state the call changes.
        restores: whether each call begins from the same state of the model and the inputs, if it changes them. Putting
            them back is timed with it, on both sides alike.
        turns: those of the model, if each call starts from the state that the call before left, as long as that is
            possible.
    """
    live = example.clone()

    def train(*args: Any, **kwargs: Any) -> Any:
        outputs = call(*args, **kwargs)
        if (loss := loss_of(outputs)) is not None:
            loss.backward()
        if isinstance(call, torch.nn.Module):
            call.zero_grad(set_to_none=True)
        return outputs

    run = train if mode == "training" else call
    args, kwargs = live.args, dict(live.kwargs)
    if turns is not None and not ends_process():
        return make_continuing_call(run, original, args, kwargs, turns)
    if turns is not None:  # a GPU ends the process where the CPU's operators raise an error
        turns.start_over(original)
        if not (most := count_calls_within_bounds(original, live, MAX_CONTINUED)):
            raise OutOfBoundsError("the model's state takes no further call")
        return make_continuing_call(run, original, args, kwargs, turns, most)
    return from_one_state(run, original, args, kwargs) if restores else lambda: run(*args, **kwargs)


def is_read_by_cpp(workload: Workload) -> bool:
    """Return whether a part is of a kind that PyTorch reads from its file in C++, where no audit event tells of it."""
    parts = [workload.call, *(workload.module.modules() if workload.module is not None else [])]
    return any(
        isinstance(one, (torch.jit.ScriptModule, torch.jit.ScriptFunction, torch.fx.GraphModule)) for one in parts
    )
