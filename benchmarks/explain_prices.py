"""Is a potential saving of `torchwise explain` the actual saving of its fix?

The faults have one known fix each, and run with and without it.

    python benchmarks/explain_prices.py [NAME…]

`explain` estimates the saving in its own process. Then the fix is made here, as a user would make it: by hand, or by
the plan that the finding names. Both versions are timed in alternation. An estimate is honest if the saving lies in its
interval, or within a quarter of the estimate from it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from torchwise.compile import compile_plan
from torchwise.diagnose.code_copies import copy_with_fresh_code
from torchwise.diagnose.explain import explain
from torchwise.diagnose.savings import BLOCK_S, share_saved
from torchwise.measure.clock import Clock
from torchwise.measure.paired_timing import Mix, Precision, measure_pair
from torchwise.plan import Plan
from torchwise.records import Interval
from torchwise.records.answer import Answer
from torchwise.records.explanation import Saving
from torchwise.workload import Example

Call = Callable[..., Any]
NEAR = 0.25
"""Allowed deviation of the saving, as a share of the estimate."""


class Deep(nn.Module):
    """Many small layers, each of which is guarded."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.ReLU()) for _ in range(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add each layer's output to x."""
        for layer in self.layers:
            x = x + layer(x)
        return x


class Branching(nn.Module):
    """Two layers with a data-dependent branch between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Double the hidden values if they are above 0 in the mean."""
        hidden = torch.tanh(self.first(x))
        if hidden.mean() > 0:
            hidden = hidden * 2
        return self.second(hidden)


class Branchless(Branching):
    """The same, with the branch on the device."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Double the hidden values if they are above 0 in the mean."""
        hidden = torch.tanh(self.first(x))
        return self.second(torch.where(hidden.mean() > 0, hidden * 2, hidden))


class Reading(Branching):
    """Two layers with a number between them that Python reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale the hidden values to a mean size of 1."""
        hidden = torch.tanh(self.first(x))
        return self.second(hidden / hidden.abs().mean().item())


class Recurrent(nn.Module):
    """A GRU with much to fuse on both sides of it."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(32, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the GRU between two chains of small operators."""
        y: torch.Tensor = self.gru(_chain(x))[0]
        return _chain(y)


def _chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(16):
        x = torch.tanh(torch.sin(x) * 1.1 + x.cos() - x * x)
    return x


def waves(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Sum plane waves of complex amplitude."""
    return (torch.exp(1j * x) * z).sum(-1).abs()


def waves_in_parts(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Sum plane waves by their real and imaginary parts."""
    parts = torch.view_as_real(z)
    re, im, c, s = parts[..., 0], parts[..., 1], x.cos(), x.sin()
    return torch.hypot((c * re - s * im).sum(-1), (c * im + s * re).sum(-1))


def tiny(x: torch.Tensor) -> torch.Tensor:
    """Add one: less work than a guard."""
    return x + 1


@dataclass(frozen=True, slots=True)
class Case:
    """A fault, its kind of finding, and its fix.

    Attributes:
        kind: kind of the finding.
        fault: builds the faulty callable and its inputs.
        fixed: builds the fixed, compiled callable from the faulty one, if the finding names no plan for it.
    """

    kind: str
    fault: Callable[[], tuple[Call, tuple[torch.Tensor, ...]]]
    fixed: Callable[[Call, tuple[torch.Tensor, ...]], Call]


def _like(kind: type[nn.Module]) -> Callable[[Call, tuple[torch.Tensor, ...]], Call]:
    def compile_fixed(call: Call, _args: tuple[torch.Tensor, ...]) -> Call:
        assert isinstance(call, nn.Module)
        other = kind().eval()
        other.load_state_dict(call.state_dict())
        compiled: Call = torch.compile(other)
        return compiled

    return compile_fixed


def _apply_plan(plan: Plan, call: Call, args: tuple[torch.Tensor, ...]) -> Call:
    """Return the result of `torchwise.apply` for the plan that a finding names."""
    compiled = compile_plan(copy_with_fresh_code(call), plan, Example(args), device="cpu", mode="inference")
    with torch.no_grad():
        for _ in range(4):
            compiled.call(*args)
    return compiled.bypass(args, {})


def _compile_without_guards(call: Call, _args: tuple[torch.Tensor, ...]) -> Call:
    skip = torch.compiler.skip_guard_on_all_nn_modules_unsafe
    compiled: Call = torch.compile(copy_with_fresh_code(call), options={"guard_filter_fn": skip})
    return compiled


def _reads_scalars(call: Call, args: tuple[torch.Tensor, ...]) -> Call:
    compiled: Call = torch.compile(copy_with_fresh_code(call))

    with torch._dynamo.config.patch(capture_scalar_outputs=True), torch.no_grad():
        compiled(*args)
    return compiled


CASES = {
    "guards": Case("guards", lambda: (Deep().eval(), (torch.randn(4, 16),)), _compile_without_guards),
    "branch": Case("graph break", lambda: (Branching().eval(), (torch.randn(16, 64),)), _like(Branchless)),
    "item": Case("graph break", lambda: (Reading().eval(), (torch.randn(16, 64),)), _reads_scalars),
    "complex": Case(
        "complex",
        lambda: (waves, (torch.randn(512, 64), torch.randn(512, 64, dtype=torch.complex64))),
        lambda _call, _args: torch.compile(waves_in_parts),
    ),
    "rnn": Case("rnn", lambda: (Recurrent().eval(), (torch.randn(8, 6, 32),)), lambda call, _args: call),
    "tiny": Case("slower than eager", lambda: (tiny, (torch.randn(64),)), lambda call, _args: call),
}


def check(name: str) -> bool:
    """Estimate one fault's saving, fix the fault, print both, and return whether the estimate was honest."""
    torch.manual_seed(0)
    case = CASES[name]
    call, args = case.fault()
    explanation = explain(call, args, budget=float(os.environ["BUDGET"]) if "BUDGET" in os.environ else None)
    found = next((one for one in explanation.findings if one.kind == case.kind and one.saving), None)
    if found is None or found.saving is None:
        print(f"{name}: no finding of kind {case.kind!r} with a price; {'; '.join(explanation.notes)}")
        return False
    saving, plan = found.saving, found.plan
    share, call_s = (
        _measure_saving(call, _apply_plan(plan, call, args) if plan else case.fixed(call, args), args),
        explanation.execution.call_s.mid,
    )
    saved = Interval(share.low * call_s, share.mid * call_s, share.high * call_s)
    honest = _is_honest(saving, saved)
    fix = f"plan {plan}" if plan else "by hand"
    print(
        f"{name}, {fix}: predicted {_format_interval(saving.per_call_s)} {saving.basis}, "
        f"saved {_format_interval(saved)}: {honest}",
        flush=True,
    )
    return honest


def _measure_saving(call: Call, fixed: Call, args: tuple[torch.Tensor, ...]) -> Interval:
    """Return the share of a call that the fix saves."""
    now = torch.compile(call)
    with torch.no_grad():
        for one in (now, fixed):
            for _ in range(4):
                one(*args)
        sides = [Mix(((lambda one=one: one(*args)),), (1.0,)) for one in (fixed, now)]  # type: ignore[misc]
        found = measure_pair(sides[0], sides[1], Clock("cpu"), Precision(0.01, 4.0, BLOCK_S))
    return share_saved(found)


def _is_honest(saving: Saving, saved: Interval) -> bool:
    """Return whether the saving is in the estimate's interval, or within a quarter of the estimate from it."""
    if saving.answer is Answer.INCONCLUSIVE:
        return False
    predicted = saving.per_call_s
    within = predicted.low <= saved.mid <= predicted.high
    return within or abs(saved.mid - predicted.mid) <= NEAR * abs(predicted.mid)


def _format_interval(found: Interval) -> str:
    return f"{found.mid * 1e6:.2f} µs [{found.low * 1e6:.2f}, {found.high * 1e6:.2f}]"


if __name__ == "__main__":
    torch.set_num_threads(1)  # with several threads, the machine's other work would affect timings
    results = [check(name) for name in sys.argv[1:] or CASES]
    print(f"{sum(results)} of {len(results)} prices are honest")
    sys.exit(not all(results))
