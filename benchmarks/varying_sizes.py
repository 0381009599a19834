"""Calls whose sizes vary: plans found for sizes that were never given, beside PyTorch's own ways and plans of one size.

A program is tuned on one size with `sizes="varying"`, and then called at sizes that no example had. Each answer is
verified first: it must be about as near to that of float64 as eager's is. Ratios are of eager's time to the time of
each way, paired within rounds, with 95 % bootstrap intervals. "static" compiles the same plan for one size each, as the
best that a plan could be. A compilation is a call that had to compile, of all sizes together. If the call breaks into
several graphs, it compiles them all.

The processor of `energy_flow` keeps its flows in slots, so that its inputs keep their sizes. The number of live flows
changes inside the call. It is tuned as it is given.

Programs that are done are kept beside the results (varying.json). Another device or budget begins anew, and the same
command goes on where it ended:

    python benchmarks/varying_sizes.py --device cpu --out varying.md      # 6 to 20 minutes

Exit codes: 0 all goals are met, 1 one is not, 2 the time ended before all programs were measured.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves, tree_map_only

import torchwise
from torchwise.compile import compile_plan
from torchwise.plan.workload_spec import Sizes
from torchwise.records.statistics import ratio_interval
from torchwise.workload import Example
from torchwise.workload.target import load
from torchwise.workload.workload import resize_example
from torchwise_models.zoo.ivhl.field import field_superposition

ROUNDS, CALLS = 21, 3
SHARE = 0.95
"""Share of calls that the plan must answer."""
MAX_COMPILATIONS = 3
HALF = 0.5
"""Share of the speed-up of a plan of one size that the plan for all sizes must have."""
MOST_TIMES, LEAST_ERROR = 4.0, 1e-5
"""An answer may differ from that of float64 by so many times eager's difference and this, relative to its largest."""
FIELD_SIZES = [(grid, sources) for grid in (512, 1000, 2048, 4096, 8192) for sources in (10, 20, 50)]
FLOWS = (3, 17, 64, 100, 200, 333, 512)
LIVE = (8, 5, 1, 3, 0, 7)
"""Live flows in the eight slots of the processor."""


@dataclass(frozen=True)
class Program:
    name: str
    call: Callable[..., Any]
    first: Any
    """The size that it is tuned at."""
    sizes: list[Any]
    draw: Callable[[Any], tuple[Any, ...]]
    expected: Sizes
    """What is said of the sizes to come."""


def draw_field(size: tuple[int, int], device: str) -> tuple[Any, ...]:
    grid, sources = size
    places = [torch.rand(count, 3, device=device) for count in (grid, sources)]
    return (
        *places,
        *(torch.rand(sources, device=device) + 0.5 for _ in range(3)),
        9.0,
        torch.tensor(0.5, device=device),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of each search (default 120)")
    parser.add_argument("--seconds", type=float, default=1500.0, help="after so many no further program starts")
    parser.add_argument("--only", action="append", help="the name of a program, once or more")
    parser.add_argument("--out", type=Path, required=True, help="Markdown file for the results")
    options = parser.parse_args()
    torch.manual_seed(0)
    end = time.monotonic() + options.seconds
    kept = options.out.with_suffix(".json")
    here = {"device": options.device, "budget": options.budget}
    known: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else {}
    done = {name: section for name, section in known.items() if {**here, **section}.items() >= here.items()}
    programs = [p for p in list_programs(options.device) if not options.only or p.name in options.only]
    # By default PyTorch compiles nothing more after eight functions with the same code, as those of `renewed` have.
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=1 << 16, accumulated_recompile_limit=1 << 16):
        for program in programs:
            if program.name in done or time.monotonic() > end:
                continue
            rows, summary, is_good = compare(program, options.device, options.budget)
            title = f"## {program.name}, tuned at {program.first}"
            done[program.name] = {**here, "lines": [title, "", summary, "", *rows], "is_good": is_good}
            kept.write_text(json.dumps(done, indent=1))
            print(*done[program.name]["lines"], sep="\n", flush=True)
    write_page(options, done)
    if not all(program.name in done for program in programs):
        return 2
    return 0 if all(done[program.name]["is_good"] for program in programs) else 1


def write_page(options: argparse.Namespace, done: dict[str, dict[str, Any]]) -> None:
    card = torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or platform.machine()
    lines = [
        f"# Sizes that vary, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"{card}, torch {torch.__version__}, {torch.get_num_threads()} threads. `{Path(__file__).name}`: "
        f"{ROUNDS} rounds of {CALLS} calls.",
    ]
    for section in done.values():
        lines += ["", *section["lines"]]
    options.out.write_text("\n".join(lines) + "\n")


def list_programs(device: str) -> Iterator[Program]:
    yield Program(
        "field", field_superposition, (3000, 30), FIELD_SIZES, lambda size: draw_field(size, device), "varying"
    )
    for name in ("energy_flow.neuron", "energy_flow.fused_step"):
        flows = load(f"zoo:{name}@small", device=device)
        given = flows.examples[0]
        first = len(given.tensors()[0])
        yield Program(name, flows.call, first, list(FLOWS), functools.partial(draw_flows, given), "varying")
    flows = load("zoo:energy_flow.processor@small", device=device)
    (storage,) = flows.examples[0].args
    live = int(storage.active.sum())
    yield Program(
        "energy_flow.processor", flows.call, live, list(LIVE), functools.partial(draw_live, storage), "as-given"
    )


def draw_flows(given: Example, count: int) -> tuple[Any, ...]:
    return resize_example(given, 0, count).args


def draw_live(storage: Any, live: int) -> tuple[Any, ...]:
    """Return the storage with so many live flows, anywhere in it."""
    slots = len(storage.active)
    active = torch.zeros(slots, dtype=torch.bool)
    active[torch.randperm(slots)[:live]] = True
    active = active.to(storage.active.device)
    ids = torch.where(active, torch.arange(slots, device=active.device), torch.full_like(storage.ids, -1))
    return (storage._replace(active=active, ids=ids),)


def compare(program: Program, device: str, budget: float) -> tuple[list[str], str, bool]:
    call, draw = program.call, program.draw
    args = draw(program.first)
    study = torchwise.tune(call, args, sizes=program.expected, calls=10**8, effort="quick", budget=budget)
    plan, fast = study.decision.plan, torchwise.apply(call, study)
    ways: dict[str, Callable[..., Any]] = {
        "ours": fast,
        "torch.compile": torch.compile(renewed(call)),
        "dynamic=True": torch.compile(renewed(call), dynamic=True),
    }
    compiled, graphs = dict.fromkeys([*ways, "static"], 0), dict.fromkeys([*ways, "static"], 0)
    rows = ["| size | eager, us | " + " | ".join([*ways, "static"]) + " |", "|---|---|" + "---|" * (len(ways) + 1)]
    worst = 1.0
    for size in program.sizes:
        given = draw(size)
        # Only a module has a form of its own, or an RNN that is found in it.
        static = copy.deepcopy(call) if plan.transforms and isinstance(call, torch.nn.Module) else renewed(call)
        # A plan that serves all sizes serves one as a plan for one size does, but for its code.
        one = compile_plan(static, replace(plan, shapes="static"), Example(given), device=device, mode="inference")
        racers = {**ways, "static": one.call}
        expected = compute_in_float64(call, given)
        plain = call(*given)
        allowed = MOST_TIMES * find_error(plain, expected, plain) + LEAST_ERROR
        assert math.isfinite(allowed), f"eager's answer at {size} is not that of float64"
        for name, racer in racers.items():
            before = counters["stats"]["unique_graphs"]
            error = find_error(racer(*given), expected, plain)
            assert error <= allowed, f"{name} has an error of {error:.1e} at {size}, of which {allowed:.1e} is allowed"
            graphs[name] += (made := counters["stats"]["unique_graphs"] - before)
            compiled[name] += made > 0
        samples = race({"eager": call, **racers}, given, device)
        ratios = {name: ratio_interval(samples["eager"], samples[name]) for name in racers}
        worst = min(worst, ratios["ours"].mid / ratios["static"].mid)
        middle = sorted(samples["eager"])[ROUNDS // 2] * 1e6
        rows.append(f"| {size} | {middle:.0f} | " + " | ".join(str(ratios[name]) for name in racers) + " |")
        one.close()
    statistics = fast.statistics
    share = 1 - statistics.fallback_rate
    summary = (
        f"Plan: {plan}. It answered {share:.1%} of the calls. Compilations: "
        + ", ".join(f"{name} {count} ({graphs[name]} graphs)" for name, count in compiled.items())
        + f". Least share of the static plan's speed-up at a size: {worst:.2f}."
    )
    is_good = share >= SHARE and compiled["ours"] <= MAX_COMPILATIONS and worst >= HALF
    return rows, summary, is_good


def compute_in_float64(call: Any, args: tuple[Any, ...]) -> Any:
    """Return the answer as it is without the rounding of float32. cuDNN's RNNs on a GPU round to TF32 by default."""
    exact = copy.deepcopy(call).double() if isinstance(call, torch.nn.Module) else call
    return exact(*tree_map_only(torch.Tensor, lambda one: one.double() if one.is_floating_point() else one, args))


def find_error(found: Any, expected: Any, plain: Any) -> float:
    """Return the largest difference from the answer in float64, relative to the largest number of its tensor.

    It is infinite if sizes or types are not those of eager's answer, or numbers are not finite where they should be.
    """
    errors = [0.0]
    for one, other, like in zip(*map(tree_leaves, (found, expected, plain)), strict=True):
        if not isinstance(like, torch.Tensor):
            continue
        if not isinstance(one, torch.Tensor) or (one.shape, one.dtype) != (like.shape, like.dtype):
            return math.inf
        if like.is_floating_point() or like.is_complex():
            difference = (one.to(other.dtype) - other).abs()
            worst = float(difference.max() / other.abs().max().clamp(min=1e-30)) if one.numel() else 0.0
            errors.append(worst if math.isfinite(worst) else math.inf)
        else:
            errors.append(0.0 if torch.equal(one, other) else math.inf)
    return max(errors)


def renewed(call: Any) -> Callable[..., Any]:
    """Return a new function that does the same, so that no other compilation serves it."""
    namespace: dict[str, Any] = {"call": call}
    exec("def renewed(*args):\n    return call(*args)", namespace)
    function: Callable[..., Any] = namespace["renewed"]
    return function


def race(racers: dict[str, Callable[..., Any]], args: tuple[Any, ...], device: str) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {name: [] for name in racers}
    for name in rounds(list(racers)):
        start = time.perf_counter()
        for _ in range(CALLS):
            racers[name](*args)
        if device == "cuda":
            torch.cuda.synchronize()
        samples[name].append((time.perf_counter() - start) / CALLS)
    return samples


def rounds(names: list[str]) -> Iterator[str]:
    for number in range(ROUNDS):
        turn = number % len(names)
        yield from names[turn:] + names[:turn]


if __name__ == "__main__":
    raise SystemExit(main())
