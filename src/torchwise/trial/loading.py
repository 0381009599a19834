"""A workload in a worker, and a live model on its way there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchwise.measure import turns
from torchwise.trial.job import Job
from torchwise.workload import Workload, target
from torchwise.workload.loss import loss_of
from torchwise.workload.workload import Example


def load(job: Job) -> Workload:
    """Build the job's workload on its device, with the user's process settings in force.

    Raises:
        InputError: the target or its factory cannot be used.
    """
    import torch

    if job.settings is not None:
        job.settings.apply()
    turns.join(job.workload.device)
    if job.source is None:
        return target.load(job.workload.target, device=job.workload.device, seed=job.workload.seed)
    # Written moments ago by the process that started this one, into a folder of its own; never from a store.
    with open(job.source, "rb") as file:
        call, examples, name = torch.load(file, map_location="cpu", weights_only=False)
    return Workload(call, examples, name).to(job.workload.device)


def save(workload: Workload, path: str) -> None:
    """Write a live model and its inputs for `load`, classes of the user's script and notebook included.

    Raises:
        WorkloadError: the model or its inputs cannot be pickled.
    """
    import cloudpickle
    import torch

    from torchwise.errors import WorkloadError

    try:
        torch.save((workload.call, workload.examples, workload.name), path, pickle_module=cloudpickle)
    except Exception as error:  # pickling runs the user's own hooks, which may raise anything
        raise WorkloadError(
            f"the model cannot be sent to a worker process ({type(error).__name__}: {error}); "
            "give a factory instead, as package.module:factory or path/file.py:factory"
        ) from error


def runner(call: Callable[..., Any], example: Example, mode: str, *, restore_inputs: bool = False) -> Callable[[], Any]:
    """Return one call on one example, as it is timed: in training, with the backward pass.

    Args:
        call: what is run.
        example: its inputs; copied once, so that the example itself is never written.
        mode: "inference" or "training".
        restore_inputs: whether to write the inputs anew before each call, for a model that writes to them.
    """
    import torch

    live = example.clone()
    args, kwargs = live.args, dict(live.kwargs)

    def infer() -> Any:
        return call(*args, **kwargs)

    def train() -> Any:
        outputs = call(*args, **kwargs)
        if (loss := loss_of(outputs)) is not None:
            loss.backward()
        if isinstance(call, torch.nn.Module):
            call.zero_grad(set_to_none=True)
        return outputs

    run = train if mode == "training" else infer
    return _restoring(run, live, example) if restore_inputs else run


def _restoring(run: Callable[[], Any], live: Example, example: Example) -> Callable[[], Any]:
    from torchwise.workload import trees

    written = trees.tensors((live.args, dict(live.kwargs)))
    originals = trees.tensors((example.args, dict(example.kwargs)))

    def restored() -> Any:
        for tensor, original in zip(written, originals, strict=True):
            trees.write(tensor.detach(), original)
        return run()

    return restored
