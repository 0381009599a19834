"""Compare the check of a model and its code in C++ with that in Python, through random changes of both."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from torchwise._torch import native
from torchwise.runtime.call_guard import CallGuard

CODE = """
import torch
def scale(x, k=2, *, m=3): return x * k * m
def keep(x): return x
class Inner(torch.nn.Module):
    def forward(self, x): return scale(x)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.flag = Inner(), 1
    def forward(self, x): return self.finish(self.inner(x))
    def finish(self, x): return keep(x)
class Other(Net): pass
"""

Space = dict[str, Any]
CHANGES: tuple[Callable[[Any, Space, random.Random], Any], ...] = (
    lambda m, _, r: m.train(r.random() < 0.5),
    lambda m, _, r: m.inner.train(r.random() < 0.5),
    lambda m, _, r: setattr(m, "flag", r.choice((1, 2))),
    lambda m, *_: setattr(m, "forward", lambda x: x),
    lambda m, *_: vars(m).pop("forward", None),
    lambda m, *_: setattr(m, "finish", m.finish),
    lambda m, *_: vars(m).pop("finish", None),
    lambda m, s, r: setattr(m, "__class__", r.choice((s["Net"], s["Other"]))),
    lambda m, _, r: setattr(m, "_compiled_call_impl", r.choice((None, len))),
    lambda m, *_: m.register_forward_hook(lambda *_: None),
    lambda m, *_: m._forward_hooks.popitem() if m._forward_hooks else None,
    lambda _, s, r: s.update(scale=r.choice((s["scale"], s["keep"]))),
    lambda _, s, r: setattr(s["scale"], "__code__", r.choice((s["scale"], s["keep"])).__code__),
    lambda _, s, r: setattr(s["scale"], "__defaults__", r.choice(((2,), (3,), None))),
    lambda _, s, r: setattr(s["scale"], "__kwdefaults__", {"m": r.choice((3, 4))}),
    lambda _, s, r: (s["scale"].__kwdefaults__ or {}).update(m=r.choice((3, 4))),
    lambda _, s, r: setattr(s["Net"], "finish", r.choice((s["Net"].finish, s["keep"]))),
    lambda *_: None,
)


def compare_guards(r: random.Random) -> int:
    """Compare the ways on a model that is changed a few times. Return how often nothing had changed.

    Raises:
        AssertionError: the two ways differ.
    """
    space: Space = {"__name__": "changed"}
    exec(CODE, space)
    model = space["Net"]().eval()
    for _ in range(r.randrange(2)):
        model.register_forward_hook(lambda *_: None)
    compiled = CallGuard(model, inference=True).make_check()
    with mock.patch.object(native, "load_checks", return_value=None):
        python = CallGuard(model, inference=True).make_check()
    unchanged, made = 0, list[int]()
    for _ in range(6):
        made.append(r.randrange(len(CHANGES)))
        CHANGES[made[-1]](model, space, r)
        found = [str(check()) for check in (python, compiled, python, compiled)]
        if len({*found}) > 1:
            raise AssertionError(f"after the changes {made} Python finds {found[::2]}, but C++ {found[1::2]}")
        unchanged += found[0] == "None"
    return unchanged


def run(checks: ModuleType, count: int, seed: int = 0) -> int:
    """Compare so many models. Return how often nothing had changed."""
    r = random.Random(seed)
    with torch.no_grad(), mock.patch.object(native, "load_checks", return_value=checks):
        return sum(compare_guards(r) for _ in range(count))
