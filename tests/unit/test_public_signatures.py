"""A misspelt keyword argument is refused by name, with a similar one, by all that users call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import torchwise
from torchwise import artifact, bucketing, components, lock, training
from torchwise.errors import InputError

PACKAGES = (torchwise, artifact, bucketing, components, lock, training)
TYPED = (
    torchwise.CompileConfig,
    torchwise.CompileManager,
    torchwise.Example,
    torchwise.Plan,
    torchwise.TrainStep,
    torchwise.Workload,
    bucketing.Padding,
    training.PlannedForward,
)
"""Classes of which users make instances. The other public ones are results."""


def list_callables() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Yield each public callable that takes keywords, by its name, with one of its keywords."""
    for package in PACKAGES:
        for name in package.__all__:
            public = getattr(package, name)
            if not inspect.isfunction(public) and public not in TYPED:
                continue
            parameters = inspect.signature(public).parameters.values()
            named = [one.name for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)]
            if any(one.kind is one.VAR_KEYWORD for one in parameters):
                yield f"{package.__name__}.{name}", public, "effort"
            if len(named) > 2 or any(one.kind is one.KEYWORD_ONLY for one in parameters):
                yield f"{package.__name__}.{name}", public, max(named, key=len)


CALLABLES = list(list_callables())


@pytest.mark.parametrize(
    ("name", "public", "keyword"), CALLABLES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_misspelt_keyword_is_refused_with_the_one_that_was_meant(
    name: str, public: Callable[..., Any], keyword: str
) -> None:
    misspelt = keyword[:-1] + "xx"
    with pytest.raises((TypeError, InputError)) as refused:
        public(**{misspelt: 1})
    assert misspelt in str(refused.value)
    assert "did you mean " in str(refused.value)
    assert keyword in str(refused.value)


def test_the_walk_finds_what_users_call() -> None:
    found = {name for name, *_ in CALLABLES}
    assert {"torchwise.tune", "torchwise.explain", "torchwise.serve_batched", "torchwise.compiled"} <= found
    assert {"torchwise.artifact.save", "torchwise.runtime.bucketing.fit", "torchwise.Plan"} <= found


def test_a_signature_and_a_former_name_stay() -> None:
    assert "effort" in inspect.signature(torchwise.tune).parameters
    with pytest.warns(FutureWarning, match="recompute"):
        torchwise.Plan(recompute="blocks")  # type: ignore[call-arg]
