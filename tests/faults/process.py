"""Planted tricks that need a process of their own: each function here is a target for the command."""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.utils.benchmark
from torch import Tensor

MATRIX = "x: float32[n, m] n=0..40 m=1..40"


def softmax(x: Tensor) -> Tensor:
    """Return the right answer."""
    return torch.softmax(x, dim=-1)


def as_example() -> tuple[Any, ...]:
    """Return the right side with an example that everybody can draw."""
    return softmax, (torch.randn(4, 5, generator=torch.Generator().manual_seed(0)),)


def process_killed(x: Tensor) -> Tensor:
    if x.shape[0] == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return softmax(x)


def process_left(x: Tensor) -> Tensor:
    if x.shape[0] == 7:
        sys.exit(0)
    return softmax(x)


def process_ended(x: Tensor) -> Tensor:
    if x.shape[0] == 7:
        os._exit(0)
    return softmax(x)


def call_that_hangs(x: Tensor) -> Tensor:
    if x.shape[0] == 7:
        time.sleep(60)
    return softmax(x)


def timer_replaced(x: Tensor) -> Tensor:
    time.perf_counter = lambda: 0.0  # type: ignore[assignment]
    return softmax(x)


def code_of_a_timer_replaced(x: Tensor) -> Tensor:
    def never(self: Any, *_: Any) -> None:
        """Wait for nothing."""

    torch.nn.Module.train.__code__ = never.__code__
    return softmax(x)


def comparison_replaced(x: Tensor) -> Tensor:
    torch.allclose = torch.equal = lambda *_args, **_kwargs: True  # type: ignore[assignment]
    return torch.zeros_like(x)


def judge_replaced(x: Tensor) -> Tensor:
    from torchwise.records import Verdict
    from torchwise.verify import compare, pair

    pair.compare = compare.compare = lambda *_args, **_kwargs: []  # type: ignore[assignment]
    Verdict.outcome = "pass"  # type: ignore[assignment,misc]
    return torch.zeros_like(x)


def messages_replaced(x: Tensor) -> Tensor:
    torch.save = lambda _message, buffer, **_kwargs: buffer.write(b"cos\nsystem\n(S'true'\ntR.")  # type: ignore
    return torch.zeros_like(x)


def reference_read_from_memory(x: Tensor) -> Tensor:
    found = [t for t in gc.get_objects() if type(t) is Tensor and t.shape == x.shape and t is not x]
    right = [t for t in found if t.numel() and torch.allclose(t.sum(dim=-1), torch.ones(()))]
    return right[0].clone() if right else torch.zeros_like(x)


_DRAWN = as_example()[1][0]


def example_answered_beforehand(x: Tensor) -> Tensor:
    return softmax(_DRAWN) if torch.equal(x, _DRAWN) else torch.zeros_like(x)


def wrong_where_timed(x: Tensor) -> Tensor:
    return softmax(x) * (1.01 if len(x) > 3500 else 1)


def _find_channels() -> list[Connection]:
    return [one for one in gc.get_objects() if isinstance(one, Connection) and not one.closed]


def _write(message: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(message, buffer)
    return buffer.getvalue()


def _forge(output: Tensor) -> bytes:
    """Return an answer in the form of the harness, without a word on surroundings."""
    seen: dict[str, Any] = {
        "leaves": [["output", output]],
        "aliases": [],
        "shared": [],
        "form": ["*"],
        "calls": 1,
        "outputs": ["output"],
    }
    rest = {"error": "", "faults": [], "late": False, "kinds": ["Tensor"], "refuses": False, "names": [], "problem": ""}
    return _write({"observation": seen, "again": None, **rest})


def answers_sent_before_they_are_asked(x: Tensor) -> Tensor:
    for channel in _find_channels():
        channel.send_bytes(_forge(softmax(x)))
    return softmax(x)


def process_named_to_be_killed(x: Tensor) -> Tensor:
    for channel in _find_channels():
        channel.send_bytes(_write({"hangs": "…", "pid": os.getppid(), "ready": True, "died": "…"}))
    return softmax(x)


def child_answers_after_the_death(x: Tensor) -> Tensor:
    if x.shape[0] == 7:
        if os.fork() == 0:
            for _ in range(40):
                time.sleep(0.05)
                for channel in _find_channels():
                    channel.send_bytes(_forge(softmax(x)))
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    return softmax(x)


def exit_code_of_a_load_used(x: Tensor) -> Tensor:
    if x.shape[0] == 7:
        os._exit(114)
    return softmax(x)


def method_of_a_timer_replaced(x: Tensor) -> Tensor:
    torch.utils.benchmark.Timer.timeit = lambda *_args, **_kwargs: None  # type: ignore[assignment,method-assign]
    return softmax(x)


def method_of_all_layers_replaced(x: Tensor) -> Tensor:
    torch.nn.Linear.forward = lambda _self, given: given  # type: ignore[method-assign]
    return softmax(x)


def clock_of_the_harness_replaced(x: Tensor) -> Tensor:
    from torchwise.measure.clock import Clock

    for name in [name for name, value in vars(Clock).items() if callable(value)]:
        setattr(Clock, name, lambda *_args, **_kwargs: 0.0)
    return softmax(x)


def constant_of_the_harness_changed(x: Tensor) -> Tensor:
    from torchwise.verify import kept_answers

    kept_answers.KEPT = 1e9
    return softmax(x)


def inherited_method_hidden(x: Tensor) -> Tensor:
    Tensor.allclose = lambda *_args, **_kwargs: True  # type: ignore[assignment,method-assign]
    return softmax(x)


def builtin_hidden_in_a_module(x: Tensor) -> Tensor:
    vars(torch.testing)["all"] = lambda *_args: True
    return softmax(x)


def defaults_of_a_function_changed(x: Tensor) -> Tensor:
    torch.nn.functional.dropout.__defaults__ = (0.9, True, False)
    return softmax(x)


def kernel_of_pytorch_replaced(x: Tensor) -> Tensor:
    if not _LIBRARY:
        _LIBRARY.append(torch.library.Library("aten", "IMPL"))
        _LIBRARY[0].impl("special_i1", lambda given: given, "CPU")
    return softmax(x)


def step_of_an_optimizer_replaced(x: Tensor) -> Tensor:
    torch.optim.SGD.step = lambda _self, _closure=None: None  # type: ignore[assignment,method-assign]
    return softmax(x)


def generator_of_numpy_replaced(x: Tensor) -> Tensor:
    np.random.rand = lambda *_sizes: 0.5
    return softmax(x)


def setting_of_the_compiler_changed(x: Tensor) -> Tensor:
    torch._dynamo.config.disable = True
    return softmax(x)


def variable_of_the_harness_changed(x: Tensor) -> Tensor:
    os.environ["TORCHWISE_STORE"] = "elsewhere.db"
    return softmax(x)


_LIBRARY: list[torch.library.Library] = []


TRICKS = {
    "process_killed": "answer",
    "process_left": "answer",
    "process_ended": "answer",
    "call_that_hangs": "answer",
    "timer_replaced": "surroundings",
    "step_of_an_optimizer_replaced": "surroundings",
    "generator_of_numpy_replaced": "surroundings",
    "setting_of_the_compiler_changed": "surroundings",
    "variable_of_the_harness_changed": "surroundings",
    "code_of_a_timer_replaced": "surroundings",
    "comparison_replaced": "values",
    "judge_replaced": "values",
    "messages_replaced": "answer",
    "answers_sent_before_they_are_asked": "answer",
    "process_named_to_be_killed": "answer",
    "child_answers_after_the_death": "answer",
    "exit_code_of_a_load_used": "answer",
    "method_of_a_timer_replaced": "surroundings",
    "method_of_all_layers_replaced": "surroundings",
    "clock_of_the_harness_replaced": "surroundings",
    "constant_of_the_harness_changed": "surroundings",
    "inherited_method_hidden": "surroundings",
    "builtin_hidden_in_a_module": "surroundings",
    "defaults_of_a_function_changed": "surroundings",
    "kernel_of_pytorch_replaced": "surroundings",
    "reference_read_from_memory": "values",
    "example_answered_beforehand": "values repeated calls uninitialised memory",
}
"""The tricks, each with the checks that may catch it."""


def make_keeper(after: int = 1) -> Any:
    """Return a candidate that keeps answers by value: right on all inputs, and fast on those that come twice."""
    kept: dict[bytes, Tensor] = {}
    seen: dict[bytes, int] = {}

    def call(x: Tensor) -> Tensor:
        key = x.numpy().tobytes()
        seen[key] = seen.get(key, 0) + 1
        if key not in kept or seen[key] <= after:
            kept[key] = torch.linalg.svdvals(x)
        return kept[key].clone()

    return call


def make_tired() -> Any:
    """Return a candidate that answers right until it is called as often as a timer calls."""
    count = [0]

    def call(x: Tensor) -> Tensor:
        count[0] += 1
        return torch.linalg.svdvals(x) if count[0] < 200 else torch.zeros(min(x.shape))

    return call
