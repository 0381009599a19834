"""Compute the identity of a workload: measurements of one workload hold for others of the same identity.

The structure of a callable covers:

- the source of each function and of each class, bases included, unless it is PyTorch's or Python's own. Code without
  source (typed at a prompt, or sent from `__main__`) counts by its bytecode, names and constants instead.
- built-in functions, and PyTorch's own classes and functions, by their qualified name.
- the objects that a function closes over, its defaults, the arguments that `functools.partial` binds, and the object of
  a bound method.
- for a module: its printed form, the names, shapes and dtypes of parameters and buffers, which parts are in training
  mode, and the attributes of its parts that are plain values or functions.
- for the callable itself: the static form that it declares.
- for a training step: model and loss, the classes of optimizer, schedulers, scaler and averages, the groups of the
  optimizer with their flags, the trained parameters, autocast, accumulation and clipping.

The identity also covers shapes, dtypes and strides of the inputs, the memory they share, plain input values, the
weights of the mix, and the mode.

If a user's tolerance judges plans, the values of weights count in the identity, too (`workload/weights.py`).

Otherwise neither covers the values of weights or tensors, nor learning rates and other numbers of an optimizer. They
leave out the name of the target and of the module that holds the code, the seed and the number of calls. The machine is
left to `Environment`. Globals that a function reads, hooks, and the contents of lists and dicts do not count either.
Source and bytecode of the same code differ. So a live model's structure is taken in its own process.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import inspect
import json
import os
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch

from torchwise._torch.call_hook import is_hooked
from torchwise.workload.input_spec import InputSpec, LeafSpec, OverlapSpec, TensorSpec
from torchwise.workload.layouts import overlap_of
from torchwise.workload.pytree import list_named_leaves
from torchwise.workload.train_step import TrainStep
from torchwise.workload.workload import Example, Workload

Attributes = Mapping[int, Mapping[str, str | None]]
"""The printed form of attributes by name, or None for a missing attribute, for each module by its `id`."""
_PLAIN = (bool, int, float, complex, str, bytes, types.NoneType, types.EllipsisType)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
_sources: WeakKeyDictionary[type, tuple[str | None, str]] = WeakKeyDictionary()
"""The file and the source of classes, as Python parses the whole file for each class that it is asked about."""
_OF_THE_INTERPRETER = (
    "__module__",
    "__qualname__",
    "__doc__",
    "__firstlineno__",
    "__static_attributes__",
    "__slotnames__",  # which `copy` leaves on a class
)


def identity(workload: Workload, mode: str, structure_digest: str | None = None, weights: str = "") -> str:
    """Return 16 hex digits of SHA-256 over everything the module docstring lists.

    Args:
        workload: the model and its inputs.
        mode: "inference" or "training".
        structure_digest: the callable's `structure` if it was taken elsewhere, such as in the user's own process.
        weights: the digest of the weights' values, or "" if all that is found holds for any values.
    """
    inputs = [[float(example.weight), describe_example(example)] for example in workload.examples]
    if structure_digest is None:
        structure_digest = structure(workload.call)
    facts = {"mode": mode, "structure": structure_digest, "inputs": inputs}
    return _digest({**facts, "weights": weights} if weights else facts)[:16]


def structure(call: Callable[..., Any], attributes: Attributes | None = None) -> str:
    """Return 16 hex digits for the model alone. They must be equal for a plan to fit it, with any inputs.

    `attributes` are replacements for the attributes of its parts.
    """
    return Describer(attributes).digest_of(call)[:16]


def describe_example(example: Example) -> str:
    """Describe the inputs in a line: "path dtype[shape] strides" or "path value" for each leaf, and shared memory."""
    return str(specify_inputs(example))


def specify_inputs(example: Example) -> InputSpec:
    """Describe the inputs as data."""
    leaves = list_named_leaves((example.args, dict(sorted(example.kwargs.items()))))
    return InputSpec(tuple(LeafSpec(path, _specify_leaf(leaf)) for path, leaf in leaves), _specify_overlaps(leaves))


def _specify_overlaps(leaves: list[tuple[str, Any]]) -> tuple[OverlapSpec, ...]:
    """Return how far each tensor begins behind another one that it overlaps with."""
    tensors = [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
    overlap = overlap_of([tensor for _, tensor in tensors])
    if overlap is None:
        return ()
    places = enumerate(zip(tensors, overlap, strict=True))
    return tuple(OverlapSpec(path, tensors[first][0], by) for at, ((path, _), (first, by)) in places if first != at)


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _specify_leaf(leaf: Any) -> TensorSpec | str:
    if isinstance(leaf, torch.Tensor):
        dtype = str(leaf.dtype).removeprefix("torch.")
        if leaf.is_nested:
            return TensorSpec(dtype, None, None, str(leaf.layout))
        strides = tuple(leaf.stride()) if leaf.layout is torch.strided else None
        return TensorSpec(dtype, tuple(leaf.shape), strides, str(leaf.layout))
    by_repr = (*_PLAIN, enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format)
    return text_of(leaf) if isinstance(leaf, by_repr) else type(leaf).__qualname__


class Describer:
    """Describes a callable and the objects reachable from it as digests, each once, without following cycles."""

    def __init__(self, attributes: Attributes | None = None) -> None:
        self._given_attributes = attributes or {}
        self._open: list[int] = []
        self._done: dict[int, tuple[Any, str]] = {}  # the object is held, so that no other takes its address

    def digest_of(self, thing: Any) -> str:
        """Return the digest of a thing."""
        if id(thing) in self._done:
            return self._done[id(thing)][1]
        if id(thing) in self._open:
            return f"cycle {self._open.index(id(thing))}"
        self._open.append(id(thing))
        digest = _digest([*self._facts(thing), *self._form(thing)])
        self._open.pop()
        self._done[id(thing)] = (thing, digest)
        return digest

    def _facts(self, thing: Any) -> list[Any]:
        if isinstance(thing, torch.nn.Module):
            return self._module(thing)
        if isinstance(thing, TrainStep):
            return self._step(thing)
        if isinstance(thing, torch.Tensor):
            return ["tensor", describe_state(thing)]
        if isinstance(thing, type):
            return [self._class(cls) for cls in thing.__mro__]
        if isinstance(thing, functools.partial):
            bound = [[name, self.value(value)] for name, value in sorted(thing.keywords.items())]
            return ["partial", self.digest_of(thing.func), [self.value(value) for value in thing.args], bound]
        if isinstance(thing, types.MethodType):
            return ["method", self.digest_of(thing.__func__), self.digest_of(thing.__self__)]
        if isinstance(thing, types.FunctionType):
            return self._function(thing)
        if isinstance(thing, torch.jit.ScriptFunction):
            return ["script", thing.code]
        if callable(inner := getattr(thing, "__wrapped__", None)):  # such as functools.cache leaves behind
            return ["wrapped", self.digest_of(type(thing)), self.digest_of(inner)]
        if isinstance(name := getattr(thing, "__qualname__", None), str):  # built in
            owner = getattr(thing, "__self__", None)
            of_object = owner is not None and not isinstance(owner, (type, types.ModuleType))
            return [f"{thing.__module__}.{name}", self.value(owner) if of_object else None]
        return [
            "object",
            self.digest_of(type(thing)),
            text_of(thing) if _is_torchs(type(thing)) else self._attributes(thing),
        ]

    def value(self, value: Any) -> str:
        """Describe the value of a name, such as a closure's variable: by content if it is plain or code."""
        if isinstance(value, torch.nn.Module):
            return self.digest_of(value)
        if isinstance(value, torch.Tensor):
            return describe_state(value)
        if isinstance(value, tuple):
            return f"({', '.join(self.value(item) for item in value)})"
        if isinstance(value, (*_PLAIN, enum.Enum, torch.dtype, torch.device)):
            return text_of(value)
        return self.digest_of(value) if callable(value) else type(value).__qualname__

    def _module(self, module: Any) -> list[Any]:
        kinds = dict.fromkeys(kind_of(part) for part in module.modules())
        classes = [self.digest_of(kind) for kind in kinds]
        tensors, named = [*module.named_parameters(), *module.named_buffers()], [*module.named_modules()]
        state = [f"{name} {describe_state(tensor)}" for name, tensor in tensors]
        # A frozen module of TorchScript has no mode.
        modes = [f"{name} training" for name, part in named if getattr(part, "training", False)]
        parts = [[name, script_of(part) or self._attributes(part)] for name, part in named]
        # A copy of a traced module is of another class.
        text = re.sub(r"\b\w+\((\s*original_name=)", r"script(\1", text_of(module))
        return ["module", classes, text, state, modes, parts]

    def _step(self, step: TrainStep) -> list[Any]:
        """Describe a training step: not its rates and counts, which change from step to step."""

        def flags(group: dict[str, Any]) -> list[list[str]]:
            return [[k, text_of(v)] for k, v in sorted(group.items()) if v is None or isinstance(v, bool)]

        groups = [[len(group["params"]), flags(group)] for group in step.optimizer.param_groups]
        trained = [p.requires_grad for p in step.model.parameters()]
        numbers = [text_of(n) for n in (step.autocast, step.accumulate, step.clip_norm, step.clip_value)]
        others = [part for part in (step.optimizer, *step.schedulers, step.scaler, step.ema) if part is not None]
        parts = [self.value(part) for part in (step.model, step.loss, *map(type, others))]
        return ["step", parts, groups, trained, numbers]

    def _form(self, thing: Any) -> list[str]:
        """Describe the static form that the callable declares, as a plan may run it instead.

        The forms that parts declare are left out: they are never taken, and a form may declare forms without end.
        """
        declared = getattr(thing, "static_form", None)
        if len(self._open) > 1 or not callable(declared):
            return []
        try:
            form = declared()
        except Exception as error:  # the user's code may raise anything, and the plan that takes the form reports it
            return [f"static form: {type(error).__name__}"]
        return [] if form is thing else [self.digest_of(form)]

    def _attributes(self, thing: Any) -> list[list[str]]:
        given = self._given_attributes.get(id(thing), {})
        found = {name: self.value(value) for name, value in attributes_of(thing) if name not in given}
        found.update({name: text for name, text in given.items() if text is not None})
        return [[name, text] for name, text in sorted(found.items())]

    def _class(self, cls: type) -> list[Any]:
        if _is_torchs(cls) or _is_pythons(cls):  # the environment has their versions
            return [f"{cls.__module__}.{cls.__qualname__}"]
        if (source := _class_source(cls)) is not None:
            functions = {name: value for name, value in vars(cls).items() if isinstance(value, types.FunctionType)}
            own = [cls.__qualname__, source, [self._closure(function) for function in functions.values()]]
            written = f"{cls.__qualname__}."  # all others were added later, and the source does not mention them
            others = [
                [n, self.digest_of(f)] for n, f in sorted(functions.items()) if not f.__qualname__.startswith(written)
            ]
            return [*own, others] if others else own
        found = {name: value for name, value in vars(cls).items() if name not in _OF_THE_INTERPRETER}
        members = {name: value for name, value in found.items() if not is_hooked(value)}  # for the time of a hook
        return [cls.__qualname__, [[name, self._member(value)] for name, value in sorted(members.items())]]

    def _member(self, member: Any) -> Any:
        if isinstance(member, (staticmethod, classmethod)):
            return [type(member).__name__, self.digest_of(member.__func__)]
        if isinstance(member, property):
            return ["property", [self.value(f) for f in (member.fget, member.fset, member.fdel)]]
        if isinstance(member, functools.cached_property):
            return ["cached_property", self.digest_of(member.func)]
        return self.value(member)

    def _function(self, function: types.FunctionType) -> list[Any]:
        if _is_torchs(function):
            return [f"{function.__module__}.{function.__qualname__}", self._closure(function)]
        defaults = [function.__defaults__ or (), tuple(sorted((function.__kwdefaults__ or {}).items()))]
        return [function.__qualname__, _body(function.__code__), self.value(tuple(defaults)), self._closure(function)]

    def _closure(self, function: types.FunctionType) -> list[str]:
        found = []
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name == "__class__":  # for `super()`
                continue
            try:
                found.append(f"{name} {self.value(cell.cell_contents)}")
            except ValueError:  # not bound yet
                found.append(f"{name} empty")
        return found


def attributes_of(thing: Any) -> list[tuple[str, Any]]:
    """List the attributes that are plain values, functions or modules. Others may change from call to call."""
    found = [
        (name, value)
        for name, value in sorted(getattr(thing, "__dict__", {}).items())
        if is_plain(value) or isinstance(value, (*_CODE, torch.nn.Module, torch.dtype, enum.Enum))
    ]
    if not isinstance(thing, torch.nn.Module):
        return found
    return [(name, value) for name, value in found if name not in _base_module_names()]


@functools.cache
def _base_module_names() -> frozenset[str]:
    # `torch.compile(model)` leaves a mark on the model, though it compiles another object.
    marks = {*vars(torch.nn.Module()), "_is_torch_compile"}
    return frozenset({*marks, *(n for n in dir(torch.nn.Module) if n.startswith("_"))})


def code_digest(function: types.FunctionType) -> str:
    """Return a digest of a function's code, whichever objects it is bound to."""
    return _digest(_body(function.__code__))[:8]


def _body(code: types.CodeType) -> list[Any]:
    try:
        source = inspect.getsource(code)
    except (OSError, TypeError):
        source = None
    # Several lambdas may share a line, so that their source alone does not tell them apart.
    return [source, bytecode(code) if source is None or code.co_name == "<lambda>" else None]


def _is_torchs(thing: Any) -> bool:
    return str(thing.__module__).partition(".")[0] == "torch"


def _is_pythons(cls: type) -> bool:
    """Say whether a class is the standard library's. A class made by `exec` may only claim to be."""
    known = vars(sys.modules.get(cls.__module__, types)).get(cls.__qualname__.partition(".")[0])
    return cls.__module__.partition(".")[0] in sys.stdlib_module_names and known is not None


def is_plain(value: Any) -> bool:
    """Whether a value says everything about itself in its printed form."""
    return all(is_plain(item) for item in value) if isinstance(value, tuple) else isinstance(value, _PLAIN)


def text_of(thing: Any) -> str:
    """Return the printed form, without the addresses that differ from process to process."""
    return re.sub(r"\b0x[0-9a-fA-F]+", "0x", repr(thing)) if not isinstance(thing, (str, bytes)) else repr(thing)


def kind_of(part: torch.nn.Module) -> type:
    """Return the class of a module, but one for all of TorchScript: a copy of a traced module is a scripted one."""
    return torch.jit.ScriptModule if isinstance(part, torch.jit.ScriptModule) else type(part)


def script_of(part: torch.nn.Module) -> list[list[str]]:
    """Return the code of a TorchScript module, whose class says nothing, without numbers that each process assigns."""
    if not isinstance(part, torch.jit.ScriptModule) or not hasattr(part, "forward"):
        return []
    code, constants = part.code_with_constants
    constant_states = [f"{name} {describe_state(t)}" for name, t in sorted(constants.const_mapping.items())]
    return [["script", re.sub(r"___torch_mangle_\d+\.", "", code), *constant_states]]


def describe_state(tensor: torch.Tensor) -> str:
    """Return the form of a weight or buffer."""
    from torch.nn.parameter import is_lazy

    if is_lazy(tensor):
        return "uninitialised"
    return f"{tensor.dtype}{list(tensor.shape)}" + ("" if tensor.layout is torch.strided else f" {tensor.layout}")


def _class_source(cls: type) -> str | None:
    """Return the source of a class, or None if the file found is not the one that defined the class."""
    try:
        if (found := _sources.get(cls)) is None:
            found = _sources[cls] = inspect.getsourcefile(cls), inspect.getsource(cls)
    except (OSError, TypeError):
        return None
    file, source = found
    own = [f for f in vars(cls).values() if isinstance(f, types.FunctionType) and f.__module__ == cls.__module__]
    files = {os.path.abspath(f.__code__.co_filename) for f in own}
    # A class sent from another process's `__main__` is looked for in the `__main__` of this one.
    return source if file is not None and (not files or os.path.abspath(file) in files) else None


def bytecode(code: types.CodeType) -> list[Any]:
    """Return the behaviour of code without its location: the same in every process of one Python."""
    names = [list(code.co_names), list(code.co_varnames), list(code.co_freevars)]
    return [code.co_code.hex(), names, [_constant(constant) for constant in code.co_consts]]


def _constant(constant: Any) -> Any:
    if isinstance(constant, types.CodeType):
        return bytecode(constant)
    if isinstance(constant, tuple):
        return ["tuple", [_constant(item) for item in constant]]
    if isinstance(constant, frozenset):  # its order differs from process to process
        return ["frozenset", sorted(json.dumps(_constant(item)) for item in constant)]
    return repr(constant)
