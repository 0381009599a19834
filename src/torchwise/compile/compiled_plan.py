"""Compile a model by a plan, and return a callable with the same signature.

The steps are layers around the model, from the inside out. Transforms rewrite the model. Memory format and precision
change a copy of it, with casts of its inputs and outputs. A backend compiles the result, and other transforms rewrite
its graphs there. Capture replays it, and settings hold around each call. A dimension at its default adds no layer.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch.modules import BatchNorm
from torchwise.compile.backends import Backend, load_backend
from torchwise.compile.cuda_graphs import CudaGraph
from torchwise.compile.cuda_graphs.object_inputs import WithObjects
from torchwise.compile.forward_entry import compile_blocks, entry_of
from torchwise.compile.guards.module_guard import Reads
from torchwise.compile.io_casts import ByForm, IOCasts
from torchwise.compile.recompiles import Recompiles, count_recompiles
from torchwise.compile.settings import settings_for
from torchwise.compile.shared_copies import DerivedWeights, ModuleChangeGuard, share
from torchwise.compile.signature import opaque_leaves
from torchwise.compile.train_step import CompiledStep
from torchwise.compile.transforms import Layer, check_transforms, has_stage, load_transforms, transform_model
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.choice import Stage, load_choices, load_code
from torchwise.plan.rules import freezes_weights, has_fixed_weights
from torchwise.workload.input_spec import find_varying_dims
from torchwise.workload.train_step import TrainStep
from torchwise.workload.workload import Example


@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """A callable compiled by a plan.

    Attributes:
        plan: the plan.
        call: takes the inputs of the original callable and returns its outputs, with the same dtypes and strides.
        bypass: returns, for the arguments of an answered call, a faster callable for all calls of that signature. Use
            it only while neither gradients nor autocast are enabled.
        close: frees the memory of the plan's CUDA graphs. The callable must not be used afterwards.
        reads: returns the plain attributes of the model on which the code compiled so far depends, or None if unknown.
    """

    plan: Plan
    call: Callable[..., Any]
    bypass: Callable[[tuple[Any, ...], Mapping[str, Any]], Callable[..., Any]]
    close: Callable[[], None]
    reads: Callable[[], Reads | None] = lambda: None


def compile_plan(
    call: Callable[..., Any],
    plan: Plan,
    example: Example,
    *,
    device: str,
    mode: str,
    borrow: bool = False,
    backend: Backend | None = None,
    recompiles: Recompiles | None = None,
    inputs: Sequence[str] = (),
) -> CompiledPlan:
    """Return `call` compiled by `plan`. Nothing is compiled before the first call.

    The original callable is never changed. A plan changes only a copy, which shares the original's parameters and
    buffers, or keeps derived ones in sync with them (`DerivedWeights`).

    Args:
        call: an `nn.Module` or a function.
        plan: how to run it.
        example: example inputs, or a batch for a training step.
        device: "cpu" or "cuda".
        mode: "inference" or "training".
        borrow: whether a captured call returns the graph's own outputs, which its next call overwrites.
        backend: compiles in place of the plan's own backend (see `aot`).
        recompiles: counts recompilations and new captures for known kinds of calls, and limits them.
        inputs: one line for each example that the plan is verified on, as a decision has them. The dimensions in which
            they differ are those that vary, for a plan with dynamic shapes.

    Raises:
        UnsupportedError: this torch, or this model, lacks something that the plan needs.
    """
    if plan.is_eager:
        return CompiledPlan(plan, call, lambda _args, _kwargs: call, _do_nothing)
    recompiles = recompiles or Recompiles()
    if isinstance(call, TrainStep):
        return _compile_step(call, plan, example, device, recompiles)
    if plan.of_a_step:
        raise UnsupportedError(f"plan {plan} is for a whole training step, but this is a model: pass a TrainStep")
    check_transforms(plan.transforms)
    inside, outside = _prepare_call(call, plan)
    of_code = recompiles if plan.capture == "none" else recompiles.make_part_counter(is_told=False)
    inner = _compile_call(inside, plan, device, call, backend, of_code, find_varying_dims(inputs))
    settings = settings_for(plan)
    fast_path = getattr(inner, "get_fast_path", lambda _args, _kwargs: inner)
    reads: Any = _unknown if has_stage(plan.transforms, Stage.FORM) else getattr(inner, "reads", _unknown)
    call = settings.wrap(inner)
    if plan.capture == "none":
        return CompiledPlan(
            plan,
            outside(call),
            lambda args, kwargs: outside(settings.wrap(fast_path(args, kwargs))),
            _do_nothing,
            reads,
        )
    reads = getattr(inner, "reads", None)
    options = {"device": device, "mode": mode, "borrow": borrow, "recompiles": recompiles, "reads": reads}
    captured = _capture(call, inside, plan.capture, example, options)
    # Outside the capture: a replay runs no Python, and derived weights are refreshed where the graph reads them.
    return CompiledPlan(
        plan, outside(captured), lambda args, kwargs: outside(captured.get_bypass(args, kwargs)), captured.close, reads
    )


def _capture(
    call: Callable[..., Any], inside: Callable[..., Any], unit: str, example: Example, options: Mapping[str, Any]
) -> CudaGraph:
    """Return `call` captured by that unit, with objects in its inputs taken apart."""
    module, kind = inside if isinstance(inside, torch.nn.Module) else None, _load_capture(unit)
    if opaque_leaves((example.args, dict(example.kwargs))):
        return WithObjects(call, lambda inner: kind(inner, module, **options), borrow=options["borrow"])
    return kind(call, module, **options)


def _load_capture(unit: str) -> Callable[..., CudaGraph]:
    """Return the class of captured calls of a plan's `capture`."""
    realized_by = load_choices()["capture", unit].realized_by
    if realized_by is None:
        raise UnsupportedError(f"capture is {unit!r}, but its declaration names no class that captures calls")
    return load_code(realized_by)


def _compile_step(step: TrainStep, plan: Plan, example: Example, device: str, recompiles: Recompiles) -> CompiledPlan:
    def compile_model(call: Callable[..., Any], plan: Plan, example: Example) -> Callable[..., Any]:
        return compile_plan(
            call, plan, example, device=device, mode="training", recompiles=recompiles.make_part_counter()
        ).call

    compiled = CompiledStep(step, plan, example, device, compile_model, recompiles)
    return CompiledPlan(plan, compiled, lambda _args, _kwargs: compiled, compiled.close)


def _prepare_call(call: Callable[..., Any], plan: Plan) -> tuple[Callable[..., Any], Layer]:
    """Return the callable to compile (`call`, or a rewritten copy of it), and a layer that syncs it with `call`.

    The transforms of the model come first. Precision and memory format are changed in their result.
    """
    form, layers = transform_model(call, plan.transforms)
    frozen = has_fixed_weights(plan)
    if frozen and isinstance(getattr(call, "__self__", None), torch.nn.Module):
        raise UnsupportedError(
            "the plan folds weights into its code, and checks those of a module for changes, but this is a method of "
            f"one ({call.__name__}): pass a module whose forward calls it"
        )
    if frozen and isinstance(call, torch.nn.Module) and any(map(_counts_statistics, call.modules())):
        raise UnsupportedError(
            "the plan folds weights into its code, but batch-norm writes to its statistics on every call in training "
            "mode: call eval() first"
        )
    inside, guarded, follows = form, frozen or form is not call, False
    if isinstance(form, torch.nn.Module) and (plan.precision == "bf16" or plan.memory_format != "preserve"):
        derived = DerivedWeights(form, plan)
        inside, follows = derived.copy, not frozen
        layers += [derived.with_weight_sync] if follows else []
    elif isinstance(form, torch.nn.Module) and plan.scope == "regional":
        inside, guarded = share(form), True
    if isinstance(call, torch.nn.Module) and guarded:
        runs = form if follows else inside  # the layer of derived weights syncs the rest
        is_copy = runs is not call and not has_stage(plan.transforms, Stage.FORM)  # the model declares that form itself
        # Code that only makes others from weights reads buffers where they are, unless it runs copies of those.
        of_parameters = not freezes_weights(plan) and inside is form
        guard = functools.partial(ModuleChangeGuard, call, values=frozen, of_parameters=of_parameters)
        if is_copy and isinstance(runs, torch.nn.Module):
            layers.append(guard(copied=runs).wrap)
        else:  # each path takes a new snapshot, as the first call may have set something on the model
            layers.append(lambda inner: guard(itself=runs is call).wrap(inner))
    return inside, lambda inner: functools.reduce(lambda wrapped, layer: layer(wrapped), layers, inner)


def _counts_statistics(module: torch.nn.Module) -> bool:
    is_norm = isinstance(module, BatchNorm)
    return is_norm and module.training and module.running_mean is not None


def _compile_call(
    inside: Callable[..., Any],
    plan: Plan,
    device: str,
    original: Callable[..., Any],
    backend_override: Backend | None,
    recompiles: Recompiles,
    varying: Mapping[str, tuple[int, ...]],
) -> Callable[..., Any]:
    """Compile the whole callable, with casts for each form of the original's outputs, or each repeated block."""
    if not IOCasts.is_needed(plan):
        return _compiler(inside, plan, device, backend_override, recompiles, varying)(lambda call: call)
    casts = IOCasts(plan, device)
    compiled = _compiler(inside, plan, device, backend_override, recompiles, varying)
    return ByForm(original, lambda form: casts.wrap_compiled(compiled(lambda call: casts.wrap(call, form)), form))


def _compiler(
    inside: Callable[..., Any],
    plan: Plan,
    device: str,
    backend_override: Backend | None,
    recompiles: Recompiles,
    varying: Mapping[str, tuple[int, ...]],
) -> Callable[[Layer], Callable[..., Any]]:
    """Return a compiler that takes a wrapper for the entry, and compiles it together with the entry if possible."""
    if backend_override is not None and plan.backend != "eager":
        compiled = backend_override(entry_of(inside), plan)
        return lambda wrap_call: wrap_call(compiled)
    backend: Callable[..., Any] = load_backend(plan.backend, device)
    if plan.scope == "regional":
        if not isinstance(inside, torch.nn.Module):
            raise UnsupportedError("scope is 'regional', but a function has no repeated blocks: pass a module")
        compile_blocks(inside, lambda block: count_recompiles(backend(block, plan), recompiles.make_part_counter()))
        return lambda wrap_call: wrap_call(inside)
    entry, transforms = entry_of(inside), load_transforms(plan.transforms, Stage.CALL)
    if varying and plan.shapes == "dynamic" and "varying" in inspect.signature(backend).parameters:
        backend = functools.partial(backend, varying=varying)  # others compile for all sizes in all dimensions
    layered = functools.partial(functools.reduce, lambda call, transform: transform(call), transforms)
    return lambda wrap_call: count_recompiles(backend(layered(wrap_call(entry)), plan), recompiles)


def _unknown() -> Reads | None:
    """Return None: the code may depend on any attribute of the model."""
    return None


def _do_nothing() -> None:
    """Free nothing: there is nothing to free."""
