"""Compare the checks of calls in C++ with those in Python on random calls: nothing may be recognized that is another.

A call is made of tensors, numbers, texts, containers and objects. It is changed at a random place, or made once more
with other tensors, and each recognizer is asked about it. C++ must never recognize a call with another signature, and
must recognize all that Python's recognizer does. The state of a module is changed at random, too.

With --sanitize, the checks are compiled with AddressSanitizer, which ends the process at a wrong access to memory.

Run it: python tests/fuzz/calls.py --count 1000000
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections import OrderedDict, UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch

from torchwise._torch import native
from torchwise.compile import Recognizer, signature_of
from torchwise.compile.guards.module_guard import make_quick_check
from torchwise.errors import UnsupportedError

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Item:
    value: Any
    note: Any = None


class Computed(Item):
    @property
    def note(self) -> Any:  # type: ignore[override]
        """Return another value on each call, as an attribute may run any code."""
        return [self.value]

    @note.setter
    def note(self, _: Any) -> None: ...


class Bag(UserDict[str, Any]):
    pass


class Sub(torch.Tensor):
    pass


class Opaque:
    pass


BASE = torch.arange(64.0)
PLAIN = (0, 1, True, False, 1.0, 0.0, -0.0, float("nan"), None, "", "a", "ab", 1j, complex(0, -0.0), 2**70, b"a")
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64)
SHAPES = ((), (0,), (1,), (4,), (2, 3), (3, 2), (0, 3), (2, 2, 2))
TENSORS: tuple[Callable[[random.Random], torch.Tensor], ...] = (
    *[lambda r: torch.ones(r.choice(SHAPES), dtype=r.choice(DTYPES))] * 6,
    lambda r: BASE[r.randrange(8) : 16 : r.choice((1, 2))],
    lambda _: BASE[:0],
    lambda _: torch.ones(2, 3).t(),
    lambda _: torch.ones(1, 3).expand(2, 3),
    lambda _: torch.ones(4, requires_grad=True),
    lambda _: torch.nn.Parameter(torch.ones(4)),
    lambda _: torch.ones(4).as_subclass(Sub),
    lambda _: torch.ones(4, dtype=torch.complex64).conj(),
    lambda _: torch._neg_view(torch.ones(4)),
    lambda _: torch.eye(2).to_sparse(),
    lambda _: torch.ones(4, device="meta"),
    lambda _: _in_inference_mode(),
    lambda _: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
)


def _in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(4)


def make_value(r: random.Random, depth: int) -> Any:
    """Make a random value of a call, of at most so many levels."""
    kind = r.randrange(16 if depth else 10)
    if kind < 7:
        return r.choice(TENSORS)(r)
    if kind < 10:
        return r.choice(PLAIN)
    values = [make_value(r, depth - 1) for _ in range(r.randrange(4))]
    names = [r.choice("abcd") for _ in values]
    pair = [*values, None, None][:2]
    makers: tuple[Callable[[], Any], ...] = (
        lambda: values,
        lambda: tuple(values),
        lambda: dict(zip(names, values, strict=True)),
        lambda: Pair(*pair),
        lambda: r.choice((Item, Computed))(*pair),
        lambda: r.choice((lambda: OrderedDict(zip(names, values, strict=True)), lambda: Bag(a=values), Opaque))(),
    )
    return makers[kind - 10]()


def make_call(r: random.Random) -> Call:
    """Make a random call. Some give one tensor twice."""
    args = [make_value(r, 2) for _ in range(r.randrange(4))]
    kwargs = {name: make_value(r, 2) for name in "xy"[: r.randrange(3)]}
    if args and r.random() < 0.1:
        args.append(args[0])
    return tuple(args), kwargs


def change(r: random.Random, value: Any) -> Any:
    """Return a copy of a value that is changed at one place, or an equal one."""
    if isinstance(value, torch.Tensor):
        if r.random() < 0.5 and type(value) is torch.Tensor and value.layout is torch.strided and not value.is_nested:
            return value.detach().clone() if not value.is_inference() else value
        return r.choice(TENSORS)(r)
    if type(value) in (list, tuple) and value:
        copied = list(value)
        place = r.randrange(len(copied))
        copied[place] = change(r, copied[place])
        if r.random() < 0.2:
            copied += copied[:1]
        return type(value)(copied)
    if type(value) in (dict, OrderedDict) and value:
        name = r.choice([*value])
        copied = {**value, name: change(r, value[name])}
        return type(value)(reversed(copied.items()) if r.random() < 0.2 else copied)
    if isinstance(value, Pair):
        return Pair(change(r, value.first), value.second)
    if isinstance(value, Item):
        return type(value)(change(r, value.value), value.note)
    return r.choice(PLAIN) if r.random() < 0.5 else value


def compare_call(r: random.Random) -> tuple[bool, bool]:
    """Compare the ways on one kind of call and some like it. Return whether C++ judged, and recognized one of them."""
    args, kwargs = call = make_call(r)
    try:
        python = Recognizer(args, kwargs)
        compiled = python.translate(args, kwargs)
    except UnsupportedError:
        return False, False
    if compiled is None:
        return False, False
    recognized = False
    signature = signature_of(*call)
    for _ in range(4):
        given: Call = (change(r, args), change(r, kwargs)) if r.random() < 0.8 else call
        if not isinstance(given[0], tuple) or not isinstance(given[1], dict):
            continue
        same = compiled(*given)
        is_same = signature_of(*given) == signature
        if same and not is_same:
            raise AssertionError(f"C++ recognizes {given} as {call}, but its signature is another")
        if Recognizer(args, kwargs)(*given) and not same:
            raise AssertionError(f"C++ does not recognize {given} as {call}, but Python does")
        recognized |= same
    return True, recognized


def make_module(r: random.Random) -> torch.nn.Module:
    """Make a module with some of everything that is checked."""
    made = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout())
    made.scale, made.table = 2.0, torch.ones(3)  # type: ignore[assignment]
    for part in made:
        for _ in range(r.randrange(3)):
            part.register_forward_hook(lambda *_: None)
    return made.eval()


def _replace_hook(m: Any) -> None:
    hooks = m[1]._forward_hooks
    if hooks:
        hooks.popitem()
        m[1].register_forward_hook(lambda *_: None)


CHANGES: tuple[Callable[[Any, random.Random], Any], ...] = (
    lambda m, r: setattr(m, "scale", r.choice((2.0, 3.0))),
    lambda m, r: m.train(r.random() < 0.5),
    lambda m, _: setattr(m, "table", torch.ones(3)),
    lambda m, _: setattr(m[0].weight, "data", torch.ones(2, 2)),
    lambda m, _: setattr(m[0].weight, "data", m[0].weight.data.t()),
    lambda m, r: m[0].weight.requires_grad_(r.random() < 0.5),
    lambda m, _: m[0].weight.data.mul_(2),
    lambda m, _: m[1].register_forward_hook(lambda *_: None),
    lambda m, _: _replace_hook(m),
    lambda m, r: m[1]._forward_hooks.move_to_end(r.choice([*m[1]._forward_hooks])) if m[1]._forward_hooks else None,
    lambda m, _: m[0].register_parameter("bias", None),
    lambda m, _: m._modules.update({"0": m._modules.pop("0")}),
    lambda m, r: setattr(m[2], "__class__", r.choice((torch.nn.Dropout, torch.nn.AlphaDropout))),
    lambda m, _: m.double(),
    lambda _m, _r: None,
)


def compare_module(r: random.Random) -> None:
    """Compare the ways on a module that is changed a few times."""
    module = make_module(r)
    compiled = make_quick_check(module)
    with mock.patch.object(native, "load_checks", return_value=None):
        python = make_quick_check(module)
    for _ in range(3):
        r.choice(CHANGES)(module, r)
        if python() is not compiled():
            raise AssertionError(f"Python says that the module is unchanged: {python()}, but C++ says {compiled()}")


def run(
    checks: ModuleType, count: int, seed: int = 0, report: Callable[[str], None] = lambda _: None
) -> tuple[int, int]:
    """Compare so many kinds of calls, and a module for every ten. Return how many C++ judged and recognized.

    Raises:
        AssertionError: the two ways differ.
    """
    r, judged, recognized, start = random.Random(seed), 0, 0, time.monotonic()

    for number in range(count):
        with torch.no_grad(), mock.patch.object(native, "load_checks", return_value=checks):
            was_judged, was_recognized = compare_call(r)
            if number % 10 == 0:
                compare_module(r)
        judged, recognized = judged + was_judged, recognized + was_recognized
        if number % 10_000 == 0:
            report(f"{number} calls, {time.monotonic() - start:.0f} s")
    return judged, recognized


def start_sanitized() -> None:
    """Start this program again with AddressSanitizer in it, and Python's own memory under its eyes."""
    libraries = [  # and that of C++, whose exceptions it watches, which Python alone does not load
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    changed = {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | changed)


def main() -> None:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="kinds of calls, each compared with four others")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sanitize", action="store_true", help="compile the checks with AddressSanitizer")
    options = parser.parse_args()
    if options.sanitize and "LD_PRELOAD" not in os.environ:
        start_sanitized()
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from native_checks import SANITIZED, load

    torch.set_num_threads(1)
    checks = load(SANITIZED) if options.sanitize else load()
    judged, recognized = run(checks, options.count, options.seed, lambda text: print(text, flush=True))
    print(f"{options.count} kinds of calls (seed {options.seed}): C++ judged {judged}, and {recognized} had equal ones")
    print("no call was recognized that is another, and none missed")


if __name__ == "__main__":
    main()
