"""Compile with `torch.compile` and Inductor, by a plan."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from torchwise._torch import dynamo, inductor
from torchwise.compile import inductor_patches, loop_rolling
from torchwise.compile.backends.compile_callback import CompileCallback, compile_with
from torchwise.compile.backends.freezing import Freezing
from torchwise.compile.guards.guard_bypass import GuardBypass
from torchwise.compile.guards.module_guard import Reads
from torchwise.compile.inductor_patches import add_autocast_to_key
from torchwise.compile.recompiles import Recompiles
from torchwise.compile.signature import Signature, is_plain, opaque_leaves, overlap_in, signature_of
from torchwise.compile.transforms import function_graphs, has_stage, load_transforms
from torchwise.errors import UnsupportedError, did_you_mean
from torchwise.plan import Plan
from torchwise.plan.choice import Stage
from torchwise.plan.rules import CUDA_GRAPH_MODES
from torchwise.workload import pytree
from torchwise.workload.layouts import Overlap

Varying = Mapping[str, tuple[int, ...]]
"""The dimensions of the inputs whose sizes vary, by the input's path."""
NOTHING: Varying = MappingProxyType({})
_MARKING = threading.Lock()
_MARKED: dict[int, tuple[int, dict[str, Any]]] = {}
"""By the identity of a marked tensor: the calls that hold its marks, and the attributes that it had before."""
PASS_OPTION = "post_grad_custom_pre_pass"
"""Inductor's option for a pass over graphs of operators."""
MAX_BYPASSES = 256
"""Maximum number of signatures that bypass Dynamo's guards. Each takes some 100 kB for 100 parameters."""


def compile(call: Callable[..., Any], plan: Plan, varying: Varying = NOTHING) -> Callable[..., Any]:
    """Return `call`, which compiles by the plan on its first call for each signature.

    Args:
        call: the callable.
        plan: the plan.
        varying: the dimensions of the inputs whose sizes vary, by the input's path. With dynamic shapes, only they
            are inputs of the code, and the others are constants (`benchmarks/varying_sizes.py`). If there are none, all
            dimensions are.

    Raises:
        UnsupportedError: this torch has no such mode or option, or lacks something that a transform or the scope needs.
    """
    add_autocast_to_key()
    varying = varying if plan.shapes == "dynamic" else {}
    return _compile_call(call, plan, varying, lambda: _compile_call(call, plan, varying, None))


def _compile_call(
    call: Callable[..., Any], plan: Plan, varying: Varying, alone: Callable[[], Compiled] | None
) -> Compiled:
    """Return `call` compiled by the plan. Without `alone`, share no code with its other compilations."""
    options, bypass = _options(plan), GuardBypass(call)
    backend = _backend(plan, options)
    distinct = _distinct_backend(plan, call, lambda: backend or _inductor(options), alone is None)
    used = distinct or backend or inductor.make_backend(options)
    settings = functools.partial(while_compiling, plan, is_marked=bool(varying))
    steady, callback = compile_with(call, used, bypass, settings, is_dynamic=plan.shapes == "dynamic")
    checked = [used for used in (backend, distinct) if hasattr(used, "assert_applied")]
    compiled = Compiled(steady, callback, bypass, plan, checked, alone, varying)
    if isinstance(distinct, Freezing):
        weakref.finalize(compiled, distinct.release).atexit = False
    return compiled


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


class Compiled:
    """A callable that compiles by the plan, and then bypasses Dynamo's guards.

    Static shapes are set only while compiling. As an argument of `torch.compile` they would be set again on every call,
    which takes 5 microseconds.

    Compiling fails if a transform or a scope changed nothing. Otherwise the plan would be timed as something that it is
    not.
    """

    def __init__(
        self,
        steady: Callable[..., Any],
        callback: CompileCallback,
        bypass: GuardBypass,
        plan: Plan,
        backends: Sequence[Any] = (),
        alone: Callable[[], Compiled] | None = None,
        varying: Varying = NOTHING,
    ) -> None:
        functools.update_wrapper(self, steady)
        self._compiled = steady
        self._callback = callback
        self._bypass = bypass
        self._plan = plan
        self._varying = varying
        self._transforms = [*backends, *(graph_pass for _, graph_pass in _passes(plan))]
        self._paths: dict[Signature, Callable[..., Any]] = {}
        self._lock = threading.Lock()  # Dynamo's report on a compilation must belong to this call
        self._compiler: int | None = None  # the thread that compiles
        self._nested = False
        self._alone = alone
        self._by_overlap: dict[Overlap, Compiled] = {}
        self._reading: set[Signature] = set()  # signatures, without the overlap, of calls that write nothing

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer the call. The first call of a signature compiles."""
        signature = signature_of(args, kwargs)
        path = self._paths.get(signature)
        if path is not None:
            return path(*args, **kwargs)
        if self._compiler == threading.get_ident():  # the model calls itself
            self._nested = True
            return self._steady(*args, **kwargs)
        overlap = overlap_in(signature)
        if overlap is not None and self._alone is not None and signature[:-1] not in self._reading:
            return self._call_overlapping(overlap, self._alone, signature, args, kwargs)
        with self._lock:
            self._compiler, self._nested = threading.get_ident(), False
            try:
                return self._compile_and_call(signature, args, kwargs)
            finally:
                self._compiler = None

    def get_fast_path(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the callable for calls of this known signature, without a lookup on each call."""
        path = self._paths.get(signature_of(args, dict(kwargs)), self)
        return path.get_fast_path(args, kwargs) if isinstance(path, Compiled) and path is not self else path

    def _call_overlapping(
        self, overlap: Overlap, make: Callable[[], Compiled], signature: Signature, args: Any, kwargs: Any
    ) -> Any:
        """Answer by code compiled for inputs with this overlap, as a call that writes to them needs code of its own.

        Dynamo's guards do not check the overlap of inputs. A call that writes nothing needs no code of its own.
        """
        with self._lock:
            if overlap not in self._by_overlap:
                self._by_overlap[overlap] = make()
                self._by_overlap[overlap].count_in(self._callback.recompiles)
        inputs = [(tensor, tensor.detach().clone()) for tensor in pytree.tensors((args, kwargs))]
        result = self._by_overlap[overlap](*args, **kwargs)
        if all(pytree.equal(tensor, before) for tensor, before in inputs):
            self._reading.add(signature[:-1])
        self._paths[signature] = self._by_overlap[overlap]
        return result

    def count_in(self, recompiles: Recompiles) -> None:
        """Count recompilations in `recompiles`, with the values that vary."""
        self._callback.recompiles = recompiles
        for compiled in self._by_overlap.values():
            compiled.count_in(recompiles)

    def reads(self) -> Reads | None:
        """Return the attributes of the module that the compiled code depends on, or None if it may depend on any."""
        return None if self._by_overlap else self._bypass.reads()

    def _compile_and_call(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        owned = _outputs_owned if self._plan.mode in CUDA_GRAPH_MODES else lambda call: call
        before = self._bypass.prepare_bypass(args, kwargs)
        with contextlib.ExitStack() as checks:
            if self._varying:
                checks.enter_context(marked_dims(args, kwargs, self._varying))
            for changing in self._transforms:
                checks.enter_context(changing.assert_applied())
            self._callback.expected = threading.get_ident()
            try:
                result = owned(self._steady)(*args, **kwargs)
            finally:
                self._callback.expected = None
        # No bypass if the call calls itself or changed its arguments. Nor if there are many signatures, such as lengths
        # of texts, as each bypass keeps the objects that it checks.
        if self._nested or signature_of(args, kwargs) != signature or len(self._paths) >= MAX_BYPASSES:
            self._paths[signature] = owned(self._steady)
        else:
            self._paths[signature] = owned(self._bypass.path(self._steady, args, kwargs, before))
        return result

    def _steady(self, *args: Any, **kwargs: Any) -> Any:
        """Answer through Dynamo, which compiles new kinds of call by the plan."""
        self._callback.calls += 1
        return self._compiled(*args, **kwargs)


@contextlib.contextmanager
def marked_dims(
    args: tuple[Any, ...], kwargs: dict[str, Any], varying: Mapping[str, tuple[int, ...]]
) -> Iterator[None]:
    """Mark the dimensions that vary, for code that is compiled meanwhile. The marks that tensors had are put back."""
    mark = dynamo.MAYBE_MARK_DYNAMIC.get("dynamic shapes")
    marked: list[torch.Tensor] = []
    try:
        for path, leaf in pytree.list_named_leaves((args, kwargs)):
            dims = [dim for dim in varying.get(path, ()) if isinstance(leaf, torch.Tensor) and dim < leaf.dim()]
            if dims:
                with _MARKING:
                    own = {name: copy.copy(v) for name, v in vars(leaf).items() if name.startswith(dynamo.MARKS)}
                    holders, before = _MARKED.get(id(leaf)) or (0, own)
                    mark(leaf, dims)
                    _MARKED[id(leaf)] = holders + 1, before
                marked.append(leaf)
        yield
    finally:
        for tensor in marked:
            _take_mark_off(tensor)


def _take_mark_off(tensor: torch.Tensor) -> None:
    """Put back the marks that a tensor had, unless another thread still compiles for it, or it is in several places."""
    with _MARKING:
        holders, before = _MARKED[id(tensor)]
        if holders > 1:
            _MARKED[id(tensor)] = holders - 1, before
            return
        del _MARKED[id(tensor)]
        for name in [name for name in vars(tensor) if name.startswith(dynamo.MARKS)]:
            if name in before:
                setattr(tensor, name, before[name])
            else:
                delattr(tensor, name)


@contextlib.contextmanager
def while_compiling(plan: Plan, *, is_marked: bool = False, is_whole: bool = True) -> Iterator[None]:
    """Apply the settings that `torch.compile` takes only globally, or as arguments that slow down every call.

    If a plan has dynamic shapes, all dimensions are dynamic. But if inputs are marked, then of the whole call's own
    frame only marked ones are, and others once they vary.
    """
    dynamic = plan.shapes == "dynamic"
    # These are the settings of `torch.compile(dynamic=...)`. Static also means that a second shape does not make the
    # first one dynamic. Dynamo by default does not notice hooks that are registered later, so that is enabled. After
    # its limits Dynamo silently runs a call in eager. The limits count compilations of one code object, which all
    # modules of a class share. So a plan has a limit of its own (`Recompiles`).
    settings = dynamo.patch_config(
        assume_static_by_default=not dynamic or (is_marked and is_whole),
        automatic_dynamic_shapes=dynamic,
        skip_nnmodule_hook_guards=False,
        skip_tensor_guards_with_matching_dict_tags=False,  # or torch 2.11 does not notice `model.half()`
        recompile_limit=1 << 16,
        accumulated_recompile_limit=1 << 16,
    )
    with settings, contextlib.ExitStack() as freezing:
        if plan.option("freezing"):  # PyTorch ignores it as an option, and gradients must be off
            freezing.enter_context(inductor.patch_config({"freezing": True}))
            freezing.enter_context(torch.no_grad())
        yield


def _backend(plan: Plan, options: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the backend for the graphs, or None for Inductor itself."""
    transform = _transform(plan.transforms, options)
    if plan.scope != "rolled":
        return transform
    return loop_rolling.wrap_backend(transform or _inductor(options))


def _inductor(options: dict[str, Any]) -> Callable[..., Any]:
    """Return Inductor itself as such a backend."""
    return loop_rolling.inductor(tuple(sorted(options.items())))


def _distinct_backend(
    plan: Plan, call: Any, backend: Callable[[], Callable[..., Any]], is_alone: bool
) -> Callable[..., Any] | None:
    """Return a backend that differs from all others for Dynamo, or None if the options describe the plan completely.

    Code that Dynamo compiled for a function answers all of its calls under an equal backend, under any global settings.
    Dynamic shapes are no part of the backend, nor are frozen weights, which Dynamo distinguishes by module and not by
    value. So weights that are frozen again are compiled again.
    """
    if plan.option("freezing"):
        inside = getattr(call, "inside", call)
        return Freezing(backend(), getattr(inside, "__self__", inside))
    if is_alone:
        return functools.partial(backend())
    return _dynamic(backend()) if plan.shapes == "dynamic" else None


@functools.cache
def _dynamic(backend: Callable[..., Any]) -> Callable[..., Any]:
    """Return the same object for equal backends, so that Dynamo recognizes compiled code."""
    return functools.partial(backend)


def _transform(names: tuple[str, ...], options: dict[str, Any]) -> Callable[..., Any] | None:
    """Return the backend that rewrites graphs, or None if the transforms act on the model alone."""
    found = load_transforms(names, Stage.GRAPH)
    if len(found) > 1:
        several = ", ".join(name for name in names if has_stage((name,), Stage.GRAPH))
        raise UnsupportedError(f"transforms are {several}, but only one may rewrite Inductor's graphs")
    backend: Callable[..., Any] | None = found[0](tuple(sorted(options.items()))) if found else None
    return backend


def _passes(plan: Plan) -> list[tuple[str, Any]]:
    """Return the passes over Inductor's graphs that a plan requests, each with the option that takes it."""
    found = [(PASS_OPTION, make_pass()) for make_pass in load_transforms(plan.transforms, Stage.PASS)]
    functions = tuple(name for name in plan.transforms if has_stage((name,), Stage.TRACE))
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
    check_options(options)
    return options


def check_options(names: Iterable[str]) -> None:
    """Refuse names of compiler options that this torch does not have, and name similar ones that exist."""
    known = inductor.list_options()
    for name in names:
        if name not in known:
            close = did_you_mean(name, known)
            raise UnsupportedError(f"Inductor option {name!r} does not exist in torch {torch.__version__}{close}")


def _outputs_owned(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Copy outputs out of the graph's memory, which the next replay overwrites, as a caller may keep them."""
    from torchwise._torch import pytree as _pytree

    @functools.wraps(compiled)
    def call_and_copy(*args: Any, **kwargs: Any) -> Any:
        outputs = compiled(*args, **kwargs)
        if isinstance(outputs, torch.Tensor):
            return outputs.clone()
        return _pytree.tree_map(_own, outputs)

    return call_and_copy


def _own(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.clone()
    if is_plain(leaf):
        return leaf
    if opaque := opaque_leaves(leaf):
        raise UnsupportedError(
            f"an output holds {opaque[0]}, whose contents cannot be copied out of the CUDA graph's memory, which the "
            "next call overwrites: return tensors in tuples, lists, dicts or dataclasses"
        )
    return pytree.map_tensors(torch.Tensor.clone, leaf)
