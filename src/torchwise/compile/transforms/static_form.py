"""Static forms: a model whose shapes depend on data is replaced by its own form with fixed shapes.

A model that selects rows by a mask, say, waits for the device to count them, breaks the graph and cannot be captured.
Often it has another form that computes every row and masks, and answers the same. No compiler finds that form, but the
model's author may know it, and declares it by a method:

    def static_form(self) -> nn.Module:
        return PaddedProcessor(self.step)

The method takes nothing, and returns a module (or function) with the same inputs and outputs as this one: values,
shapes, dtypes and order. That form must share the parameters and buffers themselves, not copies, so that changed
weights take effect, and have the same training mode. Register buffers that only the form needs with
`persistent=False`. The method returns `self` if there is no other form. It is called for every plan, so it should be
fast. Whether both agree is verified, as for any plan against eager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchwise.errors import UnsupportedError

METHOD = "static_form"


def has_static_form(call: Callable[..., Any]) -> bool:
    """Whether a callable declares another form of itself. One that raises does, and its trial reports the error."""
    try:
        return _find_static_form(call) is not None
    except Exception:  # the user's own code may raise anything
        return True


def take_static_form(call: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the form that `call` declares, and an empty layer for around its calls.

    Raises:
        UnsupportedError: it declares none, making it fails, it does not share the parameters and buffers, or hooks of
            the module would not run.
    """
    try:
        form = _find_static_form(call)
    except Exception as error:  # the user's own code may raise anything
        raise UnsupportedError(f"{METHOD}() of {_kind(call)} raised {type(error).__name__}: {error}") from error
    if form is None:
        raise UnsupportedError(
            f"transforms has '{METHOD}', but {_kind(call)} has no method {METHOD}, or returns itself"
        )
    if not callable(form):
        raise UnsupportedError(f"{METHOD}() of {_kind(call)} is of type {_kind(form)}, but must be callable")
    if isinstance(call, torch.nn.Module) and (call._forward_hooks or call._forward_pre_hooks):
        raise UnsupportedError(f"{_kind(call)} has forward hooks, which its static form does not run: remove them")
    if isinstance(call, torch.nn.Module) and isinstance(form, torch.nn.Module):
        _check_shared(call, form)
    return form, lambda inner: inner


def _find_static_form(call: Callable[..., Any]) -> Any:
    """Return the other form, or None if nothing is declared or the form is the callable itself."""
    method = getattr(call, METHOD, None)
    if not callable(method) or isinstance(method, torch.nn.Module):  # a submodule may have that name
        return None
    form = method()
    return None if form is call else form


def _check_shared(model: torch.nn.Module, form: torch.nn.Module) -> None:
    shared = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for name, tensor in form.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and id(tensor) not in shared:
            raise UnsupportedError(
                f"{METHOD}() of {_kind(model)} has its own tensor {name}, which is not shared with the model: "
                "share the model's submodules or parameters, and register constants as buffers with persistent=False"
            )


def _kind(thing: object) -> str:
    return getattr(thing, "__qualname__", type(thing).__qualname__)
