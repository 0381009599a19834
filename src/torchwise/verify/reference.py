"""The reference: the model in float64, drawing the same random numbers that eager draws in its own precision.

Source of the idea of a float64 reference: PyTorch's own benchmarks (`same` in `torch/_dynamo/utils.py`).

If a candidate's numbers fail on another device, float64 on the CPU gives a third opinion. Eager and its float64
reference run the same kernels of a device. If one of those is wrong, both are, in the same way, and a candidate without
that kernel looks wrong. An example is the gradient of `avg_pool2d` on CUDA, for padded inputs whose channels lie
innermost (torch 2.11, https://github.com/pytorch/pytorch/issues/188344). Two float64s that differ show it: rounding
does not explain that. The candidate fails all the same, as it differs from the model on this device. But the report
should say who is right.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from torchwise._torch.dispatch import EagerMode
from torchwise.records import Check, CheckName, Outcome
from torchwise.verify.deviation import errors_of, is_rounded, tolerance_of, widen_tensor
from torchwise.verify.observe import Observation, observe
from torchwise.verify.perturbation import PerturbRounding
from torchwise.workload.deep_copy import deep_copy
from torchwise.workload.step_state import loss_of
from torchwise.workload.workload import Example

WIDE_ARRAYS = {"f": "float64", "c": "complex128"}
"""Dtype of the reference for arrays of NumPy, by the kind of the array's dtype."""


class Reference:
    """A call in float64, observed with the answers that it gives without a dispatch mode.

    Some operators answer otherwise under one (complex `linalg.pinv` and `linalg.lstsq`,
    https://github.com/pytorch/pytorch/issues/198118). So the mode that draws eager's random numbers is left out if
    nothing needs it. If something does, there is no reference unless eager answers the same under a mode. A call that
    is in float64 already, and draws, is its own reference: no other would draw the same.

    Args:
        call: a module or a function.
        training: whether to observe gradients too.
        device: the device to run on, or None for the call's own.
    """

    def __init__(self, call: Callable[..., Any], *, training: bool = False, device: str | None = None) -> None:
        try:
            self._call: Callable[..., Any] | None = float64_of(call, device)
        except Exception:  # a module may refuse to be copied or widened in any way it likes
            self._call = None
        self._eager = call if device is None else self._call
        self._training = training
        self._around: Callable[[], AbstractContextManager[None]] | None = None
        self._is_void = False

    def observe_example(
        self, example: Example, seed: int, calls: int = 1, loss: Callable[[Any], torch.Tensor | None] = loss_of
    ) -> Observation | None:
        """Observe successive calls of the reference on an example, or return None if there is none."""
        wide = widen(example)
        if self._around is None:
            is_own = is_wide(example.tensors(), self._eager)
            self._around = find_context(
                lambda mode: self._observe_call(self._call, wide, seed, calls, mode, loss), is_wide=is_own
            )
            self._is_void = self._around is as_reference and not self._is_alike_under_a_mode(example, seed, calls)
        return None if self._is_void else self._observe_call(self._call, wide, seed, calls, self._around(), loss)

    def _is_alike_under_a_mode(self, example: Example, seed: int, calls: int) -> bool:
        plain, inside = (
            self._observe_call(self._eager, example, seed, calls, under)
            for under in (contextlib.nullcontext(), PerturbRounding(0.0))
        )
        return plain is None or inside is None or is_alike(plain, inside)

    def _observe_call(
        self,
        call: Callable[..., Any] | None,
        example: Example,
        seed: int,
        calls: int,
        under: AbstractContextManager[Any],
        loss: Callable[[Any], torch.Tensor | None] = loss_of,
    ) -> Observation | None:
        if call is None:
            return None
        try:
            return observe(call, call, example, seed=seed, training=self._training, under=under, calls=calls, loss=loss)
        except Exception:  # float64 is a courtesy of the model: it may hard-code a dtype anywhere
            return None


def find_context(
    run: Callable[[AbstractContextManager[None]], Any], *, is_wide: bool
) -> Callable[[], AbstractContextManager[None]]:
    """Run a reference once in a context, and return the context that it has to run in: the least that it needs.

    `is_wide` says that it computes in float64 as it is written.
    """
    noise = MatchedNoise()
    run(as_reference(noise))
    if noise.has_drawn and is_wide:
        return contextlib.nullcontext
    return as_reference if noise.has_drawn or noise.has_widened else in_float64


def is_wide(tensors: Iterable[torch.Tensor], *modules: Any) -> bool:
    """Whether all of these are in float64 already, and there are any."""
    state = (t for m in modules if isinstance(m, torch.nn.Module) for t in (*m.parameters(), *m.buffers()))
    used = [t for t in (*tensors, *state) if is_rounded(t)]
    return bool(used) and all(widen_tensor(t).dtype is t.dtype for t in used)


def is_alike(plain: Observation, inside: Observation) -> bool:
    """Whether two observations of one call differ by no more than rounding: that under a mode, and that without."""
    found = dict(inside.leaves)
    return all(
        isinstance(other := found.get(name), torch.Tensor)
        and other.shape == leaf.shape
        and errors_of(other, leaf).rms <= tolerance_of(leaf, None, has_reference=False)
        for name, leaf in plain.leaves
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
    )


def float64_of(call: Callable[..., Any], device: str | None = None) -> Callable[..., Any]:
    """Return a copy of a module in float64 / complex128, or a function as it is, as its inputs decide its precision.

    Raises:
        WorkloadError: it cannot be copied. The caller falls back to eager.
    """
    if not isinstance(call, torch.nn.Module):
        return call
    reference: torch.nn.Module = deep_copy(
        call, convert=lambda tensor: widen_tensor(tensor.to(device) if device else tensor)
    )
    if device:
        reference.to(device)  # which a class may override
    reference._apply(widen_tensor)  # which a class may override, too
    return reference


def widen(example: Example) -> Example:
    """Return the example in float64 / complex128. Integers and booleans stay."""
    wide: Example = example.clone(widen_tensor)
    return wide.map_tensors(lambda t: t, lambda array: array.astype(WIDE_ARRAYS.get(array.dtype.kind, array.dtype)))


@contextlib.contextmanager
def as_reference(noise: MatchedNoise | None = None) -> Iterator[None]:
    """Run the body in float64 throughout, with random numbers drawn in float32 and then widened.

    It changes PyTorch's default dtype, which all threads share. So it is for processes that only verify.
    """
    with in_float64(), noise or MatchedNoise():
        yield


def as_reference_beside_others() -> MatchedNoise:
    """Return a context that does the same for this thread alone, as a program's other threads go on meanwhile.

    Numbers that are made in the default dtype are rounded to it before they are widened. Both sides of a comparison
    see the same ones.
    """
    return MatchedNoise(widens_made=True)


@contextlib.contextmanager
def in_float64() -> Iterator[None]:
    """Make float64 PyTorch's default dtype in the body."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class MatchedNoise(EagerMode):
    """Draws float64 random numbers in float32: then one seed gives eager and reference the same noise.

    PyTorch's generators give other numbers for another dtype. Without this, a stochastic model could be compared with
    its reference in distribution only.

    Operators that request a narrower dtype by name get float64 too. Otherwise `outputs.float()` before a loss, written
    for autocast, would round the reference, or leave it in two dtypes that no backward pass takes.

    Args:
        widens_made: whether to widen the tensors that are made in PyTorch's default dtype as well.
    """

    def __init__(self, *, widens_made: bool = False) -> None:
        super().__init__()
        self._widens_made = widens_made
        self.has_drawn = self.has_widened = False
        """Whether an operator drew in float32 instead, and whether one requested a narrower dtype."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Redirect the operators that draw, and pass every other on."""
        kwargs = kwargs or {}
        drawn = _draw_in_float32(func, args, kwargs)
        if drawn is not None:
            self.has_drawn = True
            return drawn
        if kwargs.get("dtype") in _wide():
            self.has_widened = True
            kwargs = {**kwargs, "dtype": _wide()[kwargs["dtype"]]}
        result = func(*args, **kwargs)
        is_made = self._widens_made and isinstance(result, torch.Tensor) and _is_made(func, args, result)
        return widen_tensor(result) if is_made else result


def _is_made(func: Any, args: Any, result: torch.Tensor) -> bool:
    """Return whether an operator made a tensor in the default dtype: of a literal, of whole numbers, or of nothing."""
    if func._schema.name == "aten::lift_fresh":  # `torch.tensor(0.5)`
        return result.dtype in _wide()
    return result.dtype in _wide() and not any(isinstance(arg, torch.Tensor) and is_rounded(arg) for arg in args)


def _draw_in_float32(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an operator that draws, drawn in float32, or None for any other operator."""
    name = func._schema.name.removeprefix("aten::")
    if name in _LIKE and (dtype := kwargs.get("dtype") or args[0].dtype) in (torch.float64, *_wide()):
        return widen_tensor(func(args[0], *args[1:], **{**kwargs, "dtype": _draw_dtype(dtype)}))
    if name in _IN_PLACE and args[0].dtype is torch.float64:
        drawn = func(args[0].float(), *_narrow_args(args[1:]), **kwargs)
        return args[0].copy_(drawn)
    if name == "normal" and "dtype" not in [argument.name for argument in func._schema.arguments]:
        return widen_tensor(func(*_narrow_args(args), **kwargs))
    if name in _FACTORIES and (dtype := kwargs.get("dtype") or torch.float64) in (torch.float64, *_wide()):
        return widen_tensor(func(*args, **{**kwargs, "dtype": _draw_dtype(dtype)}))
    if name == "bernoulli" and args[0].dtype is torch.float64:
        return func(args[0].float(), *args[1:], **kwargs).double()
    if name == "native_dropout" and args[0].dtype is torch.float64:
        kept, mask = func(args[0].float(), *args[1:], **kwargs)
        del kept
        scale = 1.0 / (1.0 - args[1]) if args[1] < 1 else 0.0
        return args[0] * mask * scale, mask
    return None


_LIKE = {"randn_like", "rand_like"}
_IN_PLACE = {"normal_", "uniform_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"}
_FACTORIES = {"randn", "rand", "normal"}


@functools.cache
def _wide() -> dict[Any, torch.dtype]:
    """Return the dtype of the reference for each that is narrower."""
    narrow = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64)
    return {**narrow, torch.complex64: torch.complex128, torch.complex32: torch.complex128}


def _draw_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which eager draws when the reference requests this one."""
    return torch.float32 if dtype is torch.float64 else dtype


def _narrow_args(args: Any) -> Any:
    return [a.float() if isinstance(a, torch.Tensor) and a.dtype is torch.float64 else a for a in args]


NUMBERS = (CheckName.VALUES, CheckName.GRADIENTS, CheckName.GRADIENT_SCALE)
"""Names of the checks that compare numbers with the reference."""
MAX_S = 0.1
"""Seconds that float64 may take on the device: a CPU takes hundreds of times as long as a GPU made for it."""
LARGEST = 2**31
"""Bytes of a model in float64 that may be copied to the host's memory."""
DIFFERENT = 1e-6
"""Relative difference of two float64s that no rounding explains."""
AGREES, WORSE = 5e-2, 10.0
"""Relative error from the CPU's float64 up to which a candidate is right, and times it that the device's is wrong."""
NOTHING = 1e-6
"""Size of a tensor, relative to all tensors, up to which it is a rounding of zero and says nothing."""


def is_doubtful(check: Check, example: Example, tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a check failed over numbers of a device other than the CPU, for a model that the host can hold.

    `tensors` are the model's parameters and buffers.
    """
    if check.outcome is not Outcome.FAIL or check.name not in NUMBERS:
        return False
    state = list(tensors)
    used = [*state, *example.tensors()]
    return not is_on_cpu(used) and sum(8 * t.numel() for t in state) <= LARGEST


def is_on_cpu(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether there is no other device to doubt."""
    return all(tensor.device.type == "cpu" for tensor in tensors)


def to_cpu(example: Example) -> Example:
    """Return the example with its tensors on the CPU."""
    return example.clone(lambda tensor: tensor.cpu())


def compare_with_cpu(
    check: Check,
    observe_candidate: Callable[[], Observation],
    observe_here: Callable[[], Observation | None],
    observe_on_cpu: Callable[[], Observation | None],
) -> Check:
    """Return a failed check, with the CPU's answer in its detail if that speaks against the device.

    The last two functions observe float64, on the device and on the CPU, or return None if it cannot run.
    """
    try:
        start = time.perf_counter()
        reference = _numbers(observe_here())
        took = time.perf_counter() - start  # copying to the CPU has waited for the device
        if not reference or took > MAX_S:
            return check
        exact = _numbers(observe_on_cpu(), "cpu")
        candidate = _numbers(observe_candidate())
    except Exception:  # a model may insist on its device, or refuse float64, in any way, and memory may be full
        return check
    whole = max((float(leaf.abs().square().mean().sqrt()) for leaf in exact.values()), default=0.0)
    judged = [name for name in exact if float(exact[name].abs().square().mean().sqrt()) > NOTHING * whole]
    wrong = {name: _relative_error(reference.get(name), exact[name]) for name in judged}
    name = max(wrong, key=lambda name: wrong[name], default=None)
    if name is None or not DIFFERENT < wrong[name] < math.inf:
        return check
    right = max(_relative_error(candidate.get(other), exact[other]) for other in judged)
    if not (right < AGREES and WORSE * right < wrong[name]):
        return check
    return replace(
        check,
        detail=f"{check.detail}. Yet it is eager that is wrong here: compared with float64 on the CPU, {name} is off "
        f"by {wrong[name]:.2g} in float64 on this device, and nothing by more than {right:.2g} in this plan",
    )


def _numbers(observation: Observation | None, device: str | None = None) -> dict[str, torch.Tensor]:
    """Return the tensors that can be off by a little, in float64 on the CPU.

    Raises:
        ValueError: one is not on the device that they should be on.
    """
    leaves = (
        [(name, leaf) for name, leaf in observation.leaves if isinstance(leaf, torch.Tensor)] if observation else []
    )
    if device and any(leaf.device.type != device for _, leaf in leaves):
        raise ValueError(f"the model keeps a tensor elsewhere than on {device}")
    numbers = [(n, t) for n, t in leaves if t.layout is torch.strided and not t.is_nested and t.numel()]
    return {n: widen_tensor(t.cpu()) for n, t in numbers if t.is_floating_point() or t.is_complex()}


def _relative_error(tensor: torch.Tensor | None, exact: torch.Tensor) -> float:
    """Return the relative error (root mean square). It is infinite if the shape or the finite elements differ."""
    if tensor is None or tensor.shape != exact.shape or not torch.equal(tensor.isfinite(), exact.isfinite()):
        return math.inf
    return errors_of(tensor, exact).rms
