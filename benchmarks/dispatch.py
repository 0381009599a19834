"""The overhead between a call and the plan's own work, in microseconds of host time per call, side by side.

A small chain of layers is called without waiting for the GPU, so that timings are the host's part:

* eager, and `torch.compile` (default, reduce-overhead) as a user writes it.
* on a GPU, a CUDA graph of eager that is replayed by hand, which reads no input and gives no answer: the launch itself.
* the same compiled code and a captured graph behind `torchwise.apply`, with checks of inputs, weights and state.
* eager behind it, as after a decision to stay with eager.
* both by the checks in C++, if `torchwise doctor` compiled them, and by those in Python.

Each line has the median of 41 rounds and the middle half of them. Differences are of two in one round.

With --pairs the call is like a step of decoding. Keys and values of that many layers come in nested tuples, by name,
and others are returned.

Run it: python benchmarks/dispatch.py --device cuda --layers 8
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import quantiles

import torch

import torchwise
from torchwise import environment
from torchwise.compile import compile_plan, make_recognizer, signature_of
from torchwise.plan import Plan
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.workload import Example
from torchwise.workload.identity import describe_example, structure

WAYS = {"": "1", ", checks in Python": "0"}
"""Values of TORCHWISE_NATIVE."""
Past = tuple[tuple[torch.Tensor, torch.Tensor], ...]

CALLS = 200
ROUNDS = 41


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--inputs", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=0, help="pairs of further tensors, given and returned in tuples")
    options = parser.parse_args()
    hardware = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor()
    sizes = f"{options.layers} layers, {options.inputs} inputs, {options.pairs} pairs"
    print(f"{hardware}, torch {torch.__version__}, {sizes}")
    inputs = tuple(torch.randn(4, 32, device=options.device) for _ in range(options.inputs))
    past = tuple((torch.randn(4, 32, device=options.device), inputs[0].clone()) for _ in range(options.pairs))
    example = Example(inputs, {"past": past} if past else {})
    with torch.no_grad():
        samples = race(contenders(options.layers, options.device, example), example)
    for name, found in samples.items():
        print_line(name, found)
    for name, found in samples.items():
        kind, _, plan = name.partition(": ")
        base = "eager" if plan.startswith("eager") else f"realized: {plan.partition(',')[0]}"
        if kind == "applied":
            print_line(f"added by {name}", [a - b for a, b in zip(found, samples[base], strict=True)])


def print_line(name: str, found: list[float]) -> None:
    """Print the median of some samples, and the middle half of them."""
    low, middle, high = quantiles(found, n=4)
    print(f"{name:52} {middle:8.2f} us [{low:.2f}, {high:.2f}]")


@contextmanager
def checked_by(native: str) -> Iterator[None]:
    """Have what is made here be checked in C++ ("1") or in Python ("0")."""
    before = os.environ.get("TORCHWISE_NATIVE")
    os.environ["TORCHWISE_NATIVE"] = native
    try:
        yield
    finally:
        os.environ.pop("TORCHWISE_NATIVE")
        if before is not None:
            os.environ["TORCHWISE_NATIVE"] = before


class Chain(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(layers))

    def forward(self, *given: torch.Tensor, past: Past = ()) -> torch.Tensor | tuple[torch.Tensor, Past]:
        x = sum(given[1:], given[0])
        for layer in self.layers:
            x = torch.relu(layer(x))
        return (x, tuple((keys + 1, values + 1) for keys, values in past)) if past else x


def contenders(layers: int, device: str, example: Example) -> dict[str, Callable[..., object]]:
    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return Chain(layers).to(device).eval()

    plans = {"inductor": Plan(backend="inductor")}
    racers: dict[str, Callable[..., object]] = {
        "eager": model(),
        "torch.compile default": torch.compile(model()),
    }
    if device == "cuda":
        plans |= {"capture": Plan(capture="call")}
        racers["torch.compile reduce-overhead"] = torch.compile(model(), mode="reduce-overhead")
        racers["graph alone"] = record(model(), example)
    racers["applied: eager"] = apply_plan(model(), Plan(), example, device)
    for name, plan in plans.items():
        realized = compile_plan(model(), plan, example, device=device, mode="inference")
        realized.call(*example.args, **example.kwargs)
        racers[f"realized: {name}"] = realized.bypass(example.args, example.kwargs)
        for way, native in WAYS.items():
            with checked_by(native):
                racers[f"applied: {name}{way}"] = applied = apply_plan(model(), plan, example, device)
                warm_up(applied, example)  # which finds the fast path, and makes its checks
    racers["signature alone"] = lambda *args, **kwargs: signature_of(args, kwargs)
    for way, native in WAYS.items():
        with checked_by(native):
            racers[f"recognition alone{way}"] = recognize_alone(example)
    return racers


def record(model: torch.nn.Module, example: Example) -> Callable[..., object]:
    """Return a callable that replays a CUDA graph of a call, and does nothing else."""
    graph = torch.cuda.CUDAGraph()
    model(*example.args, **example.kwargs)  # which loads libraries
    with torch.cuda.graph(graph):
        model(*example.args, **example.kwargs)
    return lambda *_, **__: graph.replay()


def recognize_alone(example: Example) -> Callable[..., object]:
    """Return a callable that only recognizes its call."""
    recognizer = make_recognizer(example.args, dict(example.kwargs))
    return lambda *args, **kwargs: recognizer(args, kwargs)


def warm_up(racer: Callable[..., object], example: Example) -> None:
    for _ in range(20):
        racer(*example.args, **example.kwargs)


def apply_plan(model: torch.nn.Module, plan: Plan, example: Example, device: str) -> Callable[..., object]:
    """Apply `plan` by a decision for this model, these inputs and this machine."""
    return torchwise.apply(model, make_decision(model, plan, example, device), strict=True)


def make_decision(model: Callable[..., object], plan: Plan, example: Example, device: str) -> torchwise.Decision:
    """Return the decision for `plan`, as a study of this model on this machine would make it."""
    return torchwise.Decision(
        plan=plan,
        reason="it is to be timed",
        speedup=None,
        break_even_calls=None,
        saved_s=0.0,
        baseline_s=0.0,
        cold_s=0.0,
        warm_s=None,
        workload=WorkloadSpec("live:dispatch", device=device),
        identity="dispatch",
        structure=structure(model),
        inputs=(describe_example(example),),
        environment=environment.detect(device),
    )


def race(racers: dict[str, Callable[..., object]], example: Example) -> dict[str, list[float]]:
    """Return samples of each racer, in microseconds, in rounds that begin with another one each time."""
    for racer in racers.values():
        warm_up(racer, example)
    samples: dict[str, list[float]] = {name: [] for name in racers}
    names = list(racers)
    for number in range(ROUNDS):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(host_us(racers[name], example))
    return samples


def host_us(racer: Callable[..., object], example: Example) -> float:
    args, kwargs = example.args, dict(example.kwargs)
    if args[0].is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(CALLS):
        racer(*args, **kwargs)
    taken = (time.perf_counter() - start) / CALLS * 1e6
    if args[0].is_cuda:
        torch.cuda.synchronize()
    return taken


if __name__ == "__main__":
    main()
