"""The text of a repro: a program of its own, which needs torch alone unless its head says otherwise."""

from __future__ import annotations

from string import Template

PROGRAM = Template('''\
"""$about

Exit codes: 0 the fault is gone; 1, or death by a signal, it is there; 2 this program does not run here.
"""

import copy
import faulthandler
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


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for item in value for t in tensors(item)] if isinstance(value, (list, tuple)) else []


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
    """Return every tensor that a call gives or writes, and in training every gradient."""
    args, kwargs = copied(args, change), copied(kwargs, change)
    torch.manual_seed(0)
    with torch.set_grad_enabled(TRAINING):
        outputs = tensors(function(*args, **kwargs))
        parameters = list(function.parameters()) if isinstance(function, torch.nn.Module) else []
        wanted = [t for t in (*parameters, *tensors([args, kwargs])) if t.requires_grad]
        roots = [t for t in outputs if t.requires_grad]
        gradients = []
        if wanted and roots:
            loss = sum((t * t.conj()).real.sum() for t in roots)
            gradients = [g for g in torch.autograd.grad(loss, wanted, allow_unused=True) if g is not None]
    return [t.detach() for t in (*outputs, *tensors([args, kwargs]), *gradients)]


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


def fault(ours, plain, exact):
    """Say what is wrong with one tensor, or return None: eager's own error is no fault."""
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
        call, args, kwargs = load()
        plain = run(call, args, kwargs)
    except Exception:
        traceback.print_exc()
        print("this program does not run here")
        return 2
    try:
        exact = run(as_reference(call), args, kwargs, widened)
    except Exception:
        exact = plain  # the model fixes a precision somewhere, so that eager must do
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    try:
        compiled = candidate(call, args, kwargs)
        ours = run(compiled, args, kwargs)
    except Exception:
        traceback.print_exc()
        print("FAULT: the compiled call raises")
        return 1
    faulthandler.cancel_dump_traceback_later()
    found = [fault(*three) for three in zip(ours, plain, exact)]
    if len(ours) != len(plain):
        found.append(f"gives {len(ours)} tensors, eager {len(plain)}")
    for place, problem in enumerate(found):
        if problem:
            print(f"FAULT: tensor {place} {problem}")
            return 1
    if SLOW and (ratio := pace(compiled, call, args, kwargs)) > 1.1:
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
    args = torch.load(Path(__file__).with_suffix(".pt"), weights_only=True)
    return forward, tuple(args), {}"""

TARGET = '''\
def load():
    """Build what was looked at."""
    from torchwise.workload.target import load as load_target

    workload = load_target($target, device=$device, seed=$seed)
    return workload.call, workload.examples[0].args, dict(workload.examples[0].kwargs)'''

COMPILED = """\
def candidate(call, args, kwargs):
    return torch.compile(call, $how)"""

PLANNED = """\
def candidate(call, args, kwargs):
    from torchwise import Plan
    from torchwise.realize import realize
    from torchwise.workload import Example

    plan = Plan.from_json($plan)
    return realize(call, plan, Example(args, kwargs), device=$device, mode=$mode).call"""

PREAMBLE = """\
from torchwise.workload.target import load as load_target

load_target($target, device=$device, seed=$seed)  # the fault comes with what this brings along
"""
