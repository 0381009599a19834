"""Say why nothing of a model was compiled, or why a part of a plan changed nothing.

A plan that only pretends to change something would be timed as something that it is not.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from torchwise._torch import dynamo
from torchwise.errors import NoEffectError, first_line
from torchwise.workload import train_step
from torchwise.workload.module_state import kept_state
from torchwise.workload.train_step import TrainStep
from torchwise.workload.workload import Example

_TORCH = str(Path(torch.__file__).parent)
_STEPS = str(Path(train_step.__file__))
_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)\n\s*(?P<code>[^\n]*)', re.M)
_EXPLANATION = re.compile(r"^ *Explanation: (?P<text>.+)$", re.M)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def why_uncompiled(call: Callable[..., Any], example: Example) -> str:
    """Say why nothing of a call was compiled. It is called once more, on a copy of the example.

    PyTorch silently runs a function in eager. With `fullgraph=True` it gives the reason.
    """
    return find_graph_break(call, example) or (
        "it runs no operator that torch.compile traces, or it is under torch.compiler.disable"
    )


def find_graph_break(call: Callable[..., Any], example: Example) -> str:
    """Return why PyTorch cannot capture a call as one graph, with the user's line, or "" if it can.

    The call is made once more, on a copy of the example.
    """
    if isinstance(call, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return "it is TorchScript, which torch.compile does not compile: pass the model that it was created from"
    if rnn := _rnn(call.model if isinstance(call, TrainStep) else call):
        return rnn
    if isinstance(call, TrainStep):
        call = call.loss_of  # the part that a plan compiles: not the optimizer's part of a step
    cloned = example.clone()
    torch.compiler.reset()  # otherwise it remembers that the function runs in eager
    try:
        with kept_state(call):
            torch.compile(call, backend="eager", fullgraph=True)(*cloned.args, **cloned.kwargs)
    except Exception as error:  # the model may raise anything
        is_dynamos = any(cls.__module__ == dynamo.ERRORS for cls in type(error).__mro__)
        return (_extract_reason(str(error)) or "PyTorch reports no reason") if is_dynamos else ""
    return ""


def _rnn(call: Callable[..., Any]) -> str:
    """Name the RNN that PyTorch always runs in eager."""
    inside = list(call.modules()) if isinstance(call, torch.nn.Module) else []
    for kind in (torch.nn.GRU, torch.nn.LSTM, torch.nn.RNN, torch.nn.RNNBase):
        if any(isinstance(each, kind) for each in inside):
            around = "" if isinstance(call, kind) else ", and possibly the functions that call it"
            return f"PyTorch runs nn.{kind.__name__} in eager{around}"
    return ""


def _extract_reason(text: str) -> str:
    """Return the reason with the user's innermost line, or else with PyTorch's explanation."""
    reason = _ADDRESS.sub("", first_line(text)).rstrip(".")
    frames = [hit for hit in _FRAME.finditer(text) if not hit["file"].startswith((_TORCH, _STEPS))]
    if frames:
        last = frames[-1]
        return f"{reason}, at {last['file']}:{last['line']}, in {last['function']}: `{last['code'].strip()}`"
    hit = _EXPLANATION.search(text)
    return f"{reason}: {_ADDRESS.sub('', hit['text']).rstrip('.')}" if hit else reason


@contextlib.contextmanager
def assert_transform_applied(part: tuple[str, str], changed: Callable[[], int], reasons: list[str]) -> Iterator[None]:
    """Check on a first call that a part of the plan had an effect.

    Args:
        part: the plan's field that must have an effect, and its value.
        changed: returns the number of graphs changed so far.
        reasons: why other graphs were not changed. Graphs that are compiled in this context add theirs.

    Raises:
        NoEffectError (on leaving): graphs were compiled, but none was ever changed. No error is raised if none is
            compiled now, as Dynamo may have the code already.
    """
    before, known = changed(), len(reasons)
    yield
    if changed() == before and (len(reasons) > known or not before):
        told = reasons[known:] or reasons[-1:] or ["no graph was compiled"]
        raise no_effect(part, "; ".join(told))


def no_effect(part: tuple[str, str], why: str) -> NoEffectError:
    """Return the error for a part of a plan, its field and the value in it, that changes nothing."""
    field, value = part
    what = value if field == "transforms" else f"{field} {value!r}"
    return NoEffectError(f"{what} changes nothing here: {why}", part)
