"""The text of a repro: a standalone program, which needs torch alone unless its head says otherwise."""

from __future__ import annotations

from string import Template

PROGRAM = Template('''\
"""$about

Exit codes: 0 the fault is gone; 1, or death by a signal, it is there; 2 this program does not run here.
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
LIMIT_S = $limit  # a call that takes longer hangs
SLOW = $slow  # whether the fault is the time that a call takes


$call


$candidate


$leaves


def tensors(value):
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def copied(value, change):
    if isinstance(value, torch.Tensor):
        return change(value.detach().clone(memory_format=torch.preserve_format)).requires_grad_(value.requires_grad)
    if isinstance(value, dict):
        return {name: copied(item, change) for name, item in value.items()}
    return type(value)(copied(item, change) for item in value) if type(value) in (list, tuple) else value


def widened(tensor):
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def run(function, args, kwargs, change=lambda tensor: tensor):
    """Return everything that a call gives, every tensor that it writes, and in training every gradient."""
    args, kwargs = copied(args, change), copied(kwargs, change)
    torch.manual_seed(0)
    with torch.set_grad_enabled(TRAINING):
        outputs = leaves(function(*args, **kwargs))
        parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
        wanted = [t for t in (*parameters, *tensors([args, kwargs])) if t.requires_grad]
        roots = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
        gradients = []
        if wanted and roots:
            loss = sum((t * t.conj()).real.sum() for t in roots)
            pairs = zip(torch.autograd.grad(loss, wanted, allow_unused=True), wanted)
            gradients = [torch.empty_like(t, dtype=g.dtype).copy_(g) for g, t in pairs if g is not None]
    found = [*outputs, *tensors([args, kwargs]), *gradients]
    return [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in found]


def as_reference(function):
    """Return a module in float64; a function as it is, for its inputs decide."""
    return copy.deepcopy(function)._apply(widened) if isinstance(function, torch.nn.Module) else function


def off(tensor, exact):
    """Return the error in the root mean square and in the worst element, relative to the exact values."""
    both = tensor.isfinite() & exact.isfinite()
    if not both.any():
        return 0.0, 0.0
    exact = widened(exact)[both]
    error, scale = (widened(tensor)[both] - exact).abs(), float(exact.abs().square().mean().sqrt()) or 1.0
    return float(error.square().mean().sqrt()) / scale, float(error.max()) / scale


def strides(tensor):
    """Return the strides that mean anything; None for a layout that has none."""
    if tensor.layout is not torch.strided or not tensor.numel():
        return None
    return [stride for size, stride in zip(tensor.shape, tensor.stride()) if size > 1]


def fault(ours, plain, exact):
    """Say what is wrong with one value, or return None: eager's own error is no fault."""
    if not (isinstance(ours, torch.Tensor) and isinstance(plain, torch.Tensor)):
        same = type(ours) is type(plain) and (ours == plain or ours != ours)
        close = isinstance(ours, float) and isinstance(plain, float) and math.isclose(ours, plain, rel_tol=1e-4)
        return None if same or close else f"is {ours!r}, in eager {plain!r}"
    if strides(ours) != strides(plain):
        return f"has strides {ours.stride()}, in eager {plain.stride()}"
    if (ours.shape, ours.dtype) != (plain.shape, plain.dtype):
        return f"is {ours.dtype} of shape {tuple(ours.shape)}, in eager {plain.dtype} of {tuple(plain.shape)}"
    if not (ours.is_floating_point() or ours.is_complex()):
        return None if torch.equal(ours, plain) else "differs from eager"
    lost = exact.isfinite() & ~ours.isfinite()
    if lost.any():
        return f"is not finite in {int(lost.sum())} of {lost.numel()} elements, where the float64 reference is"
    (rms, worst), (usual, usual_worst) = off(ours, exact), off(plain, exact)
    granted = min(32 * torch.finfo(ours.dtype).eps, 1e-3)
    if rms > 4 * usual + granted or worst > 10 * (usual_worst + granted):
        return f"is off by {rms:.2g} from the float64 reference, eager by {usual:.2g}"
    return None


def pace(ours, plain, args, kwargs):
    """Return the median time of a call over eager's, taken in alternation."""
    args, kwargs, ratios = copied(args, lambda t: t), copied(kwargs, lambda t: t), []
    with torch.no_grad():
        for _ in range(50):
            times = []
            for function in (ours, plain):
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
        plain = [run(call, *example) for example in examples]
    except Exception:
        traceback.print_exc()
        print("this program does not run here")
        return 2
    try:
        exact = [run(as_reference(call), *example, widened) for example in examples]
    except Exception:
        exact = plain  # the model fixes a precision somewhere, so that eager must do
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    try:
        compiled = candidate(call, *examples[0])
        ours = [run(compiled, *example) for example in examples]
    except Exception:
        traceback.print_exc()
        print("FAULT: the compiled call raises")
        return 1
    faulthandler.cancel_dump_traceback_later()
    for number, (mine, eagers, right) in enumerate(zip(ours, plain, exact)):
        found = list(map(fault, mine, eagers, right))
        if len(mine) != len(eagers):
            found.append(f"is missing or too much: there are {len(mine)} values, in eager {len(eagers)}")
        for place, problem in enumerate(found):
            if problem:
                print(f"FAULT: value {place} of example {number} {problem}")
                return 1
    if SLOW and (ratio := pace(compiled, call, *examples[0])) > 1.1:
        print(f"FAULT: a call takes {ratio:.2f} times eager's time")
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
    return $made, [(tuple(args), {}) for args in examples]"""

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

    found = leaves_of(value)
    known = [leaf for _, leaf in found.named if isinstance(leaf, torch.Tensor) or is_value(leaf)]
    return [*known, "; ".join(found.form)]"""

TARGET = '''\
def load():
    """Build what was looked at."""
    from torchwise.workload.target import load as load_target

    workload = load_target($target, device=$device, seed=$seed)
    return workload.call, [(example.args, dict(example.kwargs)) for example in workload.examples]'''

COMPILED = """\
def candidate(call, args, kwargs):
    return torch.compile(call, $how)"""

PLANNED = """\
def candidate(call, args, kwargs):
    from torchwise import Plan
    from torchwise.compile import compile_plan
    from torchwise.workload import Example

    plan = Plan.from_json($plan)
    return compile_plan(call, plan, Example(args, kwargs), device=$device, mode=$mode).call"""

PREAMBLE = """\
from torchwise.workload.target import load as load_target

load_target($target, device=$device, seed=$seed)  # the fault comes with what this brings along
"""
