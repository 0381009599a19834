"""The manager of a program's components and of their settings, and the decorator `compiled`."""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast, overload
from weakref import WeakValueDictionary

import torch

from torchwise.errors import InputError, TorchwiseError
from torchwise.former_packages import warn_once
from torchwise.runtime import unwrap
from torchwise.runtime.components.component import Component
from torchwise.runtime.components.config import PROFILES, CompileConfig, list_modes
from torchwise.runtime.components.find import Find, tune_in_workers
from torchwise.runtime.components.program import (
    autocast_of,
    copy_with_shared_dict,
    describe_device,
    device_of,
    function_of,
    place,
    place_instances,
)
from torchwise.runtime.components.statistics import ComponentStatistics
from torchwise.workload import Example

logger = logging.getLogger("torchwise")

LATE = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)

T = TypeVar("T", bound=Callable[..., Any])


class CompileManager:
    """Holds the components of a program: functions, modules, and classes of modules.

    ::

        manager = torchwise.CompileManager("production", calls=1_000_000)
        manager.register(model.neuron, "neuron")
        manager.register(model.storage, "storage", enabled=False)
        carry = manager.register(carry)

    A component runs its original code for its first call, which shows the kind of its inputs. Then a search for a plan
    begins, in another process if one can search. The component uses the plan if it is right and surely fast enough. If
    anything goes wrong, the original answers, unless the config says `fallback=False`. A component lives as long as its
    function or module.

    With the environment variable `TORCHWISE_DISABLE=1`, every component runs its original code, and no search starts.
    """

    def __init__(
        self, config: CompileConfig | str = "production", *, find: Find = tune_in_workers, **changes: Any
    ) -> None:
        """Create a manager without components.

        Args:
            config: the settings, or the name of a profile: "development", "production" or "research".
            find: the function that finds plans, by default with `torchwise.tune`.
            **changes: fields of the config to change.

        Raises:
            InputError: there is no such profile or field, or a value is invalid.
        """
        if not isinstance(config, (CompileConfig, str)):
            raise InputError(f"config is of type {type(config).__name__}, but must be a CompileConfig or a profile")
        self._config = CompileConfig.of(config, **changes) if isinstance(config, str) else config.changed(**changes)
        self._changes = (_list_own(config) if isinstance(config, CompileConfig) else {}) | changes
        self._find = find
        self._said_device: CompileConfig | None = None
        self._lock = threading.RLock()  # reentrant: `set_mode` holds it and reads `components`, which takes it as well
        self._components: WeakValueDictionary[str, Component] = WeakValueDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as disabled and without components: a class that registers its instances may be sent to a worker."""
        return CompileManager, ("development",)

    @property
    def config(self) -> CompileConfig:
        """The settings of all components that were registered without changes."""
        return self._config

    @property
    def components(self) -> dict[str, Component]:
        """The living components by name."""
        with self._lock:  # other threads may register meanwhile, and `items` leaves out components that die meanwhile
            return dict(self._components.items())

    @property
    def parts(self) -> dict[str, Component]:
        """The former name of `components`."""
        warn_once("CompileManager.parts", "components")
        return self.components

    def register(self, target: T, name: str | None = None, *, examples: Sequence[Example] = (), **changes: Any) -> T:
        """Make `target` a component, and return it for use as before.

        Args:
            target: a function, a module, or a class of modules. A function is replaced by another one (a static method
                stays static). A module stays the same object. Each new instance of a class becomes a component.
            name: the component's name in statistics, with "#2" appended if it is taken. By default, the target's own
                name.
            examples: inputs for the search, by default those of the first call.
            **changes: fields of the config to change for this component.

        Raises:
            InputError: the target cannot be a component, or a field or its value is wrong.
            TorchwiseError: with `lazy=False` and `fallback=False`, the search failed.
        """
        if isinstance(target, staticmethod):  # a plain function would be passed the instance, as methods are
            own = self.register(target.__func__, name, examples=examples, **changes)
            return cast("T", staticmethod(own))
        _check(target, examples, self._config.changed(**changes))
        if isinstance(target, type):
            place_instances(target, functools.partial(self._instance, name, tuple(examples), changes))
            return target
        return cast("T", self._add(target, name, tuple(examples), changes))

    def device(self) -> str:
        """Return the device for components: "cuda" if there is a GPU, unless the config says otherwise.

        With `progress`, standard error says once which device it is, and why.
        """
        if self._config.progress and self._said_device != (config := self._config):
            self._said_device = config
            print(f"torchwise: device {describe_device(config)}", file=sys.stderr)
        return device_of(self._config)

    def autocast(self, dtype: torch.dtype | str | None = None) -> AbstractContextManager[Any]:
        """Return the autocast context of components, for code around them, or a null context without `autocast`.

        Args:
            dtype: bfloat16 or float16, as dtype or name, for this context alone. None takes the config's.

        Raises:
            InputError: it is another dtype.
        """
        name = str(dtype).removeprefix("torch.") if dtype is not None else None
        return autocast_of(self._config.changed(autocast=name) if name else self._config)

    def set_mode(self, mode: str) -> None:
        """Switch all components to a profile or a mode.

        A component keeps a plan that its new settings permit, and the fields that it was registered with. A profile
        keeps the fields that the manager was created with. Of a `CompileConfig` these are `allow`, `tolerance`,
        `effort` and `minimum_speedup`, if no profile has their value.

        Args:
            mode: "development", "production", "research", "auto" or a mode of `torch.compile`. For "auto" and those
                modes, all results so far are forgotten.

        Raises:
            InputError: there is no such profile or mode, or the config does not allow it.
        """
        if mode not in PROFILES and mode not in list_modes():
            raise InputError(f"mode is {mode!r}, but must be one of {', '.join((*PROFILES, *list_modes()))}")
        with self._lock:
            is_profile, components = mode in PROFILES, self.components.values()
            config = self._config.with_profile(mode, self._changes) if is_profile else self._config.changed(mode=mode)
            each = [config.changed(**component.changes) for component in components]  # check all before switching any
            self._config = config
            for component, asked in zip(components, each, strict=True):
                component.configure(asked)

    def clear(self, name: str | None = None) -> None:
        """Forget plans, failures and statistics, so that the next calls search again. Stored results stay on disk.

        Args:
            name: the component to clear, by default all components.

        Raises:
            InputError: there is no such component.
        """
        components = self.components
        if name is not None and name not in components:
            raise InputError(f"there is no component {name!r}, but {', '.join(components) or 'none at all'}")
        for component in components.values() if name is None else [components[name]]:
            component.clear()

    def __repr__(self) -> str:
        return f"<CompileManager: {', '.join(self._components) or 'no components'}>"

    def statistics(self) -> dict[str, ComponentStatistics]:
        """Return the statistics of each component by name."""
        return {name: component.statistics for name, component in self.components.items()}

    def _list_monitored(self) -> dict[str, Component]:
        return self.components

    def _add(
        self,
        target: Callable[..., Any],
        name: str | None,
        examples: tuple[Example, ...],
        changes: dict[str, Any],
        is_whole: bool = True,
    ) -> Callable[..., Any]:
        module = target if isinstance(target, torch.nn.Module) else None
        original = target if module is None else copy_with_shared_dict(module)
        name = name or getattr(target, "__qualname__", None) or type(target).__qualname__
        with self._lock:
            config = self._config.changed(**changes)
            name = self._free(name)
            component = Component(name, original, config, self._find, examples, changes)
            if module is not None:
                place(module, component)
            self._components[name] = component
        if not config.lazy and is_whole:  # otherwise the first call starts the search
            component.seek()
        return function_of(component) if module is None else module

    def _instance(
        self,
        name: str | None,
        examples: tuple[Example, ...],
        changes: dict[str, Any],
        module: torch.nn.Module,
        is_whole: bool,
    ) -> None:
        """Register a new instance of a registered class. If that fails, the instance is still created."""
        try:
            self._add(module, name, examples, changes, is_whole)
        except TorchwiseError as error:
            logger.warning("torchwise: a %s is left as it is, because %s", type(module).__name__, error)

    def _free(self, name: str) -> str:
        """Return the name, or the first free one of "name#2", "name#3" and so on."""
        return next(
            n for n in itertools.chain([name], (f"{name}#{i}" for i in itertools.count(2))) if n not in self._components
        )


def _list_own(config: CompileConfig) -> dict[str, Any]:
    """Return the fields by which a config goes its own way, unlike any profile: another profile must not undo them."""
    searched = [profile for profile in PROFILES.values() if profile["enabled"]]
    values = {name: getattr(config, name) for name in ("allow", "tolerance", "effort", "minimum_speedup")}
    return {name: value for name, value in values.items() if all(value != one[name] for one in searched)}


def _check(target: object, examples: Sequence[Example], config: CompileConfig) -> None:
    """Refuse a target or examples that cannot be registered.

    Raises:
        InputError: the target cannot be a component, or examples are missing or do not fit.
    """
    if isinstance(target, type) and not issubclass(target, torch.nn.Module):
        raise InputError(
            f"{target.__name__} is a class, but only classes of torch.nn.Module have components for instances"
        )
    if not callable(target):
        raise InputError(
            f"the component is of type {type(target).__name__}, but must be a function, a module or its class"
        )
    if any(is_late(target) for is_late in LATE):
        raise InputError(
            f"{getattr(target, '__qualname__', target)} is a coroutine or a generator function, whose call computes "
            "nothing yet: register the function that it calls"
        )
    if unwrap(target) is not target:
        raise InputError("the component runs by a plan already: register its original, or leave it as it is")
    if wrong := [example for example in examples if not isinstance(example, Example)]:
        raise InputError(f"an example is of type {type(wrong[0]).__name__}, but must be torchwise.Example((x,))")
    if not config.lazy and not examples:
        raise InputError("lazy is False, but there are no examples to search with: examples=[torchwise.Example((x,))]")


_default = CompileManager()


def default_manager() -> CompileManager:
    """Return the manager of all decorated components. Its profile is "production" until its mode is set."""
    return _default


@overload
def compiled(target: T, /) -> T: ...
@overload
def compiled(
    *,
    name: str | None = None,
    examples: Sequence[Example] = (),
    manager: CompileManager | None = None,
    **changes: Any,
) -> Callable[[T], T]: ...
def compiled(
    target: Any = None,
    /,
    *,
    name: str | None = None,
    examples: Sequence[Example] = (),
    manager: CompileManager | None = None,
    **changes: Any,
) -> Any:
    """Run a function, a module or each instance of a class of modules by its fastest verified plan.

    ::

        @torchwise.compiled
        def step(x): ...

        @torchwise.compiled(calls=1_000_000, allow="lower-precision")
        class Net(torch.nn.Module): ...

        model = torchwise.compiled(Net())

    The first call runs the original code, and starts a search for a plan for its inputs. The original answers until
    another process has a plan that is verified and compiled. If no other process can search, the first call waits for
    the search (`CompileConfig.background`). The result is stored for the next start of the program. If anything goes
    wrong, the original answers.

    Args:
        target: the function, module or class of modules to decorate.
        name: as for `CompileManager.register`.
        examples: as for `CompileManager.register`.
        manager: the manager that registers the component, by default `default_manager()`.
        **changes: fields of `CompileConfig` to change.

    Raises:
        InputError: the target cannot be a component, or a field or its value is wrong.
        TorchwiseError: with `lazy=False` and `fallback=False`, the search failed.
    """

    registry = manager or _default
    registry.config.changed(**changes)  # refuses an unknown field before anything is decorated

    def register(target: T) -> T:
        return registry.register(target, name, examples=examples, **changes)

    return register if target is None else register(target)
