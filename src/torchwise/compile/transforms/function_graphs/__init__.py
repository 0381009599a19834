"""Rewrites of the graphs of torch's functions, as Dynamo traces them, before Inductor differentiates and lowers them.

There, attention that somebody wrote out is still a product, a softmax and a product, under whatever names. Gradients
are those of the functions that are put in. Each rewrite is a function that changes a graph and returns how many places
it found, or raises an `UnsupportedError` with the reason why there are none. All rewrites of a plan are one pass, which
Inductor runs on each graph. Those that need no compiler may also be run in eager (`backends/rewritten.py`). `record`
makes such a graph of a call in eager, by which a model's traits are found.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from torchwise import __version__
from torchwise._torch import dynamo, inductor
from torchwise._torch.private_name import check
from torchwise.compile.uncompiled_reason import no_effect
from torchwise.errors import UnsupportedError
from torchwise.plan.choice import load_choices, load_code

Rewrite = Callable[[torch.fx.Graph], int]
OPTION = "pre_grad_custom_pass"
"""Inductor's option for a pass over these graphs."""
_WHO = "rewriting functions"


@functools.cache
def graph_pass(names: tuple[str, ...]) -> Any:
    """Return the value of `OPTION` that makes these rewrites: one and the same, as options are compared.

    Raises:
        UnsupportedError: this torch has no such option.
    """
    check(_WHO, (inductor.GRAPH_PASS, inductor.HASH_FILES))
    base: Any = inductor.GRAPH_PASS.get(_WHO)

    class FunctionRewrites(Rewriting, base):  # type: ignore[misc]
        """The pass."""

        def uuid(self) -> Any:
            """Return this pass's part of the key of compiled code, in addition to the graph."""
            own = map(str, Path(__file__).parent.glob("*.py"))
            files = {*own, *filter(None, map(_find_source, self.rewrites.values()))}
            return repr((names, __version__)).encode() + inductor.HASH_FILES.get(_WHO)(tuple(sorted(files)))

        def __reduce__(self) -> Any:
            """Return the names and the key, as PyTorch 2.11 pickles this pass itself for the key of compiled code."""
            return _unpickle_pass, (names, self.uuid())

    return FunctionRewrites(names)


def _unpickle_pass(names: tuple[str, ...], _key: object) -> Any:
    """Return the pass of some rewrites. Its key is there for those who compare the bytes that were pickled."""
    return graph_pass(names)


class Rewriting:
    """Makes the rewrites of a plan, and counts the graphs that it received, and those that each rewrite changed.

    Args:
        names: the rewrites, in their order.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.rewrites: dict[str, Rewrite] = {name: _load(name) for name in names}
        self.received = 0
        self.changed = dict.fromkeys(names, 0)
        self.reasons: dict[str, list[str]] = {name: [] for name in names}

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Rewrite a graph. One that a rewrite is not for stays as it is."""
        self.received += 1
        for name, rewrite in self.rewrites.items():
            try:
                self.changed[name] += rewrite(graph) > 0
            except UnsupportedError as reason:
                self.reasons[name].append(str(reason))

    @contextlib.contextmanager
    def assert_applied(self) -> Iterator[None]:
        """Watch a first call: each rewrite must change a graph, unless a cache had the code of some."""
        received, changed, cached = self.received, dict(self.changed), _count_cached()
        for reasons in self.reasons.values():
            reasons.clear()  # those of earlier calls, as this pass may outlive many models
        yield
        for name in self.rewrites:
            if _count_cached() == cached and self.received > received and self.changed[name] == changed[name]:
                told = "; ".join(dict.fromkeys(self.reasons[name]))
                raise no_effect(("transforms", name), told or "no graph has a place for it")


def _count_cached() -> int:
    """Count the graphs whose code a cache had. They are not rewritten, so nobody sees their places."""
    hits = (("aot_autograd", "autograd_cache_hit"), ("inductor", "fxgraph_cache_hit"))
    return sum(dynamo.get_counters(group).get(name, 0) for group, name in hits)


def _find_source(rewrite: Any) -> str | None:
    """Return the file of a rewrite's code, also of a plug-in's that is a partial or an object that can be called."""
    while isinstance(rewrite, functools.partial):
        rewrite = rewrite.func
    rewrite = inspect.unwrap(rewrite)
    try:
        return inspect.getsourcefile(rewrite if inspect.isroutine(rewrite) else type(rewrite))
    except TypeError:  # it is built in
        return None


def _load(name: str) -> Rewrite:
    code = load_choices()["transforms", name].realized_by
    assert code is not None, "names of rewrites that nothing realizes are refused before"
    return load_code(code)
