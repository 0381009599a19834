"""PyTorch's own wrapper for complex numbers against Torchwise's rewriting, plain Inductor and eager, side by side.

The wrapper is `torch._functorch.config.enable_complex_wrapper`, of torch 2.13 and later. Answers are verified against
complex128 first. Ratios are paired within rounds, with 95 % bootstrap intervals. An FFT is tested separately.

Run it: python benchmarks/complex_wrapper.py zoo:ivhl.field_superposition@large --device cpu
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from torchwise.compile import compile_plan
from torchwise.plan import Plan
from torchwise.records.statistics import ratio_interval
from torchwise.verify.reference import as_reference, float64_of, widen
from torchwise.workload import Example
from torchwise.workload.target import load

ROUNDS = 41
CALLS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="?", default="zoo:ivhl.field_superposition@large")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    workload = load(options.target, device=options.device)
    example = workload.examples[0]
    with as_reference():
        reference = float64_of(workload.call)(*widen(example).args)
    racers = contenders(workload.call, example, options.device)
    print(f"{options.target}, {options.device}, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    with torch.no_grad():
        errors = {
            name: float((racer() - reference).abs().max() / reference.abs().max()) for name, racer in racers.items()
        }
        samples = race(racers, options.device)
    print("| way | ms | eager's time over it | error |\n|---|---|---|---|")
    for name, taken in samples.items():
        middle = sorted(taken)[len(taken) // 2] * 1e3
        print(f"| {name} | {middle:.3f} | {ratio_interval(samples['eager'], taken)} | {errors[name]:.1e} |")
    print(f"\nAn FFT under PyTorch's wrapper: {fft(options.device)}")


def contenders(call: Callable[..., Any], example: Example, device: str) -> dict[str, Callable[[], Any]]:
    def ours(plan: Plan) -> Callable[[], Any]:
        realized = compile_plan(call, plan, example, device=device, mode="inference")
        return lambda: realized.call(*example.args)

    return {
        "eager": lambda: call(*example.args),
        "inductor": ours(Plan(backend="inductor")),
        "PyTorch's wrapper": compile_with_wrapper(call, *example.args),
        "complex_to_real": ours(Plan(backend="inductor", transforms=("complex_to_real",))),
        "complex_to_real + structure_of_arrays": ours(
            Plan(backend="inductor", transforms=("complex_to_real", "structure_of_arrays"))
        ),
    }


def compile_with_wrapper(call: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Compile with PyTorch's wrapper, as a new function so that no other compilation serves it."""

    def own(*given: Any) -> Any:
        return call(*given)

    compiled = torch.compile(own)
    with torch.no_grad(), torch._functorch.config.patch(enable_complex_wrapper=True):
        compiled(*args)
    return lambda: compiled(*args)


def race(racers: dict[str, Callable[[], Any]], device: str) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in racers}
    names = list(racers)
    for number in range(ROUNDS):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            start = time.perf_counter()
            for _ in range(CALLS):
                racers[name]()
            if device == "cuda":
                torch.cuda.synchronize()
            samples[name].append((time.perf_counter() - start) / CALLS)
    return samples


def fft(device: str) -> str:
    try:
        compile_with_wrapper(
            lambda z: torch.fft.fft(z * 2j) + 1j, torch.randn(64, dtype=torch.complex64, device=device)
        )
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:120]}"
    return "compiled"


if __name__ == "__main__":
    main()
