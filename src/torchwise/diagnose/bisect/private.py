"""Private names of torch, without a promise of stability, that bisecting needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchwise.compile.private import look_up

WHO = "bisect"
MAX_CHARACTERS = 200


class Switches:
    """Counts the applications of every kind of pass in this process, and skips those beyond a number.

    PyTorch calls its `CompilerBisector` before each. That class keeps its state in files and environment variables, for
    one kind of pass at a time. This one keeps it for all kinds, so that one probe both tries and counts.

    Source: `torch/_inductor/compiler_bisector.py`.
    """

    def __init__(self, most: Mapping[str, int]) -> None:
        self._most = most
        self._applied: dict[str, list[str]] = {}

    def install(self) -> None:
        """Replace `CompilerBisector` for the life of this process.

        Nothing compiled is reused.

        Raises:
            UnsupportedError: this torch has none.
        """
        bisector = look_up(WHO, ("torch._inductor.compiler_bisector", "CompilerBisector"))
        look_up(WHO, ("torch._inductor.compiler_bisector", "BACKENDS"))
        bisector.bisection_enabled = True  # bypasses the cache of graphs, which would hide the passes
        bisector.disable_subsystem = self._is_off
        look_up(WHO, ("torch._functorch", "config")).enable_autograd_cache = False

    @property
    def applied(self) -> dict[str, tuple[str, ...]]:
        """The applied passes, including those that would have been applied, in order."""
        return {kind: tuple(names) for kind, names in self._applied.items()}

    def _is_off(self, _backend: str, kind: str, name: Callable[[], str] | None = None) -> bool:
        names = self._applied.setdefault(kind, [])
        names.append(str(name())[:MAX_CHARACTERS] if name else kind)
        return kind in self._most and len(names) > self._most[kind]


def is_dynamos(target: Any) -> bool:
    """Return whether a graph calls Dynamo's replacement for a function of NumPy."""
    return str(getattr(target, "__module__", None) or "").startswith("torch._dynamo.")


def as_operators(function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """Return a graph of the ATen operators that a function runs on these inputs.

    Raises:
        UnsupportedError: this torch has no `make_fx`.
    """
    return look_up(WHO, ("torch.fx.experimental.proxy_tensor", "make_fx"))(function)(*inputs)


def set_cse(enabled: bool) -> None:
    """Set whether AOT autograd joins common subexpressions."""
    look_up(WHO, ("torch._functorch", "config")).cse = enabled


def inductor_options() -> dict[str, Any]:
    """Return every option of Inductor with its present value."""
    config = look_up(WHO, ("torch._inductor", "config"))
    return dict(config.get_config_copy())


def set_freezing(enabled: bool) -> None:
    """Set whether Inductor folds weights in as constants.

    `torch.compile` ignores it as an option.
    """
    look_up(WHO, ("torch._inductor", "config")).freezing = enabled
