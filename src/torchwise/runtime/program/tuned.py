"""The result of tuning a program: its modules with their plans, and the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from torchwise.records import format as show
from torchwise.records.codec import to_builtins
from torchwise.records.recording import RecordedModule, Recording
from torchwise.report.recording import recording_document
from torchwise.runtime.api import Study
from torchwise.runtime.components.component import Component
from torchwise.runtime.monitored import Monitored
from torchwise.runtime.program.calls import Calls
from torchwise.runtime.program.placement import take_away

T = TypeVar("T")


@dataclass(slots=True)
class TunedModule:
    """A recorded module, and the result of its search, if there was one.

    Attributes:
        alike: other modules of the same structure, such as further blocks of a model, which get the same plan.
    """

    calls: Calls
    record: RecordedModule
    study: Study | None = None
    component: Component | None = None
    alike: list[TunedModule] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The time of all calls of the module, and of those that are like it."""
        return self.record.seconds + sum(one.record.seconds for one in self.alike)

    def __repr__(self) -> str:
        state = repr(self.component.statistics) if self.component else f"as written, {'; '.join(self.record.notes)}"
        return f"<TunedModule {self.record.name}: {state.rstrip(', ')}>"


class TunedProgram:
    """The result of tuning a program. It prints as a table on a terminal, and displays as a page in a notebook.

    Attributes:
        modules: the recorded modules, the one with the most time first.
    """

    def __init__(self, recording: Recording, modules: Sequence[TunedModule], returned: Any = None) -> None:
        self._recording = recording
        self.modules = tuple(modules)
        self.returned = returned

    @property
    def record(self) -> Recording:
        """The recording with the decisions."""
        return replace(self._recording, modules=tuple(module.record for module in self.modules))

    @property
    def studies(self) -> dict[str, Study]:
        """The study of each module that was tuned, by its name in the table."""
        return {module.record.name: module.study for module in self.modules if module.study}

    def _list_monitored(self) -> dict[str, Monitored]:
        return {module.record.name: module.component for module in self.modules if module.component is not None}

    def restore(self) -> None:
        """Give every module its own call back, and free the plans. A second call does nothing."""
        for module in self.modules:
            component, module.component = module.component, None
            if component is not None and (live := module.calls.live) is not None:
                take_away(live, component)

    def to_dict(self) -> dict[str, Any]:
        """Return schema `torchwise.recording/1`."""
        return {**to_builtins(self.record)}

    def save_json(self, path: str | Path) -> None:
        """Write schema `torchwise.recording/1`."""
        from torchwise.records.files import write_json

        write_json(self.record, path)

    def save_html(self, path: str | Path) -> None:
        """Write a self-contained page."""
        from torchwise.records.files import write_atomically

        write_atomically(self._repr_html_(), path)

    def __rich__(self) -> Any:
        from torchwise.report.terminal import render_terminal

        return render_terminal(recording_document(self.record))

    def _repr_html_(self) -> str:
        from torchwise.report.html import render_page

        return render_page(recording_document(self.record))

    def __repr__(self) -> str:
        placed = sum(module.component is not None for module in self.modules)
        modules = show.pluralize(len(self.modules), "module")
        return f"<TunedProgram {self._recording.program}: {placed} of {modules} by a plan>"


SPECIAL = (
    *("__len__", "__iter__", "__next__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__reversed__"),
    *("__enter__", "__exit__", "__aenter__", "__aexit__", "__aiter__", "__anext__", "__bool__"),
)
"""Methods that Python looks for in a class alone."""


class OptimizedProgram(Generic[T]):
    """An object whose modules run by their plans. Calls, attributes, items and contexts are the object's own.

    Attributes:
        report: what was recorded and decided.
        original: the object itself, in which the plans are.
    """

    def __new__(cls, original: T, report: TunedProgram) -> Self:  # noqa: ARG004 - those of `__init__`
        """Make an instance of a class that has the special methods of the object's class, and no others."""
        own = {name: _forward_to_original(name) for name in SPECIAL if hasattr(type(original), name)}
        return super().__new__(type(cls.__name__, (cls,), {**own, "__module__": cls.__module__}) if own else cls)

    def __init__(self, original: T, report: TunedProgram) -> None:
        self.__dict__.update(original=original, report=report)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as what it was made from, as a class of its own cannot be found by its name."""
        return OptimizedProgram, (self.original, self.report)

    def _list_monitored(self) -> dict[str, Monitored]:
        report: TunedProgram = self.report
        return report._list_monitored()

    def restore(self) -> T:
        """Take the plans away, and return the object as it was before."""
        self.report.restore()
        original: T = self.__dict__["original"]
        return original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the object."""
        return self.original(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("original", "report"):  # before they are set, as in a copy
            raise AttributeError(name)
        return getattr(self.original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.original, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.original, name)

    def _repr_html_(self) -> str:
        report: TunedProgram = self.report
        return report._repr_html_()

    def __repr__(self) -> str:
        return f"<OptimizedProgram of {type(self.original).__qualname__}: {self.report!r}>"


def _forward_to_original(name: str) -> Callable[..., Any]:
    def call(self: OptimizedProgram[Any], *args: Any) -> Any:
        return getattr(type(self.original), name)(self.original, *args)

    return call
