"""Rewrites of the graphs of torch's functions, as Dynamo traces them, before Inductor differentiates and lowers them.

There, attention that somebody wrote out is still a product, a softmax and a product, under whatever names. Gradients
are those of the functions that are put in. Each rewrite is a function that changes a graph and returns how many places
it found. All rewrites of a plan are one pass, which Inductor runs on each graph. `record` makes such a graph of a call
in eager, by which a model's traits are found.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchwise import __version__
from torchwise._torch import dynamo, inductor
from torchwise._torch.private_name import check
from torchwise.compile.uncompiled_reason import no_effect
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
    rewrites: dict[str, Rewrite] = {name: _load(name) for name in names}

    class FunctionRewrites(base):  # type: ignore[misc]
        """The pass: counts the graphs that it received, and those that each rewrite changed."""

        def __init__(self) -> None:
            self.received = 0
            self.changed = dict.fromkeys(rewrites, 0)

        def __call__(self, graph: torch.fx.Graph) -> None:
            self.received += 1
            for name, rewrite in rewrites.items():
                self.changed[name] += rewrite(graph) > 0

        def uuid(self) -> Any:
            """Return this pass's part of the key of compiled code, in addition to the graph."""
            own = map(str, Path(__file__).parent.glob("*.py"))
            files = {*own, *filter(None, map(_find_source, rewrites.values()))}
            return repr((names, __version__)).encode() + inductor.HASH_FILES.get(_WHO)(tuple(sorted(files)))

        @contextlib.contextmanager
        def assert_applied(self) -> Iterator[None]:
            """Watch a first call: each rewrite must change a graph, unless a cache had the code of some."""
            received, changed, cached = self.received, dict(self.changed), _count_cached()
            yield
            for name in names:
                if _count_cached() == cached and self.received > received and self.changed[name] == changed[name]:
                    raise no_effect(("transforms", name), "no graph has a place for it")

    return FunctionRewrites()


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
