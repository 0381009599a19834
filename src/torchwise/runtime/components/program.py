"""Put a component in the place of its original, so that nothing else in the program changes.

A function is replaced by one that calls the component. A module stays the same object, with its parameters, hooks and
place in the tree. It gets a class of its own, derived from its class, whose `__call__` calls the component (as
`torch.nn.utils.parametrize` does for properties). The component tunes and compiles the module's twin, an object of the
original class, which shares its attributes. The config's autocast holds around the twin as well as around the plan.

Only that class holds the component. So a module whose attributes lead back to it, and which its twin therefore keeps
alive, is still freed with its plan.
"""

from __future__ import annotations

import functools
import operator
import types
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy

from torchwise import environment
from torchwise._torch.call_hook import answer_by_hook, takes_all_calls
from torchwise.compile.forward_entry import calls_forward_alone
from torchwise.errors import InputError
from torchwise.runtime.components.config import CompileConfig
from torchwise.runtime.monitored import BEHIND, Behind, find_in_place

if TYPE_CHECKING:
    from torchwise.runtime.components.component import Component


def is_component(module: object) -> bool:
    """Return whether a module is a component of any manager."""
    return isinstance(module, torch.nn.Module) and find_in_place(module) is not None


def function_of(component: Component) -> Callable[..., Any]:
    """Return the function that replaces the component's original, which is no module."""
    original = component.original

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return component.answer(original, args, kwargs)

    setattr(call, BEHIND, Behind(call, component))
    return call


def count_parameters(original: Callable[..., Any]) -> int:
    """Count the parameters of a module, except those whose shapes its first call decides. A function has none."""
    parameters = original.parameters() if isinstance(original, torch.nn.Module) else ()
    return sum(parameter.numel() for parameter in parameters if not is_lazy(parameter))


def place(module: torch.nn.Module, component: Component) -> None:
    """Make `component` answer calls of `module`, in place.

    Raises:
        InputError: its class cannot be changed, or it is a component already.
    """
    if (placed := find_in_place(module)) is not None:
        raise InputError(f"this {type(module).__name__} is component {placed.name!r} already: register it once")
    try:
        object.__setattr__(module, "__class__", _derive_class(type(module), component))
    except TypeError as error:
        raise InputError(
            f"a {type(module).__name__} cannot be registered in place ({error}): register a function that calls it"
        ) from error
    weakref.finalize(module, _let_go, weakref.ref(component)).atexit = False


def _let_go(component: weakref.ref[Component]) -> None:
    """Free what a component holds of its module, which is gone: a report may hold the component for its statistics."""
    if (found := component()) is not None:
        found.let_go()


def restore(module: torch.nn.Module) -> None:
    """Give a module that `place` changed its own class back."""
    derived = next(cls for cls in type(module).__mro__ if vars(cls).get(BEHIND) is not None)
    setattr(derived, BEHIND, None)  # for a class that was derived from it since, and stays
    object.__setattr__(module, "__class__", type(module).__mro__[1])


def place_instances(cls: type[torch.nn.Module], register: Callable[[torch.nn.Module, bool], object]) -> None:
    """Register each new instance of `cls`. Copied and unpickled instances are not registered.

    `register` is told whether the instance is complete: one of a derived class may still be under construction.
    """
    make = cls.__init__

    @functools.wraps(make)
    def __init__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        make(self, *args, **kwargs)
        if not is_component(self):  # a derived class may be registered, too
            register(self, type(self).__init__ is __init__)

    cls.__init__ = __init__  # type: ignore[method-assign]


def _derive_class(cls: type[torch.nn.Module], component: Component) -> type[torch.nn.Module]:
    """Return a class derived from `cls` whose instance calls its component, but is copied and pickled as `cls`."""

    def __call__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        # A class derived from this one later (as parametrisations do) has attributes that the twin lacks.
        if torch.compiler.is_compiling() or type(self) is not asking or (found := getattr(asking, BEHIND)) is None:
            return cls.__call__(self, *args, **kwargs)
        plain = functools.partial(cls.__call__, self)
        if takes_all_calls():  # or a recording would see the twin, which the plan calls, in the module's place
            return answer_by_hook(self, lambda *args, **kwargs: found.answer(plain, args, kwargs), args, kwargs)
        return found.answer(plain, args, kwargs)

    def __reduce_ex__(self: torch.nn.Module, protocol: Any) -> Any:  # noqa: N807
        reduced: Any = copy_with_shared_dict(self, cls).__reduce_ex__(protocol)
        make, given, *rest = reduced
        return operator.call, (make, *given), *rest  # pickle requires the object's own class as the argument of `make`

    own = {"__call__": __call__, "__reduce_ex__": __reduce_ex__, BEHIND: component}
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    asking = types.new_class(cls.__name__, (cls,), exec_body=lambda body: body.update({**names, **own}))
    return asking


def device_of(config: CompileConfig) -> str:
    """Return the device for components: "cuda" if there is a GPU, unless the config says otherwise."""
    return config.device or ("cuda" if torch.cuda.is_available() else "cpu")


def describe_device(config: CompileConfig) -> str:
    """Describe the device for components, and why it is that one, such as "cuda: NVIDIA H200, 140 GiB".

    A GPU is named only once CUDA has started.
    """
    device, chosen = device_of(config), ", as the config says" if config.device else ""
    if device == "cuda" and torch.cuda.is_initialized():  # to name it otherwise would start CUDA, and end forking
        gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
        capability = f"compute capability {gpu.major}.{gpu.minor}"
        return f"cuda: {gpu.name}, {gpu.total_memory / 2**30:.0f} GiB, {capability}{chosen}"
    if torch.cuda.is_available():
        why = ""
    elif torch.version.cuda is None:
        why = "; this PyTorch is built without CUDA"
    else:
        why = f"; this PyTorch is built for CUDA {torch.version.cuda}, but finds no GPU that it can use"
    here = f": {environment.detect('cpu').limited_hardware}" if device == "cpu" else ""
    return f"{device}{here}{chosen}{why}"


def autocast_of(config: CompileConfig) -> AbstractContextManager[Any]:
    """Return the autocast context for a component, or a null context if the config has no autocast."""
    if config.autocast is None:
        return nullcontext()
    return torch.autocast(device_of(config), getattr(torch, config.autocast))


def wrap_in_autocast(original: Callable[..., Any], config: CompileConfig) -> Callable[..., Any]:
    """Wrap `original` in the config's autocast, to be tuned in its place, or return it unchanged without autocast.

    The wrapper enters the context itself, so compiled or captured code includes it.
    """
    if config.autocast is None:
        return original
    device, dtype = device_of(config), getattr(torch, config.autocast)
    if isinstance(original, torch.nn.Module):
        return _module_under(original, device, dtype)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, dtype):
            return original(*args, **kwargs)

    del call.__wrapped__  # without the context, the function is another workload
    return call


def _module_under(original: torch.nn.Module, device: str, dtype: torch.dtype) -> torch.nn.Module:

    cls = type(original)
    name = "forward" if calls_forward_alone(original) else "__call__"

    def call_in_autocast(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch  # also in a worker

        with torch.autocast(device, dtype):
            return getattr(cls, name)(self, *args, **kwargs)

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, name: call_in_autocast}
    return copy_with_shared_dict(
        original, types.new_class(cls.__name__, (cls,), exec_body=lambda own: own.update(names))
    )


def copy_with_shared_dict(module: torch.nn.Module, cls: type[torch.nn.Module] | None = None) -> torch.nn.Module:
    """Return an object that shares every attribute with `module`, of class `cls` or by default of the module's own."""
    cls = cls or type(module)
    twin: torch.nn.Module = object.__new__(cls)
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin
