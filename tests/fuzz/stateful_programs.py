"""Random small programs that keep state, run through the verifier and through `apply`, against the plain model.

    python tests/fuzz/stateful_programs.py --count 2000 --jobs 2 [--compiler eager]

Each program is a module of a few statements about tensors, numbers, lists, dicts, objects and buffers that it keeps or
is given, written out as Python and compiled. For every plan it must hold: the plain model is not blamed and not taken
for random, the verifier does not call a right plan wrong, and what `apply` serves answers and changes what the plain
model answers and changes, over several calls, a reset of the state, and a new object. `--compiler eager` has graphs run
as they were captured: state is Dynamo's and Torchwise's affair, and a kernel costs a second to compile.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import dataclasses
import json
import linecache
import logging
import math
import multiprocessing
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import torchwise as tw
from live_decisions import make_decision
from torchwise.compile import compile_plan
from torchwise.records import Outcome, Verdict
from torchwise.trial.plain_call import run_plainly
from torchwise.verify import Subject, is_stochastic, verify
from torchwise.workload import Example, Workload
from torchwise.workload.identity import describe_example
from torchwise.workload.module_state import State, from_one_state

PLANS = {
    "inductor": tw.Plan(backend="inductor"),
    "dynamic": tw.Plan(backend="inductor", shapes="dynamic"),
    "freezing": tw.Plan(backend="inductor", options=(("freezing", True),)),
    "channels_last": tw.Plan(backend="inductor", memory_format="channels_last"),
}
LAID_OUT = ("strides", "memory", "structure at")
"""The verdict's words on answers that lie otherwise in memory, which values do not show."""
CALLS = 6
"""Calls that are served, after which the state is reset, and as many once more."""

HEADER = """
import dataclasses
import torch
from torch import nn

SETTINGS = {"gain": 1.0}

@dataclasses.dataclass
class Memory:
    h: torch.Tensor
    n: int = 0

class Cache:
    def __init__(self):
        self.k, self.at, self.log = torch.zeros(8, 4), 0, []

class Sub(nn.Module):
    def __init__(self):
        super().__init__()
        self.h, self.n = torch.zeros(SHAPE), 0
        self.register_buffer("mean", torch.zeros(SHAPE))
    def forward(self, x):
        self.h = 0.5 * self.h + x
        self.mean.mul_(0.9).add_(x, alpha=0.1)
        return self.h

class Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = LAYER
        self.sub = Sub()
        self.h, self.g = torch.zeros(SHAPE), torch.zeros(SHAPE)
        self.view, self.alias = self.g[:1], self.h
        self.lazy = None
        self.n, self.scale = 0, 1.0
        self.items, self.numbers = [torch.zeros(SHAPE)], [1]
        self.table = {"a": torch.zeros(SHAPE), "n": 0}
        self.memory = Memory(torch.zeros(SHAPE))
        self.register_buffer("buf", torch.zeros(SHAPE))
        self.register_buffer("grown", torch.zeros(1))
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
"""

STATEMENTS = [
    "self.h = torch.tanh(self.h + y)",
    "self.h.mul_(0.5).add_(y)",
    "self.g.add_(0.1 * y)",
    "self.view.mul_(0.9)",
    "self.alias = self.h",
    "self.alias = self.alias + 1",
    "self.n += 1",
    "self.n = (self.n + 1) % 3",
    "self.scale = self.scale * 0.5 + 0.25",
    "self.lazy = y.detach() if self.lazy is None else self.lazy",
    "self.lazy = None if self.lazy is not None else y",
    "self.items[0] = self.items[0] + y",
    "self.items.append(y)\n        self.items = self.items[-3:]",
    "self.items.append(y)\n        self.items.pop(0)",
    "self.items[0].add_(y)",
    "self.numbers[0] = self.numbers[0] * 2 % 7",
    "self.table['a'] = self.table['a'] + y",
    "self.table['a'].add_(1)",
    "self.table['n'] += 1",
    "self.table['b'] = y",
    "self.memory.h = self.memory.h + y\n        self.memory.n += 1",
    "self.memory = Memory(self.memory.h + y, self.memory.n + 1)",
    "self.buf.add_(y)",
    "self.buf = self.buf * 0.5 + y",
    "self.grown = torch.cat([self.grown, y.sum().reshape(1)])[-4:]",
    "self.grown = torch.cat([self.grown, y.mean().reshape(1)])",
    "self.step += 1",
    "cache.k = cache.k + y.mean()",
    "cache.k[cache.at % 8].add_(y.mean())\n        cache.at += 1",
    "cache.log.append(y.mean())",
    "cache.at = cache.at + 2",
    "x.add_(1)",
    "y = y + self.sub(y)",
    "self.sub.n += 1",
]
READS = [
    "y = y + self.h",
    "y = y + self.g * 0.1",
    "y = y * self.scale",
    "y = y + self.n",
    "y = y + self.alias",
    "y = y + self.view",
    "y = y if self.lazy is None else y + self.lazy",
    "y = y + self.items[-1] + len(self.items)",
    "y = y + self.numbers[0]",
    "y = y + self.table['a'] + self.table['n']",
    "y = y + self.memory.h * self.memory.n",
    "y = y + self.buf",
    "y = y + self.grown.sum()",
    "y = y + self.step",
    "y = y + cache.k.mean() + cache.at",
    "y = y + len(cache.log)",
    "y = torch.relu(self.layer(y))",
    "y = y * SETTINGS['gain']",
]
RETURNS = [
    "return y",
    "return y, None",
    "return y, self.n",
    "return {'y': y, 'h': self.h}",
    "return self.h",
    "return Memory(y, self.n)",
    "return [y, self.items[-1], None]",
    "return y, cache.k",
    "return x, y",
]
RESETS = [
    "m.h = torch.zeros_like(m.h)",
    "m.g.zero_()",
    "m.n = 0",
    "m.scale = 1.0",
    "m.items[:] = [torch.ones_like(m.h)]",
    "m.table['a'] = torch.ones_like(m.h)",
    "m.memory.h.fill_(1)",
    "m.buf.zero_()",
    "m.step.zero_()",
    "m.lazy = None",
    "m.sub.h = torch.ones_like(m.sub.h)",
    "m.layer.weight.mul_(0.5)",
]


def write_program(seed: int) -> str:
    """Write a program as Python. The same seed gives the same program."""
    draw = random.Random(seed)
    four = draw.random() < 0.4
    shape, layer = ("1, 4, 3, 3", "nn.Conv2d(4, 4, 1)") if four else ("2, 4", "nn.Linear(4, 4)")
    lines = draw.sample(STATEMENTS, draw.randint(1, 4)) + draw.sample(READS, draw.randint(1, 4))
    draw.shuffle(lines)
    body = "".join(f"        {line}\n" for line in ["y = self.layer(x)", *lines, draw.choice(RETURNS)])
    head = HEADER.replace("SHAPE", shape).replace("LAYER", layer)
    return f"{head}\n    def forward(self, x, cache):\n{body}"


def load_program(seed: int) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Compile a program. Return its names, and the shape of its input."""
    source, name = write_program(seed), f"<program {seed}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": f"program_{seed}"}
    module = type(sys)(f"program_{seed}")
    vars(module).update(names)
    sys.modules[f"program_{seed}"] = module
    exec(compile(source, name, "exec"), vars(module))
    return vars(module), ((1, 4, 3, 3) if "Conv2d" in source else (2, 4))


def workload_of(seed: int) -> tuple[dict[str, Any], Workload]:
    """Return a program's names, and its model with an example."""
    names, shape = load_program(seed)
    torch.manual_seed(seed)
    model, cache = names["Program"]().eval(), names["Cache"]()
    return names, Workload(model, (Example((torch.randn(shape), cache)),))


class Failed(Exception):
    """A program shows a fault."""


def check_program(seed: int, plan: tw.Plan) -> str:
    """Run one program under one plan. Return "right", or why the plan was refused.

    Raises:
        Failed: saying what is wrong.
    """
    names, workload = workload_of(seed)
    model = workload.call
    with torch.no_grad():
        fresh = copy.deepcopy(model)
        once = run_plainly(workload, "inference")
        moved = bool(once.moves)
        _check_that_it_is_not_random(workload)
        model = fresh
        workload = Workload(model, workload.examples)
        before = State.from_call(model)
        verdict = _verdict(workload, plan, stateful=moved)
        if before.changes():
            raise Failed(f"verifying left {sorted(before.changes())} changed")
        if verdict is None or verdict.outcome is Outcome.NOT_COMPARABLE:
            return "refused: it raises" if verdict is None else "not comparable"
        odd = _serve(names, model, workload.examples[0], plan, seed)
    if verdict.outcome is Outcome.PASS and odd:
        raise Failed(f"a wrong plan is called right: {odd}")
    if verdict.outcome is Outcome.FAIL and not odd and not any(word in verdict.reason for word in LAID_OUT):
        raise Failed(f"a right plan is called wrong: {verdict.reason}")
    return "right" if verdict.outcome is Outcome.PASS else "refused: it is wrong"


def _check_that_it_is_not_random(workload: Workload) -> None:
    given = workload.examples[0].clone()
    call = from_one_state(workload.call, workload.call, given.args, {})
    if is_stochastic(call, workload.call) != (False, False):
        raise Failed("the model is taken for random")


def _verdict(workload: Workload, plan: tw.Plan, *, stateful: bool) -> Verdict | None:
    """Judge a plan. Return None if it raises, as a plan does that cannot be compiled."""
    try:
        realized = compile_plan(workload.call, plan, workload.examples[0], device="cpu", mode="inference")
        return verify(Subject(workload, realized.call, workload.call, stateful=stateful), extra_draws=1)
    except Exception:  # a compiler may raise anything, and that is the candidate's end and nothing else
        return None


def _serve(names: dict[str, Any], model: Any, example: Example, plan: tw.Plan, seed: int) -> str | None:
    """Serve calls beside a plain copy. Return the first difference."""
    draw = random.Random(seed)
    plain = copy.deepcopy(model)
    decision = dataclasses.replace(make_decision(model, plan), inputs=(describe_example(example),))
    fast = tw.apply(model, decision)
    caches = [names["Cache"](), names["Cache"]()]
    for number in range(2 * CALLS):
        if number == CALLS:  # a new conversation: some state is reset, and the cache is another
            for reset in draw.sample(RESETS, 3):
                for m in (model, plain):
                    with contextlib.suppress(AttributeError, TypeError):
                        exec(reset, {"m": m, "torch": torch})
            caches = [names["Cache"](), names["Cache"]()]
        torch.manual_seed(1000 * seed + number)
        x = torch.randn(example.args[0].shape)
        given = x.clone(), x.clone()
        answers = fast(given[0], caches[0]), plain(given[1], caches[1])
        ours, theirs = (
            _leaves({"answer": a, "input": g, "cache": c, "model": m})
            for a, g, c, m in zip(answers, given, caches, (model, plain), strict=True)
        )
        if (odd := _difference(ours, theirs)) is not None:
            return f"call {number} is served otherwise: {odd}"
    return None


def _leaves(things: dict[str, Any]) -> dict[str, Any]:
    return State(things).leaves()


def _difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    if ours.keys() != theirs.keys():
        return f"{sorted(ours.keys() ^ theirs.keys())} is there on one side alone"
    for path, value in ours.items():
        other = theirs[path]
        if isinstance(value, torch.Tensor):
            alike = value.shape == other.shape and torch.allclose(value, other, rtol=1e-3, atol=1e-4, equal_nan=True)
        else:
            alike = value == other or (isinstance(value, float) and abs(value - other) < 1e-6)
        if not alike:
            return f"{path} is {value}, in the plain model {other}"
    return None


def run_as_captured() -> None:
    """Have Inductor's place taken by one that runs graphs as they were captured, after AOTAutograd made them."""
    import torch._inductor.compile_fx as inductor
    from functorch.compile import nop
    from torch._dynamo.backends.common import aot_autograd

    def compile_fx(graph: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        return aot_autograd(fw_compiler=nop, keep_inference_input_mutations=True)(graph, inputs)

    inductor.compile_fx = compile_fx


def check_seed(task: tuple[int, str, str]) -> tuple[int, str, str]:
    """Run one program under one plan in a process of a pool."""
    seed, name, compiler = task
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    torch._dynamo.reset()
    if compiler == "eager":
        run_as_captured()
    try:
        return seed, name, check_program(seed, PLANS[name])
    except Failed as error:
        return seed, name, f"FAILED {error}"
    except Exception as error:  # any other error is a fault of ours, too
        where = traceback.extract_tb(error.__traceback__)[-1]
        return seed, name, f"FAILED {type(error).__name__}: {str(error)[:300]} ({where.filename}:{where.lineno})"


def tasks_of(first: int, count: int, compiler: str) -> Iterator[tuple[int, str, str]]:
    """Give each program one of the plans, in turn."""
    names = [*PLANS]
    return ((seed, names[seed % len(names)], compiler) for seed in range(first, first + count))


def main(run: Callable[..., Any] = check_seed) -> int:
    """Run as the module docstring says. The exit code is 1 if a program failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="programs in all")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--compiler", choices=["inductor", "eager"], default="inductor")
    parser.add_argument("--json", help="write the counts to this file, and go on from what it holds")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds to end after")
    asked = parser.parse_args()
    start, counts = time.time(), collections.Counter[str]()
    made_of = {"first": asked.first, "compiler": asked.compiler, "torch": torch.__version__}
    kept = Path(asked.json) if asked.json else None
    if kept is not None and kept.exists():
        counts = _counts_before(json.loads(kept.read_text()), made_of)
    done = counts.total()
    with multiprocessing.get_context("spawn").Pool(asked.jobs, maxtasksperchild=100) as pool:
        tasks = tasks_of(asked.first + done, asked.count - done, asked.compiler)
        for seed, name, said in pool.imap(run, tasks):  # in order, so that a later run knows where to go on
            counts[said if not said.startswith("FAILED") else "failed"] += 1
            if said.startswith("FAILED"):
                print(f"{seed} {name}: {said}", flush=True)
            if kept is not None:
                kept.write_text(json.dumps({**made_of, "counts": counts}, indent=1) + "\n")
            if time.time() - start > asked.budget:
                pool.terminate()
                break
    told = {**made_of, "programs": counts.total(), "counts": counts}
    print(json.dumps(told, indent=1), f"{counts.total() - done} of them in {time.time() - start:.0f} s")
    return 1 if counts["failed"] else 0


def _counts_before(told: dict[str, Any], made_of: dict[str, Any]) -> collections.Counter[str]:
    """Return the counts of an earlier run."""
    other = {name: told.get(name) for name in made_of if told.get(name) != made_of[name]}
    if other:
        raise SystemExit(f"the file is of another run ({other}, and not {made_of}): name another file")
    return collections.Counter(told["counts"])


if __name__ == "__main__":
    sys.exit(main())
