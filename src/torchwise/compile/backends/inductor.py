"""Compile with `torch.compile` and Inductor, by a plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchwise._torch import inductor
from torchwise.compile import inductor_patches, loop_rolling, three_tf32
from torchwise.compile.backends import recompute
from torchwise.compile.backends.freezing import Freezing, without_cached_weights
from torchwise.compile.backends.graphs import NOTHING, CheckedOnce, Varying, compile_call
from torchwise.compile.backends.prepared_weights import PreparedWeights
from torchwise.compile.inductor_patches import add_autocast_to_key
from torchwise.compile.transforms import function_graphs, list_at, list_prepared, load_transforms
from torchwise.errors import UnsupportedError, did_you_mean
from torchwise.plan import Plan
from torchwise.plan.choice import Stage
from torchwise.plan.rules import freezes_weights

PASS_OPTION = "post_grad_custom_pre_pass"
"""Inductor's option for a pass over graphs of operators."""


def compile(call: Callable[..., Any], plan: Plan, varying: Varying = NOTHING) -> Callable[..., Any]:
    """Return `call`, which Inductor compiles by the plan (see `compile_call`).

    Raises:
        UnsupportedError: this torch has no such mode or option, or lacks something that a transform or the scope needs.
    """
    add_autocast_to_key()
    return compile_call(call, plan, functools.partial(_make_backend, call, plan), varying)


def _make_backend(call: Callable[..., Any], plan: Plan, is_alone: bool) -> tuple[Any, list[Any]]:
    options = _options(plan)
    backend = _backend(plan, options)
    distinct = _distinct_backend(plan, call, lambda: backend or _inductor(options), is_alone)
    checked = [used for used in (backend, distinct) if hasattr(used, "assert_applied")]
    passes = [CheckedOnce(graph_pass) for _, graph_pass in _passes(plan)]
    return distinct or backend or inductor.make_backend(options), [*checked, *passes]


def graph_compiler(plan: Plan) -> Callable[..., Any]:
    """Return a function that compiles a graph for its inputs, as `torch.compile` would by the plan."""
    add_autocast_to_key()
    options = _options(plan)
    return _backend(plan, options) or _inductor(options)


def aot_backend(plan: Plan) -> tuple[Any, dict[str, Any]]:
    """Return the backend and the options that compile a graph by the plan into code that can be stored."""
    add_autocast_to_key()
    options = _options(plan)
    if _transform(plan.transforms, options) is None:
        return "inductor", options
    from torchwise.compile.transforms.complex_to_real.aot import ComplexToRealAhead

    return ComplexToRealAhead(options), {}


def _backend(plan: Plan, options: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the backend for the graphs, or None for Inductor itself."""
    backend = _transform(plan.transforms, options)
    if plan.scope == "rolled":
        backend = loop_rolling.wrap_backend(backend or _inductor(options))
    if plan.activation_checkpointing == "graph":
        backend = recompute.wrap_backend(backend or _inductor(options))
    return backend


def _inductor(options: dict[str, Any]) -> Callable[..., Any]:
    """Return Inductor itself as such a backend."""
    return loop_rolling.inductor(tuple(sorted(options.items())))


def _distinct_backend(
    plan: Plan, call: Any, backend: Callable[[], Callable[..., Any]], is_alone: bool
) -> Callable[..., Any] | None:
    """Return a backend that differs from all others for Dynamo, or None if the options describe the plan completely.

    Code that Dynamo compiled for a function answers all of its calls under an equal backend, under any global settings.
    Dynamic shapes are no part of the backend, nor are settings around calls, nor frozen weights, which Dynamo
    distinguishes by module and not by value. So weights that are frozen again are compiled again. Values that are
    computed from weights belong to one plan, too.
    """
    if names := list_prepared(plan.transforms):
        return PreparedWeights(backend(), call, dict(zip(names, load_transforms(names, Stage.TRACE), strict=True)))
    if freezes_weights(plan):
        return Freezing(without_cached_weights(backend()), call)
    if is_alone:
        return functools.partial(backend())
    around = (plan.shapes, *list_at(plan.transforms, Stage.SETTING))
    return _name_apart(backend(), around) if around != ("static",) else None


@functools.cache
def _name_apart(backend: Callable[..., Any], _around: tuple[str, ...]) -> Callable[..., Any]:
    """Return the same object for equal backends under equal settings, so that Dynamo recognizes compiled code."""
    return functools.partial(backend)


def _transform(names: tuple[str, ...], options: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the backend that rewrites graphs, or None if the transforms act on the model alone."""
    found = load_transforms(names, Stage.GRAPH)
    if len(found) > 1:
        several = ", ".join(list_at(names, Stage.GRAPH))
        raise UnsupportedError(f"transforms are {several}, but only one may rewrite Inductor's graphs")
    backend: Callable[..., Any] | None = found[0](tuple(sorted(options.items()))) if found else None
    return backend


def _passes(plan: Plan) -> list[tuple[str, Any]]:
    """Return the passes over Inductor's graphs that a plan requests, each with the option that takes it."""
    found = [(PASS_OPTION, make_pass()) for make_pass in load_transforms(plan.transforms, Stage.PASS)]
    prepared = list_prepared(plan.transforms)
    functions = tuple(name for name in list_at(plan.transforms, Stage.TRACE) if name not in prepared)
    return [*found, (function_graphs.OPTION, function_graphs.graph_pass(functions))] if functions else found


def _options(plan: Plan) -> dict[str, Any]:
    """Return the mode's options with the plan's on top, as `torch.compile` takes a mode or options, not both."""
    modes = inductor.list_mode_options()
    if plan.mode not in modes:
        raise UnsupportedError(f"mode is {plan.mode!r}, but this torch has {', '.join(modes)}")
    # Freezing is left out, as torch.compile silently ignores this option.
    options = {**modes[plan.mode], **{k: v for k, v in plan.options if k != "freezing"}}
    if plan.capture != "none":
        options["triton.cudagraphs"] = False
    for option, graph_pass in _passes(plan):
        if (other := getattr(inductor.CONFIG.get(), option)) is not None:
            raise UnsupportedError(f"Inductor takes one {option}, and this program has set its own: {other}")
        options[option] = graph_pass
    if options.get(inductor_patches.OPTION) or inductor.CONFIG.get().triton.enable_pdl:  # or the user's own setting
        inductor_patches.wait_first()
    three_tf32.complete(options)
    check_options(options)
    return options


def check_options(names: Iterable[str]) -> None:
    """Refuse names of compiler options that this torch does not have, and name similar ones that exist."""
    known = inductor.list_options()
    for name in names:
        if name not in known:
            close = did_you_mean(name, known)
            raise UnsupportedError(f"Inductor option {name!r} does not exist in torch {torch.__version__}{close}")
