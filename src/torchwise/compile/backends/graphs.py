"""Compile the graphs that Dynamo captures in a callable, by a plan and with any compiler of graphs."""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from torchwise._torch import dynamo, inductor
from torchwise.compile import loop_rolling
from torchwise.compile.backends.compile_callback import CompileCallback, compile_with
from torchwise.compile.guards.guard_bypass import GuardBypass
from torchwise.compile.guards.module_guard import Reads
from torchwise.compile.inductor_patches import without_input_checks
from torchwise.compile.recognizer import Recognize, Recognizer
from torchwise.compile.recompiles import Recompiles
from torchwise.compile.signature import Signature, forget_oldest, is_plain, opaque_leaves, overlap_in, signature_of
from torchwise.compile.transforms import has_stage, list_at
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.choice import Stage
from torchwise.plan.rules import CUDA_GRAPH_MODES, freezes_weights
from torchwise.workload import pytree
from torchwise.workload.layouts import Overlap

Varying = Mapping[str, tuple[int, ...]]
"""The dimensions of the inputs whose sizes vary, by the input's path."""
NOTHING: Varying = MappingProxyType({})
MakeBackend = Callable[[bool], tuple[Any, Sequence[Any]]]
"""Makes a backend of Dynamo, and lists the parts of it that check that they were applied (`assert_applied`).

It is told whether the backend must share no code with others.
"""
_MARKING = threading.Lock()
_MARKED: dict[int, tuple[int, dict[str, Any]]] = {}
"""By the identity of a marked tensor: the calls that hold its marks, and the attributes that it had before."""
_FOR_OTHERS = {"allow_rnn": True, "specialize_float": True}
"""Settings for compilers other than Inductor. They compute an LSTM as a whole, and take no numbers as inputs."""
MAX_RECOGNIZED = 3
"""Most signatures that are looked for in C++, one after another. Others are found by their signature."""
MAX_BYPASSES = 256
"""Maximum number of signatures that bypass Dynamo's guards. Each takes some 100 kB for 100 parameters."""


def compile_call(
    call: Callable[..., Any], plan: Plan, make_backend: MakeBackend, varying: Varying = NOTHING
) -> Compiled:
    """Return `call`, which compiles its graphs on its first call for each signature.

    Args:
        call: the callable.
        plan: the plan.
        make_backend: makes the backend that compiles the graphs.
        varying: the dimensions of the inputs whose sizes vary, by the input's path. With dynamic shapes, only they
            are inputs of the code, and the others are constants (`benchmarks/varying_sizes.py`). If there are none, all
            dimensions are.
    """
    varying = varying if plan.shapes == "dynamic" else {}

    def compile_once(alone: Callable[[], Compiled] | None) -> Compiled:
        bypass, (backend, parts) = GuardBypass(call), make_backend(alone is None)
        settings = functools.partial(while_compiling, plan, is_marked=bool(varying))
        steady, callback = compile_with(call, backend, bypass, settings, is_dynamic=plan.shapes == "dynamic")
        compiled = Compiled(steady, callback, bypass, plan, parts, alone, varying)
        for part in parts:
            if (release := getattr(part, "release", None)) is not None:
                weakref.finalize(compiled, release).atexit = False
        return compiled

    return compile_once(lambda: compile_once(None))


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
        parts: Sequence[Any] = (),
        alone: Callable[[], Compiled] | None = None,
        varying: Varying = NOTHING,
    ) -> None:
        functools.update_wrapper(self, steady)
        self._compiled = steady
        self._callback = callback
        self._bypass = bypass
        self._plan = plan
        self._varying = varying
        self._parts = parts
        self._paths: dict[Signature, Callable[..., Any]] = {}
        self._recognized: tuple[tuple[Recognize, Callable[..., Any]], ...] = ()  # the last ones, checked in C++
        self._lock = threading.Lock()  # Dynamo's report on a compilation must belong to this call
        self._compiler: int | None = None  # the thread that compiles
        self._nested = False
        self._alone = alone
        self._by_overlap: dict[Overlap, Compiled] = {}
        self._reading: dict[Signature, None] = {}  # signatures, without the overlap, of calls that write nothing

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Answer the call. The first call of a signature compiles."""
        for recognize, known in self._recognized:
            if recognize(args, kwargs):
                return known(*args, **kwargs)
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
            self._reading[signature[:-1]] = None
            forget_oldest(self._reading)
        self._paths[signature] = self._by_overlap[overlap]
        forget_oldest(self._paths)
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
            for part in self._parts:
                checks.enter_context(part.assert_applied())
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
        forget_oldest(self._paths)
        self._recognize(signature, args, kwargs)
        return result

    def _recognize(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Have calls of a signature recognized in C++, which takes a fraction of the time that a signature takes."""
        if overlap_in(signature) is not None or signature_of(args, kwargs) != signature:
            return
        with contextlib.suppress(UnsupportedError):
            recognize = Recognizer(args, kwargs).translate(args, kwargs)
            if recognize is not None:
                others = self._recognized[: MAX_RECOGNIZED - 1]
                self._recognized = ((recognize, self._paths[signature]), *others)

    def _steady(self, *args: Any, **kwargs: Any) -> Any:
        """Answer through Dynamo, which compiles new kinds of call by the plan."""
        self._callback.calls += 1
        return self._compiled(*args, **kwargs)


class CheckedOnce:
    """Asks a pass whether it was applied, until it was: later calls may compile only graphs without a place for it."""

    def __init__(self, graph_pass: Any) -> None:
        self._pass: Any = graph_pass

    @contextlib.contextmanager
    def assert_applied(self) -> Iterator[None]:
        """Watch a first call (see `assert_transform_applied`)."""
        with contextlib.nullcontext() if self._pass is None else self._pass.assert_applied():
            yield
        self._pass = None


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
def while_compiling(
    plan: Plan, *, is_marked: bool = False, is_whole: bool = True, is_guarded: bool = True
) -> Iterator[None]:
    """Apply the settings that `torch.compile` takes only globally, or as arguments that slow down every call.

    If a plan has dynamic shapes, all dimensions are dynamic. But if inputs are marked, then of the whole call's own
    frame only marked ones are, and others once they vary.

    Code that no guards precede, as it is compiled ahead, is not `is_guarded` and checks its inputs itself.
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
        **({} if plan.backend == "inductor" else _FOR_OTHERS),
    )
    with settings, dynamo.patch_traces(), contextlib.ExitStack() as stack:
        if freezes_weights(plan):  # PyTorch ignores it as an option, and gradients must be off
            stack.enter_context(inductor.patch_config({"freezing": True}))
            stack.enter_context(torch.no_grad())
        if around := list_at(plan.transforms, Stage.SETTING):  # which PyTorch leaves out of the keys of its caches
            stack.enter_context(dynamo.tag_caches("+".join(around)))
        stack.enter_context(loop_rolling.in_frame(is_whole=is_whole))
        if is_guarded and _checks_inputs(plan):
            stack.enter_context(without_input_checks())
        yield


def _checks_inputs(plan: Plan) -> bool:
    """Whether all inputs of the code are those of the call and its weights, which guards check before it runs.

    A backward reads answers of the forward. A graph that is made of another one may read answers of operators.
    """
    is_plain = plan.scope == "whole" and plan.shapes == "static" and not has_stage(plan.transforms, Stage.GRAPH)
    return plan.backend == "inductor" and is_plain and not torch.is_grad_enabled()


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
