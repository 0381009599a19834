"""Rules for plans. Each names the value it refuses and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchwise.errors import PlanError, is_count

if TYPE_CHECKING:
    from torchwise.plan.plan import Plan

PRECISIONS = ("native", "tf32", "bf16", "autocast_bf16", "autocast_fp16")
MEMORY_FORMATS = ("preserve", "channels_last")
SCOPES = ("whole", "regional", "rolled", "loss")
CAPTURES = ("none", "call", "branches", "step")
OPTIMIZERS = ("preserve", "foreach", "fused", "compiled")
CHECKPOINTED = ("none", "blocks")
SHAPES = ("static", "dynamic")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
CUDA_GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes in which Inductor itself captures CUDA graphs."""
COMPILED_TRANSFORMS = ("complex_to_real", "structure_of_arrays", "isolate_rnn", "patch_matmul", "eager_strides")
"""Transforms that mean nothing without a compiler."""


def check(plan: Plan) -> None:
    """Refuse a plan that is illegal or means nothing.

    Raises:
        PlanError: with the value and the rule.
    """
    for problem in _problems(plan):
        raise PlanError(problem)


def check_containers(transforms: Any, options: Any) -> None:
    """Refuse transforms that are no names and options that are no pairs of a name and a value, each name once.

    Raises:
        PlanError: with the value and the rule.
    """
    if not isinstance(transforms, (tuple, list)) or not all(isinstance(name, str) and name for name in transforms):
        raise PlanError(f"transforms is {transforms!r}, but must hold the names of rewrites")
    if not isinstance(options, (tuple, list)) or not all(_is_pair(option) for option in options):
        raise PlanError(f"options is {options!r}, but must hold pairs of a name and a value")
    for name, times in Counter(name for name, _ in options).items():
        if times > 1:
            values = " and ".join(repr(value) for other, value in options if other == name)
            raise PlanError(f"option {name} is {values}, but an option may be given only once")


def _is_pair(option: Any) -> bool:
    return isinstance(option, (tuple, list)) and len(option) == 2 and isinstance(option[0], str)


def _problems(plan: Plan) -> Iterator[str]:
    for name, allowed in (
        ("precision", PRECISIONS),
        ("memory_format", MEMORY_FORMATS),
        ("scope", SCOPES),
        ("capture", CAPTURES),
        ("shapes", SHAPES),
        ("mode", MODES),
        ("optimizer", OPTIMIZERS),
        ("activation_checkpointing", CHECKPOINTED),
    ):
        value = getattr(plan, name)
        if not isinstance(value, str) or value not in allowed:
            yield f"{name} is {value!r}, but must be one of {', '.join(allowed)}"
    if not isinstance(plan.backend, str) or not plan.backend:
        yield f"backend is {plan.backend!r}, but must name a backend, such as eager or inductor"
    if plan.threads is not None and not is_count(plan.threads):
        yield f"threads is {plan.threads!r}, but must be a whole number of at least 1, or left out"
    if not is_count(plan.microbatches):
        yield f"microbatches is {plan.microbatches!r}, but must be a whole number of at least 1"
    for name, value in plan.options:
        if type(value) not in (bool, int, str):
            yield f"option {name} is {value!r}, but must be true, false, a whole number or a string"
    if plan.backend == "eager":
        for name, value, plain in (
            ("mode", plan.mode, "default"),
            ("scope", plan.scope, "whole"),
            ("shapes", plan.shapes, "static"),
            ("options", plan.options, ()),
        ):
            if value != plain:
                yield f"{name} is {value!r}, but eager compiles nothing: {name} needs a compiling backend"
        if plan.optimizer == "compiled":
            yield "optimizer is 'compiled', but eager compiles nothing: it needs a compiling backend"
        for name in set(plan.transforms) & set(COMPILED_TRANSFORMS):
            yield f"transforms has {name!r}, but eager compiles nothing: {name} changes what a compiler is given"
    if plan.shapes == "dynamic" and "complex_to_real" in plan.transforms:
        yield "shapes is 'dynamic', but complex_to_real rewrites graphs of one shape: shapes must be static"
    if "eager_strides" in plan.transforms and plan.scope != "whole":
        yield f"transforms has 'eager_strides', but scope is {plan.scope!r}, whose parts lay out what they return"
    if "eager_strides" in plan.transforms and plan.shapes == "dynamic":
        yield "shapes is 'dynamic', but eager_strides holds for one shape: shapes must be static"
    if "numbers_on_gpu" in plan.transforms and plan.capture != "call":
        yield f"transforms has 'numbers_on_gpu', but capture is {plan.capture!r}: it must be 'call'"
    if "numbers_on_gpu" in plan.transforms and plan.backend != "eager":
        yield f"transforms has 'numbers_on_gpu', but backend is {plan.backend!r}, which is given numbers: eager is not"
    if plan.of_a_step and (plan.capture in ("call", "branches") or plan.precision == "bf16" or plan.option("freezing")):
        yield f"{plan.to_json()} is of a training step, but one call captured, bf16 weights and freezing do not train"
    if plan.scope == "rolled":
        yield from _loop_rolling_problems(plan)
    if plan.capture != "none" and plan.mode in CUDA_GRAPH_MODES:
        yield f"capture is {plan.capture!r}, but mode {plan.mode!r} captures CUDA graphs by itself: choose one"
    if plan.capture != "none" and plan.shapes == "dynamic":
        yield f"capture is {plan.capture!r}, but a CUDA graph holds for one shape: shapes must be static"
    if plan.capture != "none" and plan.threads is not None:
        yield f"threads is {plan.threads}, but a captured call runs on the GPU, where threads mean nothing"


def _loop_rolling_problems(plan: Plan) -> Iterator[str]:
    if plan.mode in CUDA_GRAPH_MODES:
        yield f"scope is 'rolled', but mode {plan.mode!r} captures each call of the body: capture the whole call"
    if plan.shapes != "static":
        yield f"shapes is {plan.shapes!r}, but scope 'rolled' finds repetitions for one shape: shapes must be static"
    if plan.option("freezing"):
        yield "option freezing is True, but scope is 'rolled': one body for many weights cannot hold them as constants"
