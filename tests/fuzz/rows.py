"""Random programs of short operators, compiled as row programs, against eager and float64.

    python tests/fuzz/rows.py --count 400 [--first 0] [--budget 900] [--sanitize | --triton]

Each program is some lines of Python on inputs of random shapes, types and layouts. First all of its tensors are
outputs, and each is compared with PyTorch's own answer to the outputs before it: so no error grows from line to
line. Then a few of them are outputs, so that the others stay in registers or in memory that is used again, and they
must have the same numbers. Data are random numbers, then with NaN, infinity, zeros with signs and subnormal numbers in
them, then of very different sizes.

With --triton, regions are the kernels of a GPU, in Triton's interpreter. It lacks some operators, whose programs are
refused.

With --sanitize, the code is compiled with AddressSanitizer and UndefinedBehaviorSanitizer, and memory between the
pieces of a workspace must not be touched. The process ends at the first fault. Answers are not compared.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import linecache
import math
import os
import random
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import pytest
import torch
from row_lines import LAYOUTS, NAMES, Draw, Input, write_line
from row_sanitizers import start_sanitized, use_sanitizers
from torch._subclasses import FakeTensorMode

from torchwise.compile import compile_plan, programs
from torchwise.compile.programs.gpu.target import GpuTarget
from torchwise.compile.programs.values import C_TYPES
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.workload import Example
from triton_interpreter import add_functions

Env = dict[str, torch.Tensor]
PLAN = Plan(backend="row_programs").with_choice("options", ("fallback_random", True))
MOST_NUMBERS = 6000
LINES = (8, 30)
DTYPES = [*[torch.float32] * 6, *[torch.float64] * 2, torch.int64, torch.int32, torch.uint8, torch.bool]
DATA = ("normal", "special", "sizes")
SUMS = re.compile(r"@|linear|addmm|sum|mean|var|std|norm|inv")
"""Operators whose sums may overflow in one order, and not in another."""


class Failed(AssertionError):
    """The compiled program is wrong."""


@dataclass(frozen=True)
class Program:
    """Inputs, and lines that each give a tensor a name. `shared` are those whose tensors are views of others."""

    seed: int
    inputs: Sequence[Input]
    lines: dict[str, str]
    shared: frozenset[str]

    def write(self, outputs: Sequence[str]) -> str:
        """Return it as Python."""
        given = ", ".join(one.name for one in self.inputs)
        body = [f"    {line}" for line in self.lines.values()]
        returned = ", ".join(f"{name}.clone()" if name in self.shared else name for name in outputs)
        return "\n".join([f"def call({given}):", *body, f"    return [{returned}]", ""])

    def make(self, data: str) -> list[torch.Tensor]:
        """Return inputs."""
        generator = torch.Generator().manual_seed(self.seed * 10 + DATA.index(data))
        return [one.make(generator, data) for one in self.inputs]

    def choose(self) -> list[str]:
        """Return a few outputs, among them all that are drawn, as each draw must be read."""
        r, names = random.Random(-self.seed), [*self.lines]
        kept = {*r.sample(names, min(len(names), r.randint(1, 4))), names[-1]}
        return [name for name in names if name in kept or is_random(self.lines[name])]


def is_random(line: str) -> bool:
    """Whether a line draws random numbers."""
    return bool(re.search(r"rand|bernoulli|dropout|uniform", line))


def make_program(seed: int) -> Program:
    """Return a random program. Lines that raise are left out."""
    r = random.Random(seed)
    inputs = [_make_input(r, number) for number in range(r.randint(2, 6))]
    rows = r.randint(2, 9)
    inputs.append(Input("table", (rows, r.randint(1, 20)), torch.float32, r.choice(LAYOUTS[:4]), None))
    inputs += [Input(f"at{n}", (r.randint(2, 7),), torch.int64, "rows", rows) for n in range(2)]
    empty = Program(seed, inputs, {}, frozenset())
    env = dict(zip([one.name for one in inputs], empty.make("normal"), strict=True))
    lines, shared, wanted = dict[str, str](), set[str](), r.randint(*LINES)
    for _ in range(wanted * 6):
        if len(lines) == wanted:
            break
        name = f"v{len(lines)}"
        try:
            line = write_line(Draw(r, env), name)
            made = run_line(line, name, env)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, KeyError):
            continue
        if made.dtype not in C_TYPES or not 0 < made.numel() <= MOST_NUMBERS or made.dim() > 5 or made is env.get(name):
            continue
        memory = {one.untyped_storage().data_ptr() for one in env.values()}
        shared |= {name} if made.untyped_storage().data_ptr() in memory else set()
        env[name], lines[name] = made, line
    return Program(seed, inputs, lines, frozenset(shared))


def _make_input(r: random.Random, number: int) -> Input:
    size = r.choice((1, 2, 3, 5, 8, 17, 33))
    shapes = (
        (),
        (size,),
        (r.randint(1, 9), size),
        (size, size),
        (2, r.randint(1, 5), size),
        (2, 3, 4, r.randint(1, 5)),
    )
    return Input(f"x{number}", r.choice(shapes[1:] * 2 + shapes), r.choice(DTYPES), r.choice(LAYOUTS), None)


def run_line(line: str, name: str, env: Env) -> torch.Tensor:
    """Return the tensor that a line computes from others by name."""
    scope: dict[str, Any] = {**NAMES, **env}
    exec(line, scope)
    made = scope[name]
    if not isinstance(made, torch.Tensor):
        raise TypeError(name)
    return made


def load(text: str, name: str) -> Callable[..., list[torch.Tensor]]:
    """Return a program's function, whose text tracebacks show."""
    scope: dict[str, Any] = dict(NAMES)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), scope)
    made: Callable[..., list[torch.Tensor]] = scope["call"]
    return made


class Counts(collections.Counter[str]):
    """Counts of programs, lines, numbers, regions, calls of regions, and calls left to the operators."""


def run_program(seed: int, counts: Counts) -> None:
    """Compile a program that returns a few of its tensors, and run it on all kinds of data."""
    program = make_program(seed)
    call = load(program.write(program.choose()), f"<program {seed}>")
    with count_regions(counts):
        compiled = compile_plan(call, PLAN, Example(tuple(program.make("normal"))), device="cpu", mode="inference").call
        for data in DATA:
            _answer(compiled, program.make(data), seed)
    counts["programs"] += 1


def check_program(seed: int, counts: Counts) -> None:
    """Compile a program twice, and compare its answers.

    Raises:
        Failed: one of them is wrong.
    """
    program = make_program(seed)
    every, few = [*program.lines], program.choose()
    texts = [program.write(outputs) for outputs in (every, few)]
    calls = [load(text, f"<program {seed}.{n}>") for n, text in enumerate(texts)]
    with count_regions(counts):
        compiled = []
        for call in calls:
            example = Example(tuple(program.make("normal")))
            compiled.append(compile_plan(call, PLAN, example, device="cpu", mode="inference").call)
        for data in DATA:
            given = program.make(data)
            found, wanted = (_answer(one, given, seed) for one in (compiled[0], calls[0]))
            if isinstance(found, str) or isinstance(wanted, str):
                if found != wanted:
                    raise Failed(f"it ends by {found}, and eager by {wanted}, on {data} data\n{texts[0]}")
                continue
            _compare_lines(program, given, found, wanted, data)
            partly = _answer(compiled[1], given, seed)
            if isinstance(partly, str):
                raise Failed(f"with few outputs it ends by {partly}, on {data} data\n{texts[1]}")
            by_name = dict(zip(every, found, strict=True))
            for name, one in zip(few, partly, strict=True):
                if not _alike(one, by_name[name]):
                    shown = f"{_show(one, by_name[name])}\n{texts[1]}"
                    raise Failed(f"{name} is another one with few outputs, on {data} data:\n{shown}")
            counts["lines"] += len(every)
            counts["numbers"] += sum(one.numel() for one in found)
    counts["programs"] += 1


def _answer(call: Callable[..., Any], given: list[torch.Tensor], seed: int) -> list[torch.Tensor] | str:
    torch.manual_seed(seed)
    try:
        return list(call(*given))
    except UnsupportedError:
        raise
    except (RuntimeError, IndexError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:60]}"


def _compare_lines(
    program: Program, given: list[torch.Tensor], found: list[torch.Tensor], wanted: list[torch.Tensor], data: str
) -> None:
    """Compare each line with PyTorch's own answer to the tensors before it."""
    env: Env = dict(zip([one.name for one in program.inputs], given, strict=True))
    torch.manual_seed(program.seed)
    astray, text = set[str](), program.write([*program.lines])
    for (name, line), one, eager in zip(program.lines.items(), found, wanted, strict=True):
        state = torch.get_rng_state()
        single = run_line(line, name, env)
        after = torch.get_rng_state()
        if (one.dtype, one.shape) != (eager.dtype, eager.shape):
            raise Failed(f"{line}: {one.dtype} {one.shape}, and not {eager.dtype} {eager.shape}\n{text}")
        if lies_otherwise := _strides(one) != _strides(eager):
            told = _tell_strides(line, name, env)
            if told in (None, _strides(eager)) and not any(reads(line, other) for other in astray):
                raise Failed(f"{line}: strides {one.stride()}, and not {eager.stride()}\n{text}")
            astray.add(name)
        if not bool(is_right(line, name, env, one, single, state).all()):
            right = is_right(line, name, env, one, single, state)
            operands = {key: (one.dtype, one.shape, one.stride()) for key, one in env.items() if reads(line, key)}
            raise Failed(f"{line}, on {data} data, with {operands}:\n{_show(one, single, right)}\n{text}")
        torch.set_rng_state(after)
        env[name] = one if lies_otherwise else torch.empty_like(eager).copy_(one)


def _strides(tensor: torch.Tensor) -> list[int]:
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, _strides(tensor)


def _tell_strides(line: str, name: str, env: Env) -> list[int] | None:
    """Return the strides that PyTorch's metadata tell for a line, at times others than its kernel's."""
    with contextlib.suppress(RuntimeError, NotImplementedError), FakeTensorMode() as mode:
        return _strides(run_line(line, name, {key: mode.from_tensor(one) for key, one in env.items()}))
    return None


def reads(line: str, name: str) -> bool:
    """Whether a line reads a tensor."""
    return bool(re.search(rf"\b{name}\b", line))


def is_right(
    line: str, name: str, env: Env, found: torch.Tensor, single: torch.Tensor, state: torch.Tensor
) -> torch.Tensor:
    """Return where an output is PyTorch's, or is as near to float64 as rounding of the line's operands allows."""
    same = (found == single) | (found.isnan() & single.isnan())
    if found.dtype.is_floating_point is False or "view(torch." in line or bool(same.all()):
        return same
    eps = torch.finfo(found.dtype).eps
    exact = _run_exactly(line, name, env, state, 0.0)
    off = (single.double() - exact).abs().nan_to_num(0.0, 0.0)
    for number in range(4):
        off = torch.maximum(off, (_run_exactly(line, name, env, state, eps, number) - exact).abs().nan_to_num(0.0, 0.0))
    error = (found.double() - exact).abs()
    near = error <= 8 * off + 8 * eps * exact.abs() + 2 * torch.finfo(found.dtype).tiny
    if SUMS.search(line) and not bool(found.isfinite().all()):
        larger = {key: one.abs() if one.dtype.is_floating_point else one for key, one in env.items()}
        near = near | (
            ~found.isfinite()
            & ~run_line(re.sub(r"(var|std)(.*), correction=\d", r"sum\2", line), name, larger).isfinite()
        )
    if SUMS.search(line):  # eager overflowed
        near = near | (~single.isfinite() & exact.isfinite())
    if "std" in line or "alpha" in line:  # eager has these without the square, and without the product, between
        near = near | (found.isinf() & (exact.abs() > 1e18))
    either = (found.double() == exact) | (found.isnan() & exact.isnan())
    edge = exact.abs() > 0.99 * torch.finfo(found.dtype).max  # one overflows, and the other does not yet
    return same | near | either | (edge & (found.abs() > 0.9 * torch.finfo(found.dtype).max))


def _run_exactly(line: str, name: str, env: Env, state: torch.Tensor, change: float, seed: int = 0) -> torch.Tensor:
    """Return a line's answer in float64, of operands that are changed by up to one part in `change`."""
    generator = torch.Generator().manual_seed(seed)
    wide: Env = {}
    for key, one in env.items():
        if one.dtype.is_floating_point and reads(line, key):
            signs = torch.rand(one.shape, generator=generator, dtype=torch.float64) * 4 - 2
            wide[key] = one.double() * (1 + change * signs)
        else:
            wide[key] = one
    torch.set_rng_state(state)
    return run_line(line.replace("torch.float32", "torch.float64"), name, wide).double()


def _alike(found: torch.Tensor, other: torch.Tensor) -> bool:
    if found.dtype is not other.dtype or found.shape != other.shape:
        return False
    finite = other[other.isfinite()].double().abs()  # two orders of a sum differ, and later lines may take differences
    return torch.allclose(found.double(), other.double(), 1e-2, 1e-4 * float(finite.max()) if len(finite) else 0, True)


def _show(found: torch.Tensor, wanted: torch.Tensor, right: torch.Tensor | None = None) -> str:
    wrong = ~((found == wanted) | (found != found) & (wanted != wanted)) if right is None else ~right
    return f"{found[wrong][:6].tolist()}, and not {wanted[wrong][:6].tolist()} ({int(wrong.sum())} of {wrong.numel()})"


@contextlib.contextmanager
def count_regions(counts: Counts) -> Iterator[None]:
    """Count regions, and calls that they leave to the operators."""
    make = programs.make_region

    def make_and_count(library: Any, number: int, region: Any, original: Callable[..., Any]) -> Any:
        def count_and_call(*given: Any) -> Any:
            forms = [(one.dtype, one.shape, one.strides) for one in region.code.inputs]
            fits = all(
                _form(one) == _form(torch.empty_strided(size, stride, dtype=kind))
                for one, (kind, size, stride) in zip(given, forms, strict=True)
            )
            counts["calls left to operators" if fits else "calls with other layouts"] += 1
            return original(*given)

        counts["regions"] += 1
        counts["operators in regions"] += region.number_of_operators
        return make(library, number, region, torch.compiler.disable(count_and_call))

    with mock.patch.object(programs, "make_region", make_and_count), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.compiler.reset()


def use_kernels() -> None:
    """Have regions be the kernels of a GPU from here on."""
    os.environ["TRITON_INTERPRET"] = "1"
    patch = pytest.MonkeyPatch()
    add_functions(patch)
    patch.setattr(programs, "_find_target", lambda _inputs, draws: GpuTarget(torch.device("cpu"), draws=draws))


def main() -> int:
    """Run as the module docstring says. The exit code is 1 if a program failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="programs in all")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds to end after")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--triton", action="store_true", help="the kernels of a GPU, in Triton's interpreter")
    options = parser.parse_args()
    if options.triton:
        use_kernels()
    if options.sanitize and "LD_PRELOAD" not in os.environ:
        start_sanitized()
    torch.set_num_threads(1)
    start, counts = time.monotonic(), Counts()
    with use_sanitizers() if options.sanitize else contextlib.nullcontext():
        for seed in range(options.first, options.first + options.count):
            try:
                (run_program if options.sanitize else check_program)(seed, counts)
            except UnsupportedError as error:
                counts["refused"] += 1
                print(f"{seed} refused: {error}", flush=True)
            except Exception as error:  # any error is a fault of ours
                counts["failed"] += 1
                print(f"{seed} FAILED {type(error).__name__}: {error}", flush=True)
            if time.monotonic() - start > options.budget:
                break
    print(json.dumps({"torch": torch.__version__, "first": options.first, **counts}, indent=1))
    print(f"{time.monotonic() - start:.0f} s")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
