"""Run a training step only to observe it: from one state, again and again, as written or by a plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchwise._torch.modules import Dropout
from torchwise.verify.deviation import widen_tensor
from torchwise.verify.observe import Observation
from torchwise.verify.perturbation import PerturbRounding
from torchwise.verify.reference import as_reference, find_context, is_alike, is_wide, widen
from torchwise.workload import layouts, pytree
from torchwise.workload.train_step import TrainStep
from torchwise.workload.workload import Example

MAX_SKIPPED = 40
"""Maximum number of times that a scale is halved: 2 to this power is beyond the first scale of any scaler."""
QUIET = 1e-3
"""Relative size of an element of a gradient up to which its sign may be that of a rounding."""

Slot = tuple[int, str]
"""Which parameter's state, and under which key of it."""

Maker = Callable[[TrainStep], Callable[..., Any]]
"""Makes a function that takes a step by a plan. It may change the step."""


@dataclass(frozen=True, slots=True)
class StateAfter:
    """The state after some steps.

    Attributes:
        state: how parameters moved, and all other state, by name.
        of: the parameter that some of the state belongs to.
        quiet: for each parameter the elements whose gradients were nearly zero at some step. An optimizer that divides
            by their size turns a rounding into an update of either sign.
        slots: the parameter and the key of each entry of the optimizer's state: `{name: (0, "exp_avg")}`.
        updates: the names of the state that says how parameters moved.
    """

    state: dict[str, Any]
    of: dict[str, str]
    quiet: dict[str, torch.Tensor]
    slots: dict[str, Slot] = field(default_factory=dict)
    updates: frozenset[str] = frozenset()

    def drop_slots(self) -> StateAfter:
        """Return the state that can be compared if the optimizer's state cannot."""
        return replace(self, state={n: leaf for n, leaf in self.state.items() if n not in self.slots}, slots={})

    def forms(self) -> dict[Slot, str]:
        """Return each slot without the numbers in it: the shapes of its tensors, and its counts."""
        found: dict[Slot, list[str]] = {}
        for name, slot in self.slots.items():
            found.setdefault(slot, []).append(f"{name} {_form(self.state[name])}")
        return {slot: ", ".join(parts) for slot, parts in found.items()}

    def leaves(self) -> dict[str, Any]:
        """Return the state by name, with the form of each slot."""
        return {**self.state, **{form_of(slot): form for slot, form in self.forms().items()}}


def name_gradient(parameter: str) -> str:
    """Return the name of a parameter's gradient among the observed leaves."""
    return f"gradient of {parameter}"


class StepRunner:
    """A copy of a training step, and how its next step is taken.

    Args:
        base: the step to copy, which is never stepped. Its optimizer has its state already.
        make: the plan's way to take steps, or None to take them as written.
    """

    def __init__(self, base: TrainStep, make: Maker | None = None) -> None:
        self.step = base.copy()
        self.call: Callable[..., Any] = make(self.step) if make else self.step
        self._context: AbstractContextManager[Any] | None = None
        self._restore = self.step.snapshot()
        self._start = {name: p.detach().clone() for name, p in self.list_parameters(averages=True)}

    def settle(self, examples: Sequence[Example]) -> None:
        """Let the scaler, if there is one, find a scale at which all gradients are finite, and start from that.

        A scaler begins far too high, and skips the first steps of a training: that is no fault of a candidate.
        """
        scaler = self.step.scaler
        if scaler is None or not scaler.is_enabled():
            return
        self.restart(seed=0)
        scale = scaler.get_scale()
        for _ in range(MAX_SKIPPED):
            if min(self._scales(examples, scale)) >= scale:
                break
            scale /= 2
        self.restart(seed=0)
        scaler.update(scale)
        self._restore = self.step.snapshot()

    def _scales(self, examples: Sequence[Example], scale: float) -> Iterator[float]:
        """Yield the new scale after a step on each example."""
        scaler = self.step.scaler
        assert scaler is not None
        for example in examples:
            self.restart(seed=0)
            scaler.update(scale)
            self.take(example)
            yield scaler.get_scale()

    def restart(self, seed: int | None) -> None:
        """Go back to the state of the base, without gradients. Seed all generators, unless the seed is None."""
        self._restore()
        for _, parameter in self.list_parameters():
            parameter.grad = None  # a step clears those that its optimizer trains, and no others
        if seed is not None:
            torch.manual_seed(seed)

    def take(self, example: Example) -> torch.Tensor:
        """Take one step. Return its loss."""
        batch = example.clone()
        with torch.enable_grad(), self._step_context():
            loss: torch.Tensor = self.call(*batch.args, **batch.kwargs)
        return loss

    def loss_at(self, example: Example) -> torch.Tensor:
        """Return the loss of a batch as eager has it with the weights of now, without a step."""
        batch = example.clone()
        with torch.enable_grad(), self._step_context():
            return self.step.loss_of(*batch.args).detach()

    def gradients(self, example: Example, seed: int) -> Observation:
        """Take one step from the base. Return its loss and the gradients that it left."""
        self.restart(seed)
        return self.observe_gradients(self.take(example))

    def observe_gradients(self, loss: torch.Tensor) -> Observation:
        """Return a step's loss, and the gradients that it left."""
        gradients = [(name, p.grad) for name, p in self.list_parameters() if p.requires_grad]
        found = [(name_gradient(name), None if grad is None else _dense(grad)) for name, grad in gradients]
        return Observation((("loss", loss.detach().clone()), *found), frozenset())

    def answer(self, example: Example) -> list[Any]:
        """Take one step from the base, with the generators as they are. Return its loss and gradients."""
        self.restart(None)
        loss = self.take(example)
        return [loss.detach().clone(), *(_dense(p.grad) for _, p in self.list_parameters() if p.grad is not None)]

    def take_steps(self, examples: Sequence[Example], seed: int) -> StateAfter:
        """Take one step on each example from the base. Return how parameters moved, and all other state.

        If there are schedulers, the learning rate is halved before the last step: a plan that holds it constant shows
        so.
        """
        self.restart(seed)
        trained = {id(p): number for number, p in enumerate(self.step.trained())}
        quiet: dict[str, torch.Tensor] = {}
        for number, example in enumerate(examples, 1):
            if number == len(examples) and self.step.schedulers:
                self._halve_rates()
            self.take(example)
            for name, gradient in ((n, p.grad) for n, p in self.list_parameters() if p.grad is not None):
                quiet[name] = quiet.get(name, False) | _is_quiet(gradient)
        found: dict[str, Any] = {}
        of: dict[str, str] = {}
        slots: dict[str, Slot] = {}
        updates: set[str] = set()
        for name, parameter in self.list_parameters(averages=True):
            if id(parameter) in trained or name.startswith("ema."):
                update = f"update of {name}"
                found[update] = _dense(parameter).double() - _dense(self._start[name]).double()
                of[update] = name
                updates.add(update)
            else:
                found[f"{name}, which is not trained,"] = (
                    "as it was" if pytree.equal(parameter, self._start[name]) else "moved"
                )
        for name, module in self.step.modules().items():
            parts = [
                (n + part, t) for n, b in module.named_buffers() for part, t in layouts.list_strided_parts(b.detach())
            ]
            found |= {f"{name} buffer {part}": tensor.clone() for part, tensor in parts}
        names = {trained[id(p)]: name for name, p in self.list_parameters() if id(p) in trained}
        for number, parameter in enumerate(self.step.trained()):
            for key, value in self.step.optimizer.state.get(parameter, {}).items():
                for path, tensor in pytree.list_named_leaves(value, str(key)):
                    leaf = f"optimizer's {path} of parameter {number}"
                    found[leaf], of[leaf], slots[leaf] = _copy_value(tensor), names.get(number, ""), (number, str(key))
        return StateAfter(found, of, quiet, slots, frozenset(updates))

    def _halve_rates(self) -> None:
        for group in self.step.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].mul_(0.5)
            else:
                group["lr"] *= 0.5

    def losses(self, examples: Sequence[Example], seed: int) -> list[float]:
        """Take one step on each example from the base. Return the losses, read after the last step."""
        self.restart(seed)
        kept = [self.take(example) for example in examples]
        return [float(loss) for loss in kept]

    def list_parameter_names(self) -> list[str]:
        """List the names of the parameters."""
        return [name for name, _ in self.list_parameters()]

    def list_parameters(self, *, averages: bool = False) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the parameters of the step's modules by name, with their running averages if asked for."""
        return [
            (f"{name}.{n}" if name != "model" else n, p)
            for name, module in self.step.modules().items()
            if name != "ema" or averages
            for n, p in module.named_parameters()
        ]

    @contextlib.contextmanager
    def inside(self, context: AbstractContextManager[Any]) -> Iterator[StepRunner]:
        """Take steps inside a context, such as a mode."""
        self._context = context
        try:
            yield self
        finally:
            self._context = None

    def _step_context(self) -> AbstractContextManager[Any]:
        return self._context or contextlib.nullcontext()


class ReferenceStepRunner(StepRunner):
    """The step in float64, without autocast and scaler, drawing the random numbers that eager draws on its device.

    Raises:
        Exception: any error of the copy. There is no reference then.
    """

    def __init__(self, base: TrainStep, device: str | None = None) -> None:
        super().__init__(_float64_of(base, device))
        self._needed: Callable[[], AbstractContextManager[Any]] = as_reference

    @classmethod
    def from_step(cls, base: TrainStep, example: Example, device: str | None = None) -> ReferenceStepRunner | None:
        """Return the step in float64, without a mode that it can do without (see `verify.reference.Reference`).

        It is tried on the example, and None if it cannot be taken, or needs a mode in which eager answers otherwise.
        """
        try:
            found = cls(base, device)
            is_own = base.autocast is None and is_wide(example.tensors(), *base.modules().values())
            found._needed = find_context(lambda mode: found._try_in_mode(example, mode), is_wide=is_own)
            found.gradients(example, seed=0)
            if found._needed is as_reference and not (device or _is_alike_under_a_mode(StepRunner(base), example)):
                return None
        except Exception:  # a model may refuse float64 in any way, and the most precise eager replaces it
            return None
        return found

    def take(self, example: Example) -> torch.Tensor:
        """Take one step in float64. Return its loss."""
        return super().take(widen(example))

    def _step_context(self) -> AbstractContextManager[Any]:
        return self._context or self._needed()

    def _try_in_mode(self, example: Example, mode: AbstractContextManager[Any]) -> None:
        with self.inside(mode):
            self.gradients(example, seed=0)


def _is_alike_under_a_mode(eager: StepRunner, example: Example) -> bool:
    plain = eager.gradients(example, seed=0)
    with eager.inside(PerturbRounding(0.0)):
        return is_alike(plain, eager.gradients(example, seed=0))


def _float64_of(base: TrainStep, device: str | None) -> TrainStep:
    """Return a copy in float64. Counts of steps stay, as optimizers want them."""
    step = base.copy().to(device) if device else base.copy()
    step.autocast = step.scaler = None
    for module in step.modules().values():
        module._apply(widen_tensor)
    for state in step.optimizer.state.values():
        state.update({k: pytree.map_tensors(widen_tensor, v) for k, v in state.items() if k != "step"})
    return step


def quiet(base: TrainStep) -> tuple[TrainStep, bool]:
    """Return a copy in which PyTorch's own dropouts drop nothing, and whether there were any."""
    step, found = base.copy(), False
    for module in step.modules()["model"].modules():
        for name in ("p", "dropout"):
            kinds = (Dropout, torch.nn.MultiheadAttention, torch.nn.RNNBase)
            if isinstance(module, kinds) and isinstance(getattr(module, name, None), float):
                found |= getattr(module, name) > 0
                setattr(module, name, 0.0)
    return step, found


def form_of(slot: Slot) -> str:
    """Return the name of the form of a slot."""
    return f"the form of optimizer's {slot[1]} of parameter {slot[0]}"


def _form(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        is_count = value.numel() == 1 and not (value.is_floating_point() or value.is_complex())
        return f"{value.item()}" if is_count else f"of shape {tuple(value.shape)}"
    return repr(value) if isinstance(value, (bool, int, str, type(None))) else type(value).__name__


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a gradient or a parameter in one layout: how it lies in memory is the plan's own business."""
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    return dense.clone(memory_format=torch.contiguous_format)


def _copy_value(value: Any) -> Any:
    if type(value) is float:
        return torch.tensor(value, dtype=torch.float64)  # rounded as tensors are
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _is_quiet(gradient: torch.Tensor) -> torch.Tensor:
    """Return a mask of nonzero elements that roundings decide, as they are small relative to others of their tensor."""
    dense = widen_tensor(_dense(gradient)).abs()
    return (dense > 0) & (dense <= QUIET * dense.square().mean().sqrt())
