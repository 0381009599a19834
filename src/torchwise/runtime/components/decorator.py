"""The decorator `compiled`, and the one manager of all components that it registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from torchwise.runtime.components.manager import CompileManager
from torchwise.workload import Example

T = TypeVar("T", bound=Callable[..., Any])

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

    The first call runs the original code. It then waits for a search for a plan for its inputs (`torchwise.tune`). No
    further trial starts after 15 minutes, or after `budget_s`. The result is stored, so the next start of the program
    takes seconds. If anything goes wrong, the original answers.

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

    def register(target: T) -> T:
        return (manager or _default).register(target, name, examples=examples, **changes)

    return register if target is None else register(target)
