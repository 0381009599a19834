"""Describe a structure part by part, so that a message can name the differences of two models.

A digest says that a model differs, but not how. So a decision keeps these details beside it: its classes and functions,
the form of each weight, the mode and the plain attributes of each part. Code has a short digest of its own.
"""

from __future__ import annotations

import contextlib
import functools
import types
import zlib
from collections.abc import Callable
from typing import Any

import torch

from torchwise.records.structure_differences import CODE, MODE, TRAINING, Details
from torchwise.workload.identity import (
    Describer,
    attributes_of,
    code_digest,
    describe_state,
    is_plain,
    kind_of,
    script_of,
    text_of,
)
from torchwise.workload.train_step import TrainStep

MAX_LENGTH = 60


def details_of(call: Callable[..., Any]) -> Details:
    """Return the details of a callable's structure: the name of each part, and its description."""
    found: Details = {}
    _Details(found).add("", call)
    return found


class _Details:
    def __init__(self, found: Details) -> None:
        self._found = found
        self._describer = Describer()
        self._open: set[int] = set()

    def add(self, path: str, thing: Any) -> None:
        """Add the details of an object. `path` leads to it, and is "" for the callable itself."""
        if id(thing) in self._open:
            return
        self._open.add(id(thing))
        if isinstance(thing, torch.nn.Module):
            self._module(path, thing)
        elif isinstance(thing, TrainStep):
            self._step(path, thing)
        elif isinstance(thing, functools.partial):
            self.add(path, thing.func)
            bound = {**{str(place): value for place, value in enumerate(thing.args)}, **thing.keywords}
            for name, value in bound.items():
                self._value(f"what is bound as {name}", value)
        elif isinstance(thing, types.MethodType):
            self.add(path, thing.__func__)
            self.add(path, thing.__self__)
        elif isinstance(thing, types.FunctionType):
            self._function(thing)
        else:
            self._note(f"{path} {type(thing).__qualname__}".strip(), CODE + self._describer.digest_of(thing)[:8])

    def _note(self, name: str, value: str) -> None:
        """Keep a fact. If two have one name, such as classes of two modules, the second gets a number."""
        number, kept = 2, name
        while self._found.get(kept, value) != value:
            kept, number = f"{name} ({number})", number + 1
        self._found[kept] = value

    def _value(self, name: str, value: Any) -> None:
        if isinstance(value, torch.nn.Module):
            self.add(name, value)
        elif is_plain(value) and len(text := text_of(value)) <= MAX_LENGTH:
            self._note(name, text)
        elif isinstance(value, torch.Tensor):
            self._note(name, describe_state(value))
        elif isinstance(value, types.FunctionType):
            self._function(value)
        else:
            self._note(name, CODE + self._describer.value(value)[:8])

    def _function(self, function: types.FunctionType) -> None:
        self._note(f"the code of {function.__qualname__}", CODE + code_digest(function))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not bound yet
                if name != "__class__":  # for `super()`
                    self._value(f"{name} in {function.__qualname__}", cell.cell_contents)
        defaults = (*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items()))
        if defaults:
            self._value(f"the defaults of {function.__qualname__}", defaults)

    def _module(self, path: str, module: Any) -> None:
        for kind in dict.fromkeys(kind_of(part) for part in module.modules()):
            if not kind.__module__.startswith("torch."):
                self._note(f"the code of {kind.__qualname__}", CODE + self._describer.digest_of(kind)[:8])
        under = f"{path}." if path else ""
        for name, part in module.named_modules():
            whose = f"part {under}{name}" if name else path or "the model"
            if getattr(part, "training", False):
                self._note(whose + MODE, TRAINING)
            form = f"{type(part).__name__}({part.extra_repr()})"
            self._note(
                whose, form if len(form) <= MAX_LENGTH else f"{form[: MAX_LENGTH - 9]}…{zlib.crc32(form.encode()):08x}"
            )
            if script := script_of(part):
                self._note(f"the script of {whose}", f"{CODE}{zlib.crc32(repr(script).encode()):08x}")
            for attribute, value in () if script else attributes_of(part):
                self._value(f"attribute {under}{f'{name}.' if name else ''}{attribute}", value)
        for what, tensors in (("weight", module.named_parameters()), ("buffer", module.named_buffers())):
            for name, tensor in tensors:
                self._note(f"{what} {under}{name}", describe_state(tensor).removeprefix("torch."))

    def _step(self, path: str, step: TrainStep) -> None:
        self.add(path, step.model)
        self._value("the loss", step.loss)
        others = [part for part in (step.optimizer, *step.schedulers, step.scaler, step.ema) if part is not None]
        self._note("what trains", ", ".join(type(part).__qualname__ for part in others))
        for number, group in enumerate(step.optimizer.param_groups):
            flags = {name: value for name, value in group.items() if value is None or isinstance(value, bool)}
            self._note(f"group {number} of weights", f"{len(group['params'])} of them, {text_of(flags)}")
        for name, weight in step.model.named_parameters():
            if not weight.requires_grad:
                self._note(f"whether {name} is trained", "not trained")
        for name in ("autocast", "accumulate", "clip_norm", "clip_value"):
            self._note(name, text_of(getattr(step, name)))
