"""Apply a plan to a whole training step: compile, recompute, split or capture its parts.

The loop of the step stays that of `torchwise.workload.train_step`, and a plan replaces its parts. It trains the
original model, in place. Only the optimizer's form changes, and if the plan says so the memory format of weights and
the forward of blocks. `close` restores them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from torchwise._torch.modules import BatchNorm
from torchwise.compile.backends.inductor import compile as compiled_by_inductor
from torchwise.compile.cuda_graphs.step_graph import CapturedStep
from torchwise.compile.forward_entry import calls_forward_alone, find_repeated_blocks, find_stages
from torchwise.compile.io_casts import AUTOCAST
from torchwise.compile.memory_formats import lay_out, layout_for
from torchwise.compile.optimizer import TunedOptimizer, lay_states
from torchwise.compile.recompiles import Recompiles, count_recompiles
from torchwise.compile.settings import settings_for
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.workload import pytree
from torchwise.workload.train_step import Parts, TrainStep, find_sharded_modules, unwrap_ddp
from torchwise.workload.workload import Example

Realizer = Callable[[Callable[..., Any], Plan, Example], Callable[..., Any]]
"""Makes a plan callable for a model."""


class CompiledStep:
    """Takes training steps by a plan: called as the step it was made from, which it trains.

    Args:
        step: the step to train.
        plan: how to run it.
        example: a batch.
        device: "cpu" or "cuda".
        realizer: makes the part of the plan that is about the model alone callable.
        recompiles: counts recompiles for batches of a kind that was trained on before, and bounds them.

    Raises:
        UnsupportedError: this torch, or this step, lacks something that the plan needs.
    """

    def __init__(
        self,
        step: TrainStep,
        plan: Plan,
        example: Example,
        device: str,
        realizer: Realizer,
        recompiles: Recompiles | None = None,
    ) -> None:
        self._step = step
        self._recompiles = recompiles or Recompiles()
        self._undo = contextlib.ExitStack()
        try:
            self.parts = self._make_parts(plan, example, realizer)
            self._compute = self._make_compute(plan, device)
        except BaseException:  # raised again: the changes for the plan so far must be put back
            self.close()
            raise

    def __call__(self, *batch: Any) -> torch.Tensor:
        """Take one step, and return its loss, detached."""
        loss = self.compute(*batch)
        self._step.advance()
        return loss

    def compute(self, *batch: Any) -> torch.Tensor:
        """Take one step without the schedulers and the averaged weights, which are the user's own."""
        return self._compute(*batch)

    def close(self) -> None:
        """Free the graphs, and put back the plan's temporary changes. Trained weights stay trained."""
        self._undo.close()

    def _make_parts(self, plan: Plan, example: Example, realizer: Realizer) -> Parts:
        step, written = self._step, self._step.parts()
        if step.has_hooks:
            _check_for_hooks(plan)
        if plan.activation_checkpointing == "blocks":
            self._recompute_blocks()
        if plan.memory_format != "preserve":
            self._lay_out(plan.memory_format)
        loss = self._loss(plan, example, realizer)
        autocast = AUTOCAST.get(plan.precision, written.autocast)
        scaler = written.scaler
        if plan.precision == "autocast_fp16" and (scaler is None or not scaler.is_enabled()):
            if isinstance(step.optimizer, torch.optim.LBFGS):
                raise UnsupportedError("precision is 'autocast_fp16', but LBFGS takes no scaler: leave precision out")
            if step.has_hooks:
                raise UnsupportedError(
                    "precision is 'autocast_fp16', but parameters have hooks, which would receive scaled gradients: "
                    "leave precision out"
                )
            scaler_added = torch.amp.GradScaler(step.trained()[0].device.type)
            self._undo.callback(self._give_scaler_back, scaler_added, scaler)
            scaler = step.scaler = scaler_added  # of the step's state, for as long
        return Parts(loss, self._make_update(plan), written.pieces * plan.microbatches, autocast, scaler)

    def _loss(self, plan: Plan, example: Example, realizer: Realizer) -> Callable[..., torch.Tensor]:
        """Return forward and loss by the plan."""
        step, of_model = self._step, _model_plan(plan)
        if plan.scope == "loss":
            if unwrap_ddp(step.model) is not step.model:
                raise UnsupportedError(
                    "scope is 'loss', but the model is in DistributedDataParallel, which must call it: leave scope out"
                )
            whole = realizer(_WithLoss(step), replace(of_model, scope="whole"), example)
            return lambda first, *rest: whole(self._lay_out_inputs(first, plan), *rest)
        loss = step.loss_by(step.model if of_model.is_eager else self._model(of_model, realizer, example))
        return lambda first, *rest: loss(self._lay_out_inputs(first, plan), *rest)

    def _model(self, plan: Plan, realizer: Realizer, example: Example) -> Callable[..., Any]:
        """Return the model by the plan. A wrapper that distributes it over ranks calls it, with the plan inside."""
        model, inner = self._step.model, unwrap_ddp(self._step.model)
        if find_sharded_modules(inner):
            self._compile_in_place(inner, plan)
            return model
        if inner is not model and not calls_forward_alone(inner):
            raise UnsupportedError(
                "the model is in DistributedDataParallel, and its call does more than its forward, which a plan would "
                "repeat: remove its hooks and its own __call__, or leave the model out"
            )
        planned = realizer(inner, plan, _as_example(example.args[0]))
        if inner is model:
            return planned
        self._replace_forward(inner, _PatchedForward(inner, planned))
        return model

    def _compile_in_place(self, model: torch.nn.Module, plan: Plan) -> None:
        """Compile the forward of a sharded model, or of its blocks: it cannot be copied, and its hooks must run."""
        if plan.backend != "inductor" or plan.transforms:
            raise UnsupportedError(f"the model is sharded (fully_shard): {plan} cannot run it, but can only compile it")
        blocks = find_repeated_blocks(model) if plan.scope == "regional" else [model]
        if not blocks:
            raise UnsupportedError("scope is 'regional', but the model has no repeated blocks that dominate it")
        for part in blocks:
            compiled = count_recompiles(compiled_by_inductor(part.forward, plan), self._recompiles.make_part_counter())
            self._replace_forward(part, _PatchedForward(part, compiled))

    def _make_update(self, plan: Plan) -> Callable[[], Any]:
        optimizer, form = self._step.optimizer, plan.optimizer
        in_graph, on_gpu = plan.capture == "step", any(p.is_cuda for p in self._step.trained())
        once = in_graph or form == "compiled"
        if once and any(getattr(scheduler, "cycle_momentum", False) for scheduler in self._step.schedulers):
            raise UnsupportedError(
                "a scheduler changes the optimizer's momentum at every step, but code that is compiled or captured "
                "once would not: create it with cycle_momentum=False, or leave optimizer and capture out"
            )
        if once or form != "preserve":
            rates = once and bool(self._step.schedulers)
            tuned = TunedOptimizer(optimizer, form, countable=once and on_gpu, rates=rates)
            self._undo.callback(tuned.restore)
        if form != "compiled":
            return optimizer.step
        return count_recompiles(
            compiled_by_inductor(_Update(optimizer), Plan(backend="inductor")), self._recompiles.make_part_counter()
        )

    def _make_compute(self, plan: Plan, device: str) -> Callable[..., torch.Tensor]:
        compute: Callable[..., Any] = functools.partial(self._step.compute, self.parts)
        settings = settings_for(plan)
        if plan.capture == "none":
            return settings.wrap(compute)
        if unwrap_ddp(self._step.model) is not self._step.model or find_sharded_modules(self._step.model):
            raise UnsupportedError("capture is 'step', but the communication between ranks cannot be captured")
        if device != "cuda":
            raise UnsupportedError(f"capture is 'step', but device is {device!r}: CUDA graphs need a CUDA GPU")
        scalers = [self.parts.scaler] if self.parts.scaler is not None else []
        modules = [module for name, module in self._step.modules().items() if name != "ema"]
        optimizers = [self._step.optimizer]
        captured = CapturedStep(
            settings.wrap(compute), modules, optimizers, scalers, self._recompiles.make_part_counter()
        )
        self._undo.callback(captured.close)
        return captured

    def _give_scaler_back(self, scaler_added: torch.amp.GradScaler, before: torch.amp.GradScaler | None) -> None:
        if self._step.scaler is scaler_added:  # otherwise the user has set another one
            self._step.scaler = before

    def _recompute_blocks(self) -> None:
        blocks = find_stages(unwrap_ddp(self._step.model))
        if not blocks:
            raise UnsupportedError("activation_checkpointing is 'blocks', but the model is no row of blocks or stages")
        norms = [m for block in blocks for m in block.modules() if isinstance(m, BatchNorm)]
        if any(norm.track_running_stats for norm in norms):
            raise UnsupportedError(
                "activation_checkpointing is 'blocks', but batch-norm in the blocks would count each batch twice"
            )
        for block in blocks:
            self._replace_forward(block, functools.partial(_run_checkpointed, block.forward))

    def _replace_forward(self, module: torch.nn.Module, forward: Callable[..., Any]) -> None:
        own = vars(module)
        before = own.get("forward")
        own["forward"] = forward
        self._undo.callback(lambda: own.pop("forward") if before is None else own.update(forward=before))

    def _lay_out(self, memory_format: str) -> None:
        model = unwrap_ddp(self._step.model)
        tensors = [t for t in (*model.parameters(), *model.buffers()) if layout_for(memory_format, t) is not None]
        optimizer = self._step.optimizer
        strides = [(t, t.stride()) for t in tensors]
        self._undo.callback(_lay_back, strides, optimizer)
        for tensor in tensors:  # `Module.to` refuses a model with tensors of four and of five dimensions
            tensor.data = lay_out(memory_format, tensor.data)
        lay_states(optimizer)
        if any(group.get("fused") for group in optimizer.param_groups):  # other optimizers heed the layout of both
            saved = functools.partial(_as_laid_before, strides)
            self._undo.callback(optimizer.register_load_state_dict_post_hook(lay_states).remove)
            self._undo.callback(optimizer.register_state_dict_post_hook(saved).remove)

    @staticmethod
    def _lay_out_inputs(inputs: Any, plan: Plan) -> Any:
        if isinstance(inputs, Mapping):  # the model gets its items alone, and compilers know a dict best
            inputs = dict(inputs)
        if plan.memory_format == "preserve":
            return inputs
        return pytree.map_tensors(functools.partial(lay_out, plan.memory_format), inputs)


class _WithLoss(torch.nn.Module):
    """A model and its loss, to be compiled as one."""

    def __init__(self, step: TrainStep) -> None:
        super().__init__()
        self.model = step.model
        self.criterion = step.loss
        self.__dict__["_from"] = step.loss_from

    def forward(self, inputs: Any, *targets: Any) -> torch.Tensor:
        # Call the module's own parts: a transform puts others in their place.
        outputs = TrainStep.outputs_of(self.model, inputs)
        if self.criterion is not None:
            found: torch.Tensor = self.criterion(outputs, *targets)
            return found
        loss: torch.Tensor = self.__dict__["_from"](outputs, *targets)
        return loss


class _PatchedForward:
    """A compiled forward that replaces a module's own. Copies and pickles of the module have the module's own."""

    def __init__(self, module: torch.nn.Module, planned: Callable[..., Any]) -> None:
        self._module, self._planned, self._before = module, planned, vars(module).get("forward")
        functools.update_wrapper(self, module.forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._planned(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_itself, (self._before,)) if self._before is not None else (written_in_class, (self._module,))


def _itself(forward: Callable[..., Any]) -> Callable[..., Any]:
    return forward


def written_in_class(module: torch.nn.Module) -> Callable[..., Any]:
    """Return a module's forward as its class has it. Copies and pickles come back to it."""
    forward: Callable[..., Any] = type(module).forward.__get__(module)
    return forward


class _Update:
    """The optimizer's update as a function that can be compiled."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._step = optimizer.step  # read now: while a scaler steps, this object replaces it

    def __call__(self) -> None:
        self._step()


def _check_for_hooks(plan: Plan) -> None:
    """Refuse parts that call hooks of parameters at other times than the original step.

    Raises:
        UnsupportedError: the plan has such a part.
    """
    if plan.microbatches > 1:
        raise UnsupportedError(
            f"microbatches is {plan.microbatches}, but parameters have hooks, which would run once for each: leave it "
            "out"
        )
    if plan.capture == "step":
        raise UnsupportedError(
            "capture is 'step', but parameters have hooks, and a replay runs no Python: leave capture out"
        )


def _lay_back(tensors: list[tuple[torch.Tensor, tuple[int, ...]]], optimizer: torch.optim.Optimizer) -> None:
    """Give tensors their former strides."""
    for tensor, strides in tensors:
        tensor.data = _copy_with_strides(tensor.data, strides)
    lay_states(optimizer)


def _as_laid_before(
    tensors: list[tuple[torch.Tensor, tuple[int, ...]]], optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> dict[str, Any]:
    """Return an optimizer's checkpoint in the layout of weights without the plan: code that loads it may not look."""
    had = {id(tensor): (tensor.shape, strides) for tensor, strides in tensors}
    numbered = enumerate(p for group in optimizer.param_groups for p in group["params"])
    places = {number: had[id(p)] for number, p in numbered if id(p) in had}

    def restore_strides(number: int, value: Any) -> Any:
        shape, strides = places.get(number, (None, ()))
        return _copy_with_strides(value, strides) if isinstance(value, torch.Tensor) and value.shape == shape else value

    states = {
        number: {k: restore_strides(number, v) for k, v in kept.items()} for number, kept in state["state"].items()
    }
    return {**state, "state": states}


def _copy_with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _model_plan(plan: Plan) -> Plan:
    """Return the part of a plan that is about the model alone. Dimensions of the whole step are handled around it."""
    return replace(
        plan,
        precision="native",
        memory_format="preserve",
        capture="none",
        threads=None,
        optimizer="preserve",
        activation_checkpointing="none" if plan.activation_checkpointing == "blocks" else plan.activation_checkpointing,
        microbatches=1,
        scope="whole" if plan.scope == "loss" else plan.scope,
    )


def _as_example(inputs: Any) -> Example:
    if isinstance(inputs, Mapping):
        return Example((), dict(inputs))
    return Example(tuple(inputs)) if isinstance(inputs, (tuple, list)) else Example((inputs,))


def _run_checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a block, and compute its activations again in the backward pass, with the same random numbers."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)
