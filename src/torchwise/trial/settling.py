"""Whether the calls of a plan stop compiling: a program's differ in state and values, those of a timing do not."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from torchwise._torch.dynamo import count_compiled_graphs
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.workload_spec import VaryingDim
from torchwise.verify.observe import further
from torchwise.workload import Workload
from torchwise.workload.bounds import count_calls_within_bounds
from torchwise.workload.module_state import kept_state
from torchwise.workload.workload import resize_places

SETTLED_AFTER = 5
"""Calls in a row, of which the last two must compile nothing: on the second, Dynamo makes varying values variable."""
NEW_SIZES = 2
"""Sizes that no example has at which a plan for all sizes is called. PyTorch may compile once more for the first."""
MAX_NAMED = 3
"""Pieces of state that an error names."""

OF_THE_CODE = ("backend", "shapes", "scope", "transforms")
"""The parts of a plan on which it depends how often its calls compile."""


def check_that_state_settles(call: Callable[..., Any], workload: Workload, plan: Plan) -> None:
    """Make consecutive calls of a plan, each of which changes the state of the next.

    Raises:
        UnsupportedError: the calls go on compiling, as the values that they change are compiled in.
    """
    example = workload.examples[0].clone()
    compiled = [count_compiled_graphs()]
    with kept_state(workload.call, example.args, example.kwargs) as state:
        try:
            for _ in range(count_calls_within_bounds(workload.call, example, SETTLED_AFTER)):
                call(*example.args, **example.kwargs)
                compiled.append(count_compiled_graphs())
        except StalePlanError as error:
            raise UnsupportedError(f"a call changes what the plan holds for: {error}") from error
        except Exception:  # a model may raise when a cache is full; verification compares the calls with its own
            return
        changed, grown = list(state.changes()), state.find_grown()
    if len(compiled) <= SETTLED_AFTER or not compiled[-1] > compiled[-2] > compiled[-3]:
        return
    if grown and plan.shapes == "static":
        raise UnsupportedError(
            f"every call compiles again, as each gives another shape to {_list_few(grown)}: a plan with "
            "shapes='dynamic' compiles once for all",
            OF_THE_CODE,
        )
    named = _list_few(changed) or "its inputs"
    message = f"every call compiles again, for each changes what the code depends on: {named}"
    raise UnsupportedError(message, OF_THE_CODE)


def check_that_sizes_settle(call: Callable[..., Any], workload: Workload, varying: Sequence[VaryingDim]) -> None:
    """Call a plan for all sizes at sizes that no example has.

    Raises:
        UnsupportedError: each compiles again, as the model runs other operators at each size.
    """
    compiled = [count_compiled_graphs()]
    for more in range(1, NEW_SIZES + 1):
        lengths = {(one.path, one.dim): max(one.lengths) + more for one in varying}
        example = resize_places(workload.examples[0], lengths).clone()
        try:
            if not count_calls_within_bounds(workload.call, example, 1):
                return
            with kept_state(workload.call, example.args, example.kwargs):
                call(*example.args, **example.kwargs)
        except Exception:  # the model may not take this size, and other lengths were verified
            return
        compiled.append(count_compiled_graphs())
    if all(later > before for before, later in itertools.pairwise(compiled)):
        raise UnsupportedError(
            "every size compiles again, as the operators that the model runs depend on it: no plan serves all sizes",
            OF_THE_CODE,
        )


def compile_for_other_values(
    call: Callable[..., Any], workload: Workload, own_seconds: Callable[[Callable[[], Any]], float]
) -> float:
    """Call a plan on other values until a call compiles nothing, and return the seconds of those that did.

    After a graph break, sizes and branches inside a call may depend on values. A program would wait for this code.

    Raises:
        UnsupportedError: the calls go on compiling.
    """
    seconds: list[float] = []
    for example in further(workload, range(1, SETTLED_AFTER + 1)):
        before, copied = count_compiled_graphs(), example.clone()
        with kept_state(workload.call, copied.args, copied.kwargs):
            took = own_seconds(functools.partial(call, *copied.args, **copied.kwargs))
        if count_compiled_graphs() == before:
            return sum(seconds)
        seconds.append(took)
    if len(seconds) < SETTLED_AFTER:  # the model takes no such values
        return sum(seconds)
    raise UnsupportedError(
        f"{len(seconds)} calls on other values took {sum(seconds):.0f} s to compile again, as sizes or branches after "
        "a graph break depend on values: use masks over static sizes, or shapes='dynamic'"
    )


def _list_few(paths: list[str]) -> str:
    return ", ".join([*paths[:MAX_NAMED], *(["…"] if len(paths) > MAX_NAMED else [])])
