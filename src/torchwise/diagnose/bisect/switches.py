"""Count and skip the compiler's passes, all kinds of them in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torchwise._torch import aot_autograd, inductor

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
        inductor.replace_bisector(self._is_off)
        aot_autograd.set_config("enable_autograd_cache", False)

    @property
    def applied(self) -> dict[str, tuple[str, ...]]:
        """The applied passes, including those that would have been applied, in order."""
        return {kind: tuple(names) for kind, names in self._applied.items()}

    def _is_off(self, _backend: str, kind: str, name: Callable[[], str] | None = None) -> bool:
        names = self._applied.setdefault(kind, [])
        names.append(str(name())[:MAX_CHARACTERS] if name else kind)
        return kind in self._most and len(names) > self._most[kind]
