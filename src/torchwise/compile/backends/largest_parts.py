"""Find the largest parts of a graph that a compiler takes, where it refuses the whole, by trying.

The operators that the compiler's error names are left out. Where it names none, the longest run of operators that it
takes is found by halving, from the beginning on. The operator after it is the reason, and the search goes on behind it.
All operators of its kind are left out from then on, so that a reason in each of many layers is found once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise.compile.backends.graph_parts import (
    Compiled,
    Node,
    Part,
    count_operators,
    describe_kind,
    join_parts,
    list_units,
    make_examples,
    make_part,
)
from torchwise.compile.backends.shares import MIN_SHARE, Share
from torchwise.errors import UnsupportedError, first_line, format_error

Unit = tuple[Node, ...]
CompileGraph = Callable[[torch.fx.GraphModule, Sequence[Any]], Compiled]
"""Compiles a graph of Dynamo for inputs like these, or raises any error."""
MIN_OPERATORS = 4
"""Operators of the smallest part that is compiled. Each call of a part costs as much as some operators in eager."""
MAX_TRIES = 64
"""Parts of one graph that are compiled to find out whether the compiler takes them. The rest is then left out."""


def take_largest_parts(
    graph: torch.fx.GraphModule,
    inputs: Sequence[Any],
    compile_graph: CompileGraph,
    refusal: Exception,
    share: Share,
) -> torch.fx.GraphModule:
    """Return a graph whose largest parts are compiled, with the operators between them as they are.

    Args:
        graph: as Dynamo captured it.
        inputs: its example inputs.
        compile_graph: compiles a part.
        refusal: its error for the whole graph.
        share: of the graph, in which none is taken yet. The parts are counted, and the reasons for the rest.

    Raises:
        UnsupportedError: there are no parts, or they have too few of the operators. Then none is taken.
    """
    search = _Search(graph, inputs, compile_graph, refusal)
    pieces = search.run()
    share.taken, share.parts = search.taken, search.parts
    share.reasons.update(search.reasons)
    return join_parts(graph, pieces)


def describe_error(error: Exception) -> str:
    """Return the reason why a compiler does not take a graph, in a line."""
    return str(error) if isinstance(error, UnsupportedError) else first_line(format_error(error))


class _Search:
    """The search in one graph. Its operators are gone through in their order."""

    def __init__(
        self, graph: torch.fx.GraphModule, inputs: Sequence[Any], compile_graph: CompileGraph, refusal: Exception
    ) -> None:
        self._graph, self._compile, self._refusal = graph, compile_graph, refusal
        self._known = dict(zip(graph.graph.find_nodes(op="placeholder"), inputs, strict=True))
        try:
            self._units = list_units(graph)
        except UnsupportedError as error:
            raise UnsupportedError(f"{describe_error(refusal)}; and no part of it is compiled, as {error}") from error
        self._refused, self._left = set[Unit](), MAX_TRIES
        self._operators = _count(self._units)
        self.taken, self.parts, self.reasons = 0, 0, dict[str, None]()

    def run(self) -> list[tuple[Part, Compiled] | Node]:
        """Return the compiled parts and the operators between them, in their order."""
        pieces = list[tuple[Part, Compiled] | Node]()
        rest: Sequence[Unit] = self._units
        while rest:
            self._check_share(rest)
            run = self._list_until_refused(rest)
            if _count(run) < MIN_OPERATORS or self._left <= 0:
                used, found = rest[: len(run) + 1], None
                if _count(run) >= MIN_OPERATORS:
                    self.reasons[f"{MAX_TRIES} parts were tried, which is the most"] = None
            else:
                length, found = self._take_longest(run)
                used = run[:length]
            rest = rest[len(used) :]
            if found is None:
                pieces += [node for unit in used for node in unit]
            else:
                pieces.append(found)
                self.taken += _count(used)
                self.parts += 1
        return pieces

    def _check_share(self, rest: Sequence[Unit]) -> None:
        """Refuse the graph as soon as the operators that may still be taken are too few."""
        best = self.taken
        while rest:
            run = self._list_until_refused(rest)
            best += _count(run) if _count(run) >= MIN_OPERATORS else 0
            rest = rest[len(run) + 1 :]
        if best and best >= MIN_SHARE * self._operators:
            return
        reasons = "; ".join(self.reasons) or describe_error(self._refusal)
        if self._operators >= MIN_OPERATORS:
            reasons += f" (of {self._operators} operators it could take {best}, and must take {MIN_SHARE:.0%})"
        raise UnsupportedError(reasons, getattr(self._refusal, "about", ()))

    def _list_until_refused(self, units: Sequence[Unit]) -> Sequence[Unit]:
        return units[: next((place for place, unit in enumerate(units) if unit in self._refused), len(units))]

    def _take_longest(self, run: Sequence[Unit]) -> tuple[int, tuple[Part, Compiled] | None]:
        """Return the length of the longest beginning of a run that is compiled, and that part.

        If there is none, the length is that of a beginning that runs as it is. It is 0 if the run is to be tried again
        without the operators that are left out from now on.
        """
        is_known = len(run) == len(self._units) and hasattr(self._refusal, "names")
        # Otherwise the whole graph may still be a part: views of its inputs are made outside of it.
        found, error = (None, self._refusal) if is_known else self._try(run)
        if error is None:
            return len(run), found
        low, high, longest = 0, len(run), None
        while high - low > 1 and self._left > 0 and not self._leave_out_named(run, error):
            middle = (low + high) // 2
            found, refused = self._try(run[:middle]) if _count(run[:middle]) else (None, None)
            if refused is None:
                low, longest = middle, found
            else:
                high, error = middle, refused
        if high - low > 1 and self._left > 0:
            return 0, None
        if high - low == 1:
            self._leave_out(run[low], error)
        return (high, None) if longest is None or _count(run[:low]) < MIN_OPERATORS else (low, longest)

    def _leave_out_named(self, run: Sequence[Unit], error: Exception) -> bool:
        """Leave out the operators of a run that an error names, and return whether there are any."""
        names = getattr(error, "names", ())
        named = [unit for unit in run if any(node.name in names for node in unit)]
        self._refused.update(named)
        if named:
            self.reasons[describe_error(error)] = None
        return bool(named)

    def _try(self, units: Sequence[Unit]) -> tuple[tuple[Part, Compiled] | None, Exception | None]:
        """Return a part and its code, or the error of the compiler."""
        self._left -= 1
        try:
            part = make_part(self._graph, [node for unit in units for node in unit])
            return (part, self._compile(part.graph, make_examples(part, self._known))), None
        except torch.OutOfMemoryError:  # which says nothing about its operators
            raise
        except Exception as error:  # a compiler may raise any error
            return None, error

    def _leave_out(self, unit: Unit, error: Exception) -> None:
        """Leave an operator out, and all of its kind if the compiler does not take it by itself."""
        self._refused.add(unit)
        if _count([unit]):
            _, alone = self._try([unit])
            if alone is not None:
                kind, error = describe_kind(unit[0]), alone
                self._refused.update(one for one in self._units if describe_kind(one[0]) == kind)
        self.reasons[describe_error(error)] = None


def _count(units: Sequence[Unit]) -> int:
    return sum(map(count_operators, units))
