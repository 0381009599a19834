"""The text of a repro: a standalone program, which needs torch alone unless its head says otherwise."""

from __future__ import annotations

from string import Template

from torchwise.records.bisection import Symptom

MARKS = {
    Symptom.WRONG: "FAULT: value",
    Symptom.NAN: "FAULT: value",
    Symptom.CRASH: "FAULT: the compiled call raises",
    Symptom.HANG: "Timeout (",  # printed by Python's faulthandler
    Symptom.SLOW: "FAULT: a call takes",
}
"""Beginning of the line that a repro prints for each fault.

A program that cannot even be imported also exits with 1, and prints no such line.
"""

PROGRAM = Template('''\
"""$about

Exit codes: 0 the fault is gone. 1, or death by a signal: the fault is there. 2 this program does not run here.
"""

import copy
import faulthandler
import math
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch
$imports
TRAINING = $training
LIMIT_S = $limit  # a call that takes longer counts as a hang
SLOW = $slow  # whether the fault is the time that a call takes


$call


$candidate


$leaves


def tensors(value):
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def copy_values(value, change):
    if isinstance(value, torch.Tensor):
        return change(value.detach().clone(memory_format=torch.preserve_format)).requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {name: copy_values(item, change) for name, item in value.items()}
    return type(value)(copy_values(item, change) for item in value) if type(value) in (list, tuple) else value


def to_float64(tensor):
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def run(function, args, kwargs, change=lambda tensor: tensor):
    """Return the outputs of a call, every tensor that it writes, and in training every gradient."""
    args, kwargs = copy_values(args, change), copy_values(kwargs, change)
    torch.manual_seed(0)
    with torch.set_grad_enabled(TRAINING):
        outputs = leaves(function(*args, **kwargs))
        parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
        trained = [t for t in (*parameters, *tensors([args, kwargs])) if t.requires_grad]
        roots = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
        gradients = []
        if trained and roots:
            loss = sum((t * t.conj()).real.sum() for t in roots)
            pairs = zip(torch.autograd.grad(loss, trained, allow_unused=True), trained)
            gradients = [torch.empty_like(t, dtype=g.dtype).copy_(g) for g, t in pairs if g is not None]
    values = [*outputs, *tensors([args, kwargs]), *gradients]
    return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in values]


def as_reference(function):
    """Return a module in float64, or a function unchanged, as its inputs determine the precision."""
    return copy.deepcopy(function)._apply(to_float64) if isinstance(function, torch.nn.Module) else function


def relative_error(tensor, exact):
    """Return the error in the root mean square and in the worst element, relative to the exact values."""
    both = tensor.isfinite() & exact.isfinite()
    if not both.any():
        return 0.0, 0.0
    exact = to_float64(exact)[both]
    error, scale = (to_float64(tensor)[both] - exact).abs(), float(exact.abs().square().mean().sqrt()) or 1.0
    return float(error.square().mean().sqrt()) / scale, float(error.max()) / scale


def strides(tensor):
    """Return the strides of dimensions longer than 1, or None for a layout without strides."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1]


def fault(compiled, eager, exact):
    """Describe the fault of one compiled value, or return None. The error of eager itself is no fault."""
    if not (isinstance(compiled, torch.Tensor) and isinstance(eager, torch.Tensor)):
        same = type(compiled) is type(eager) and (compiled == eager or compiled != compiled)
        floats = isinstance(compiled, float) and isinstance(eager, float)
        close = floats and math.isclose(compiled, eager, rel_tol=1e-4)
        return None if same or close else f"is {compiled!r}, in eager {eager!r}"
    if strides(compiled) != strides(eager):
        return f"has strides {compiled.stride()}, in eager {eager.stride()}"
    if (compiled.shape, compiled.dtype) != (eager.shape, eager.dtype):
        return f"is {compiled.dtype} of shape {tuple(compiled.shape)}, in eager {eager.dtype} of {tuple(eager.shape)}"
    if not (compiled.is_floating_point() or compiled.is_complex()):
        return None if torch.equal(compiled, eager) else "differs from eager"
    lost = exact.isfinite() & ~compiled.isfinite()
    if lost.any():
        return f"is not finite in {int(lost.sum())} of {lost.numel()} elements, where the float64 reference is"
    (rms, worst), (eager_rms, eager_worst) = relative_error(compiled, exact), relative_error(eager, exact)
    tolerance = min(32 * torch.finfo(compiled.dtype).eps, 1e-3)
    if rms > 4 * eager_rms + tolerance or worst > 10 * (eager_worst + tolerance):
        return f"is off by {rms:.2g} from the float64 reference, eager by {eager_rms:.2g}"
    return None


def time_ratio(compiled, eager, args, kwargs):
    """Return the median time of a compiled call over that of an eager call, timed in alternation."""
    args, kwargs, ratios = copy_values(args, lambda t: t), copy_values(kwargs, lambda t: t), []
    with torch.no_grad():
        for _ in range(50):
            times = []
            for function in (compiled, eager):
                start = time.perf_counter()
                function(*args, **kwargs)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - start)
            ratios.append(times[0] / times[1])
    return statistics.median(ratios)


def main():
    try:
        call, examples = load()
        eager_values = [run(call, *example) for example in examples]
    except Exception:
        traceback.print_exc()
        print("this program does not run here")
        return 2
    try:
        exact_values = [run(as_reference(call), *example, to_float64) for example in examples]
    except Exception:
        exact_values = eager_values  # the model fixes a precision somewhere, so that eager is the reference
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    try:
        compiled = candidate(call, *examples[0])
        compiled_values = [run(compiled, *example) for example in examples]
    except Exception:
        traceback.print_exc()
        print("$crash_mark")
        return 1
    faulthandler.cancel_dump_traceback_later()
    for number, (values, eager, exact) in enumerate(zip(compiled_values, eager_values, exact_values)):
        problems = list(map(fault, values, eager, exact))
        if len(values) != len(eager):
            problems.append(f"is missing or too much: there are {len(values)} values, in eager {len(eager)}")
        for index, problem in enumerate(problems):
            if problem:
                print(f"$value_mark {index} of example {number} {problem}")
                return 1
    if SLOW and (ratio := time_ratio(compiled, call, *examples[0])) > 1.1:
        print(f"$slow_mark {ratio:.2f} times eager's time")
        return 1
    print("right: the fault is gone")
    return 0


if __name__ == "__main__":
    sys.exit(main())
''')

PART = """\
$function

def load():
    examples = torch.load(Path(__file__).with_suffix(".pt"), weights_only=True)
    return $model_code, [(tuple(args), {}) for args in examples]"""

LEAVES_OF_PART = """\
def leaves(value):
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, (list, tuple)) else [value]"""

NESTED = """\
class $name(torch.nn.Module):
    def __init__(self):
        super().__init__()
$parts
$function"""

LEAVES_OF_TARGET = """\
def leaves(value):
    from torchwise.verify.leaves import is_value, leaves_of

    structure = leaves_of(value)
    known = [leaf for _, leaf in structure.named if isinstance(leaf, torch.Tensor) or is_value(leaf)]
    return [*known, "; ".join(structure.form)]"""

TARGET = '''\
def load():
    """Build the model and its inputs."""
    from torchwise.workload.target import load as load_target

    workload = load_target($target, device=$device, seed=$seed)
    return workload.call, [(example.args, dict(example.kwargs)) for example in workload.examples]'''

COMPILED = """\
def candidate(call, args, kwargs):
    return torch.compile(call, $backend_options)"""

PLANNED = """\
def candidate(call, args, kwargs):
    from torchwise import Plan
    from torchwise.compile import compile_plan
    from torchwise.workload import Example

    plan = Plan.from_json($plan)
    return compile_plan(call, plan, Example(args, kwargs), device=$device, mode=$mode).call"""

PREAMBLE = """\
from torchwise.workload.target import load as load_target

load_target($target, device=$device, seed=$seed)  # the target's code causes the fault
"""
