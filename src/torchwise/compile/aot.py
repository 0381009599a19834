"""Compile ahead of time: one process compiles a plan's code, and another one calls it without compiling.

While one thread of a process compiles, Dynamo raises errors in the calls of other threads (torch 2.11). In torch 2.13
it reports to them that they are compiling, and rewinds the random numbers that they draw. So a serving program has its
code compiled in another process.

PyTorch's API for that is `torch.compile(...).aot_compile` and `torch.compiler.load_compiled_function`. The graph must
not break. The API stores the graph's code and guards as bytes, without the weights, which the loading module has.

Dynamo leaves out guards that it cannot serialize, mostly on global variables. Global numbers and strings are compared
here instead. If another left-out guard checks something that nothing else would notice, compiling ahead is refused.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchwise._torch import dynamo
from torchwise.compile.backends.graphs import NOTHING, marked_dims, while_compiling
from torchwise.compile.backends.inductor import aot_backend
from torchwise.compile.guards.fast_path import FastPath, fast_path, make_fast_path
from torchwise.compile.guards.global_constants import Constant, find_constants
from torchwise.compile.guards.guard_bypass import GuardBypass
from torchwise.compile.guards.module_guard import make_quick_check
from torchwise.compile.signature import Signature, forget_oldest, overlap_in, signature_of
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.rules import find_choices

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Code:
    """The code compiled for calls of one signature.

    Attributes:
        data: as PyTorch writes it. It is a pickle, and so it is code: only the program that requested it may read it.
        can_skip_guards: whether the signature, the module guard and the constants notice as much as Dynamo's guards.
        constants: global variables that are compiled into it.
        hooks: the number of hooks of each of the module's modules, as they are compiled into it, too.
    """

    data: bytes
    can_skip_guards: bool
    constants: tuple[Constant, ...] = ()
    hooks: tuple[int, ...] = ()


def check_possible(plan: Plan) -> None:
    """Refuse plans that cannot be compiled ahead.

    Raises:
        UnsupportedError: it is such a plan.
    """
    for choice in find_choices(plan):
        if choice.not_ahead:
            raise UnsupportedError(f"plan {plan} cannot be compiled ahead: {choice.not_ahead}")


class Maker:
    """A backend for `compile_plan` that answers by the original call, and compiles ahead for each signature.

    Args:
        varying: the dimensions that vary, for a plan with dynamic shapes. Without any, all are dynamic.

    Attributes:
        made: the code, in the order of the first calls.
    """

    def __init__(self, varying: Mapping[str, tuple[int, ...]] = NOTHING) -> None:
        self._varying = varying
        self.made: list[Code] = []

    def __call__(self, call: Call, plan: Plan) -> Call:
        """Return `call`, which compiles ahead for each new signature.

        Raises:
            UnsupportedError: the plan cannot be compiled ahead. Calls raise it if this model cannot.
        """
        check_possible(plan)
        if isinstance(call, torch.nn.Module):
            raise UnsupportedError("the model has hooks, which code that is compiled ahead leaves out")
        compiled_for: set[Signature] = set()

        def call_and_compile(*args: Any, **kwargs: Any) -> Any:
            if (signature := signature_of(args, kwargs)) not in compiled_for:
                _check_no_overlap(signature)
                compiled_for.add(signature)
                self.made.append(_compile_ahead(call, plan, args, kwargs, self._varying))
            return call(*args, **kwargs)

        return call_and_compile


class Loader:
    """A backend for `compile_plan` that answers by the code of a `Maker`, with this process's module.

    A change that makes the code invalid raises on the call, and the original callable answers.
    """

    def __init__(self, codes: Sequence[Code]) -> None:
        self._codes = codes
        self._functions: list[tuple[Any, Code]] = []

    def __call__(self, call: Call, plan: Plan) -> Call:  # noqa: ARG002 - the code was compiled by it
        """Load the code for `call`, a function or the forward of a module.

        Raises:
            UnsupportedError: this torch cannot load it.
        """
        self.load()
        return _Loaded(call, self._functions)

    def load(self) -> None:
        """Load the code before any call. It imports the compiler and takes seconds.

        Raises:
            UnsupportedError: this torch cannot load it.
        """
        if not self._functions:
            with _enabled():
                self._functions = [(_load_function(code), code) for code in self._codes]


class _Loaded:
    def __init__(self, call: Call, functions: list[tuple[Any, Code]]) -> None:
        owner = getattr(call, "__self__", None)
        self._globals = getattr(getattr(call, "__func__", call), "__globals__", {})
        self._owner = owner if isinstance(owner, torch.nn.Module) else None
        self._functions = functions
        self._paths: dict[Signature, Call] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        signature = signature_of(args, kwargs)
        path = self._paths.get(signature)
        if path is None:
            _check_no_overlap(signature)
            path = self._paths[signature] = self._find_path(args, kwargs)
            forget_oldest(self._paths)
        if not torch.is_grad_enabled():
            return path(*args, **kwargs)
        with torch.no_grad():  # no input requires a gradient, so the code was verified without gradients
            return path(*args, **kwargs)

    def get_fast_path(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """Return the callable for calls of this signature, without looking it up."""
        return self._paths.get(signature_of(args, dict(kwargs)), self)

    def _find_path(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        own = () if self._owner is None else (self._owner,)
        for function, code in self._functions:
            with torch.no_grad():
                fits = len(self._functions) == 1 or function.guard_check(*own, *args, **kwargs)
            if fits:
                self._check_hooks(code)
                return self._constant(self._make_fast_path(function, code, own), code.constants)
        raise UnsupportedError("no code was compiled ahead for a call of this signature")

    def _make_fast_path(self, function: Any, code: Code, own: tuple[Any, ...]) -> Call:
        inner, owner = function.fn if code.can_skip_guards else function, self._owner

        def call_guarded(*args: Any, **kwargs: Any) -> Any:
            self._check_hooks(code)
            return function(*own, *args, **kwargs)

        def call_unguarded(*args: Any, **kwargs: Any) -> Any:
            return inner(*own, *args, **kwargs)

        def make_path_again(*_: Any) -> FastPath:
            return make_fast_path(call_unguarded, make_quick_check(owner) if owner is not None else None)

        return fast_path(call_guarded, make_path_again(), lambda _args, _kwargs: make_path_again)

    def _check_hooks(self, code: Code) -> None:
        if code.hooks != _hooks_of(self._owner):
            raise UnsupportedError("a hook was registered or removed since the code was compiled ahead")

    def _constant(self, path: Call, constants: tuple[Constant, ...]) -> Call:
        if not constants:
            return path
        scope = self._globals

        def check_and_call(*args: Any, **kwargs: Any) -> Any:
            for constant in constants:
                if not constant.holds(scope):
                    raise UnsupportedError(f"global {constant.name} is no longer {constant.value!r}, as when compiled")
            return path(*args, **kwargs)

        return check_and_call


def _compile_ahead(
    call: Call, plan: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], varying: Mapping[str, tuple[int, ...]]
) -> Code:
    bypass, dropped = GuardBypass(call), list[Any]()
    unwritable = dynamo.GUARD_CHECKER.get("compiling ahead").UNSUPPORTED_SERIALIZATION_GUARD_TYPES

    def filter_guards(guards: Sequence[Any]) -> list[bool]:
        bypass.guard_filter(guards)
        kept = [not (g.is_global or g.guard_type in unwritable) for g in guards]
        dropped.extend(g for g, keep in zip(guards, kept, strict=True) if not keep)
        return kept

    backend, options = _find_backend(plan)
    varying = varying if plan.shapes == "dynamic" else NOTHING
    compiling = while_compiling(plan, is_marked=bool(varying), is_guarded=False)
    with _enabled(), compiling, marked_dims(args, kwargs, varying), torch.no_grad():
        compiled = torch.compile(
            call, fullgraph=True, backend=backend, options={**options, "guard_filter_fn": filter_guards}
        )
        try:
            function = compiled.aot_compile((args, kwargs))  # type: ignore[attr-defined]
        except AttributeError as error:
            raise UnsupportedError(f"torch {torch.__version__} cannot compile ahead ({error})") from error
        scope = getattr(call, "__globals__", {})
        constants = find_constants(dropped, scope)
        lost = bypass.find_uncovered(args, kwargs, [guard for guard in dropped if id(guard) not in constants])
        if lost:
            raise UnsupportedError(f"it depends on {lost}: code compiled ahead would not notice a change of it")
        guards = [guard for guard in bypass.guards if id(guard) not in constants]
        has_bypass = not bypass.find_refusal(args, kwargs) and not bypass.find_uncovered(args, kwargs, guards)
        hooks = _hooks_of(getattr(call, "__self__", None))
        return Code(_bytes_of(function), has_bypass, tuple(dict.fromkeys(constants.values())), hooks)


def _find_backend(plan: Plan) -> tuple[Any, dict[str, Any]]:
    """Return the backend and the options of Dynamo that compile a graph by the plan into code that can be stored."""
    if plan.backend == "row_programs":
        from torchwise.compile.programs.ahead import make_backend

        return make_backend(plan), {}
    return aot_backend(plan)


def _check_no_overlap(signature: Signature) -> None:
    """Refuse inputs that share memory, as no guard distinguishes code for them from code for other inputs.

    Raises:
        UnsupportedError: they share memory.
    """
    if overlap_in(signature) is not None:
        raise UnsupportedError("inputs share memory, which code compiled ahead does not notice: pass copies")


def _hooks_of(owner: Any) -> tuple[int, ...]:
    """Count the forward hooks of each module. Dynamo stores no guards on them."""
    modules = owner.modules() if isinstance(owner, torch.nn.Module) else ()
    return tuple(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in modules)


def _bytes_of(function: Any) -> bytes:
    return bytes(type(function).serialize(function).serialized_data)


def _load_function(code: Code) -> Any:
    load = dynamo.LOAD_COMPILED.get("code that was compiled ahead")
    return load(io.BytesIO(code.data))


@contextlib.contextmanager
def _enabled() -> Iterator[None]:
    """Enable the API, which torch 2.11 disables by default."""
    with dynamo.patch_config(enable_aot_compile=True):
        yield
