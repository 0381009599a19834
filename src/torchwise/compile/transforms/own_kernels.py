"""A kernel of the user's in place of the modules of one class. `torchwise.plan.kernels` declares such a choice."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from torchwise.compile.shared_copies import share
from torchwise.errors import UnsupportedError
from torchwise.plan.choice import Code, load_code
from torchwise.workload.train_step import TrainStep


def replace_modules(
    name: str, target: type | str, kernel: Code, call: Callable[..., Any]
) -> tuple[nn.Module, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Return a copy of a model that shares its weights and calls a kernel, and an empty layer for around it.

    Raises:
        UnsupportedError: the model has no such module, or cannot be copied.
    """
    if not isinstance(call, nn.Module) or not has_modules(target, call):
        wanted = target if isinstance(target, str) else target.__qualname__
        raise UnsupportedError(f"transforms has {name!r}, but {type(call).__qualname__} has no module of {wanted}")
    function, model = load_code(kernel), share(call)
    for part in list(_find(target, model)):
        part.__class__ = _derive(type(part), function)  # type: ignore[arg-type]  # the copy's class, the original's stays
    return model, lambda inner: inner


def has_modules(target: type | str, call: Any) -> bool:
    """Whether a model has, or is, a module of that class, whose forward is its class's own."""
    model = call.model if isinstance(call, TrainStep) else call
    return isinstance(model, nn.Module) and next(_find(target, model), None) is not None


def _find(target: type | str, model: nn.Module) -> Iterator[nn.Module]:
    wanted = {target} if isinstance(target, str) else set(_places_of(target))
    if isinstance(target, str) and target.partition(":")[0].endswith(".py"):
        file, _, name = target.rpartition(":")
        wanted = {f"{Path(file).resolve()}:{name}"}
    for part in model.modules():
        if "forward" not in vars(part) and wanted & set(_places_of(type(part))):
            yield part


def _places_of(cls: type) -> Iterator[str]:
    """Yield the places of a class: its module's name, and its file.

    A target and a plug-in of one file have a class each, and so has a model that was sent.
    """
    yield f"{cls.__module__}:{cls.__qualname__}"
    code = getattr(vars(cls).get("forward"), "__code__", None)
    if code is not None:
        yield f"{Path(code.co_filename).resolve()}:{cls.__qualname__}"


@functools.cache
def _derive(cls: type, kernel: Callable[..., Any]) -> type:
    """Return a class like `cls` whose forward is the kernel. There is one for each, so that code is compiled once."""

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return kernel(self, *args, **kwargs)

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "forward": forward}
    return types.new_class(cls.__name__, (cls,), exec_body=lambda own: own.update(names))
