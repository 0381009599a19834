"""Loops of a simulation and steps of a training, many kernels to a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

    from torchwise.compile.cuda_graphs.step_graph import CapturedStep
    from torchwise.runtime.rollout import Rollout

T = TypeVar("T")


def rollout(step: Callable[[Any], Any], state: Any, steps: int, every: int | None = None) -> Any:
    """Take `steps` steps of a simulation.

    On CUDA, if no gradient is needed, many iterations run as one CUDA graph, with fresh noise in each. Recording must
    pay within this one call, so it is done from about twenty steps on. To call again and again without another
    recording, keep a `captured_loop`. Otherwise, and if a step cannot be captured (the log says why), it is a plain
    loop, through which gradients flow.

    Args:
        step: takes a state and returns the next, of the same structure, shapes, dtypes and devices. It is a function, a
            module, or a result of `apply`.
        state: a tensor, or tuples, lists, dicts and dataclasses of tensors. It is not changed.
        steps: number of steps, at least 0.
        every: keep the state after each so many steps, on its device.

    Returns:
        The last state, or with `every` the pair of the last state and the list of the states kept.

    Raises:
        InputError: a number is out of range, or the step returns another kind of state than it is given.
    """
    from torchwise.runtime.rollout import Rollout

    return Rollout(step, every, once=True)(state, steps)


def captured_loop(step: Callable[[Any], Any], every: int | None = None) -> Rollout:
    """Return a loop that runs `step` over and over. Called with `(state, steps)`, it answers as `rollout` does.

    Recordings are kept for the next call with such a state.

    Args:
        step: as for `rollout`.
        every: as for `rollout`.

    Raises:
        InputError: `every` is less than 1.
    """
    from torchwise.runtime.rollout import Rollout

    return Rollout(step, every)


def captured_step(
    step: Callable[..., Any],
    modules: torch.nn.Module | Sequence[torch.nn.Module] = (),
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = (),
    scalers: torch.amp.GradScaler | Sequence[torch.amp.GradScaler] = (),
) -> CapturedStep:
    """Return `step(*batch)`, a whole training step, so that on CUDA each call is one launch of one CUDA graph.

    ::

        optimizer = torch.optim.AdamW(model.parameters(), capturable=True, fused=True)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        step = torchwise.captured_step(step, model, optimizer)

    The first call of each kind of batch runs as written, the second is recorded. Each is exactly one training step. On
    the CPU every call runs as written. `CapturedStep` describes the changes that it notices, the state of `.grad`, and
    the limits of a step.

    Args:
        step: takes the batch, tensors in any nesting, and returns any nesting of tensors, which come back detached.
        modules: the module or modules that it trains, or whose buffers it writes to.
        optimizers: the optimizer or optimizers that it steps, with `capturable=True` if they have that.
        scalers: the `torch.amp.GradScaler`s that it uses. Their optimizers must be fused.

    Raises:
        UnsupportedError: on a call, if the step cannot be captured. The message says why, where, and the way out.
    """
    from torchwise.compile.cuda_graphs.step_graph import CapturedStep

    return CapturedStep(step, _several(modules), _several(optimizers), _several(scalers))


def _several(given: T | Sequence[T]) -> Sequence[T]:
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)  # type: ignore[return-value]
