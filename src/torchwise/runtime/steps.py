"""Capture loops of a simulation and training steps as CUDA graphs, with many kernels per launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torchwise.keywords import checked_keywords

if TYPE_CHECKING:
    import torch

    from torchwise.compile.cuda_graphs.step_graph import CapturedStep
    from torchwise.runtime.rollout import Rollout

T = TypeVar("T")


@checked_keywords()
def rollout(step: Callable[[Any], Any], state: Any, steps: int, every: int | None = None) -> Any:
    """Run `steps` steps of a simulation.

    On CUDA, if no gradient is needed, many iterations run as one CUDA graph, with new random numbers in each. The graph
    is captured from about 20 steps on, as capturing must pay back within this call. For repeated calls, keep a
    `captured_loop`, which captures only once. In all other cases it is a plain Python loop, through which gradients
    flow. The same holds if a step cannot be captured. Then the log says why.

    Args:
        step: a function, a module, or a result of `apply`. It takes a state and returns the next one, with the same
            structure, shapes, dtypes and devices.
        state: a tensor, or tuples, lists, dicts and dataclasses of tensors. It is not changed.
        steps: number of steps, at least 0.
        every: interval in steps at which to keep the state, on its device, or None to keep only the last.

    Returns:
        The last state, or with `every` the pair of the last state and the list of kept states.

    Raises:
        InputError: a number is out of range, or the step returns a state of another structure, shape, dtype or device.
    """
    from torchwise.runtime.rollout import Rollout

    return Rollout(step, every, once=True)(state, steps)


@checked_keywords()
def captured_loop(step: Callable[[Any], Any], every: int | None = None) -> Rollout:
    """Return a loop over `step` for repeated calls. Called with `(state, steps)`, it returns the same as `rollout`.

    Captured graphs are reused for states of the same structure, shapes, dtypes and devices. At most 64 such forms have
    graphs at once. Another form then replaces the one used least recently, once its calls have taken enough steps.

    Args:
        step: as for `rollout`.
        every: as for `rollout`.

    Raises:
        InputError: `every` is less than 1.
    """
    from torchwise.runtime.rollout import Rollout

    return Rollout(step, every)


@checked_keywords()
def captured_step(
    step: Callable[..., Any],
    modules: torch.nn.Module | Sequence[torch.nn.Module] = (),
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] = (),
    scalers: torch.amp.GradScaler | Sequence[torch.amp.GradScaler] = (),
) -> CapturedStep:
    """Return a whole training step `step(*batch)`, so that each call on CUDA is the launch of one CUDA graph.

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

    For each signature of a batch, the first call runs in eager, and the second is captured. Each is exactly one
    training step. At most 64 signatures are captured, and others run in eager. On the CPU every call runs in eager.
    `CapturedStep` documents the changes that it detects, the state of `.grad`, and the limitations of a step.

    Args:
        step: takes a batch of nested tensors, and returns nested tensors, which are detached in the result.
        modules: the module or modules that it trains, or whose buffers it changes.
        optimizers: the optimizer or optimizers that it steps, with `capturable=True` if they have this option.
        scalers: the `torch.amp.GradScaler`s that it uses. Their optimizers must be fused.

    Raises:
        UnsupportedError: in a call, if the step cannot be captured. The message has the reason, line and solution.
    """
    from torchwise.compile.cuda_graphs.step_graph import CapturedStep

    return CapturedStep(step, _as_tuple(modules), _as_tuple(optimizers), _as_tuple(scalers))


def _as_tuple(value: T | Sequence[T]) -> Sequence[T]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)  # type: ignore[return-value]
