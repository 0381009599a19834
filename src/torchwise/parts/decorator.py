"""The short way: a decorator, and one manager for all that it decorates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from torchwise.parts.manager import CompileManager
from torchwise.workload import Example

T = TypeVar("T", bound=Callable[..., Any])

_default = CompileManager()


def default_manager() -> CompileManager:
    """Return the manager of all that `compiled` decorates, in profile "production" until its mode is set."""
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
    """Run a function, a module or each instance of a class of modules in the fastest proven way.

    ::

        @torchwise.compiled
        def step(x): ...

        @torchwise.compiled(calls=1_000_000, allow="reduced")
        class Net(torch.nn.Module): ...

        model = torchwise.compiled(Net())

    The first call is answered as written, and then waits while a plan is sought with its inputs (`torchwise.tune`; no
    further plan is tried after 15 minutes, or after `budget_s`). What is found is stored: the next start of the program
    takes seconds. Whatever goes wrong, the original answers.

    Args:
        target: what is decorated.
        name: as for `CompileManager.register`.
        examples: likewise.
        manager: of whose parts this is one; by default `default_manager()`.
        **changes: fields of `CompileConfig` that are to be different.

    Raises:
        InputError: the target cannot be a part, or a field or its value is wrong.
        TorchwiseError: with `lazy=False` and `fallback=False`, no plan could be sought.
    """

    def register(target: T) -> T:
        return (manager or _default).register(target, name, examples=examples, **changes)

    return register if target is None else register(target)
