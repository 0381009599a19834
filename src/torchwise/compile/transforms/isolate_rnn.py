"""Isolated RNNs: each `nn.RNN`, `nn.GRU` and `nn.LSTM` of a model runs in eager, between compiled graphs.

Dynamo breaks the graph at the mention of an RNN, at a place where it cannot resume. The rest of that function is not
compiled at all. Often nothing of it is, for `self.rnn(f(x))` mentions the RNN before it computes f. A call of something
that is no RNN, and is disabled for Dynamo, breaks the graph too, but Dynamo resumes behind it. That gives one graph
before, the RNN as PyTorch runs it (cuDNN on a GPU), and one graph after.

The other way, Dynamo's setting `allow_rnn`, unrolls an RNN into its steps and is not taken. Compiling takes longer
with every step of a sequence: 11.5 s for a GRU of 20 steps on two CPU cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch

from torchwise.compile.shared_copies import share
from torchwise.compile.uncompiled_reason import no_effect
from torchwise.errors import UnsupportedError


class IsolatedRNN(torch.nn.Module):
    """Replaces an RNN, with its parameters and attributes, and calls it outside of Dynamo.

    It must not have an RNN's class, or Dynamo would break the graph as before. So `isinstance(it, nn.GRU)` is false.

    Args:
        rnn: the RNN, which is not changed.
        called: called on each call. It is a function, so that copies of the model share it.
    """

    def __init__(self, rnn: torch.nn.RNNBase, called: Callable[[], None]) -> None:
        super().__init__()
        # The very same dictionaries of parameters. Hooks run where the RNN itself is called.
        self.__dict__.update({name: value for name, value in vars(rnn).items() if "hooks" not in name})
        self.__dict__["_rnn"] = rnn  # past `__setattr__`, which would register it, and rename its parameters
        self.__dict__["_called"] = called

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Answer as the RNN does."""
        self._called()
        return self._rnn(*args, **kwargs)

    def flatten_parameters(self) -> None:
        """Do the same as the RNN: models call it ahead of the RNN, and Dynamo resumes behind a method of this class."""
        self._rnn.flatten_parameters()

    def __getattr__(self, name: str) -> Any:
        """Return a parameter, or an attribute that only the RNN's class has, such as a user's own method."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):  # only this class may answer those: Python reads from it how to copy
                raise
            return getattr(self.__dict__["_rnn"], name)


def isolate(call: Callable[..., Any]) -> tuple[torch.nn.Module, Callable[[Callable[..., Any]], Callable[..., Any]]]:
    """Return a copy of a model with shared parameters and isolated RNNs, and a layer that watches its calls.

    Raises:
        UnsupportedError: there is no RNN in it, or nothing else, or it cannot be copied. Or, on the first call, no RNN
            was called, so that isolating them changed nothing.
    """
    if not has_rnn(call):
        kind = type(call).__qualname__
        raise UnsupportedError(f"transforms has 'isolate_rnn', but {kind} has no nn.RNN, nn.GRU or nn.LSTM inside it")
    model = share(call)
    called: set[bool] = set()
    isolated: dict[int, IsolatedRNN] = {}
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, torch.nn.RNNBase):  # one that hangs in two places stays one
                parent._modules[name] = isolated.setdefault(id(child), IsolatedRNN(child, lambda: called.add(True)))
    return model, lambda inner: _assert_applied(inner, called)


def has_rnn(call: Callable[..., Any]) -> TypeGuard[torch.nn.Module]:
    """Whether a model has an RNN among its submodules. In one that is an RNN itself there is nothing to compile."""
    if not isinstance(call, torch.nn.Module) or isinstance(call, torch.nn.RNNBase):
        return False
    return any(isinstance(module, torch.nn.RNNBase) for module in call.modules())


def _assert_applied(inner: Callable[..., Any], called: set[bool]) -> Callable[..., Any]:
    def call_and_check(*args: Any, **kwargs: Any) -> Any:
        answer = inner(*args, **kwargs)
        if not called:
            raise no_effect(("transforms", "isolate_rnn"), "the call runs no nn.RNN, nn.GRU or nn.LSTM")
        return answer

    return call_and_check
