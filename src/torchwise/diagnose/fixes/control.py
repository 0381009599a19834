"""Fixes for `if` and `while` that depend on the data."""

from __future__ import annotations

from torchwise.diagnose.fixes.break_site import BreakSite
from torchwise.diagnose.fixes.tensors import as_tensor, with_where
from torchwise.records.compile_events import CodeFix


def branch(site: BreakSite) -> CodeFix | None:
    """`if`, `while`, `and` or a conditional expression on a tensor's value, or such a value read as a Python bool."""
    branches = site.says(r"[Dd]ata-dependent (branching|jump)|attempted to jump with")
    reads = site.says(r"Tensor\.item\(\)|_local_scalar_dense|aten\.(equal|allclose)\b")
    if not branches and not (reads and site.reads(r"^\s*(el)?if\b|^\s*while\b|\bif\b.*\belse\b|\bbool\(|\bassert\b")):
        return None
    if site.reads(r"^\s*while\b"):
        return _while(site)
    return _comparison(site) or _if(site)


def _while(site: BreakSite) -> CodeFix:
    return CodeFix(
        "while",
        f"The number of repetitions of {site.quoted} depends on the data. Run the maximum number of steps, "
        "`for _ in range(MAX_COUNT)`, and keep the values that are finished: `x = torch.where(condition, step(x), x)`. "
        "If that many steps would take longer than they save, keep the loop outside and compile only its body: "
        "`step = torch.compile(step)`.",
        condition=as_tensor(site.condition),
    )


def _if(site: BreakSite) -> CodeFix:
    ends_loop = site.reads(r":\s*(break|continue|return)\b")
    loop = (
        " In a loop that ends here: run all steps, and use `torch.where` to keep the final value." if ends_loop else ""
    )
    line = with_where(site.statement)
    return CodeFix(
        "branch",
        f"The branch that {site.quoted} takes depends on the data. Compute both sides and choose: "
        "`torch.where(condition, this_side, other_side)`. If a side is slow, use "
        f"`torch.cond(condition, this_function, other_function, (inputs,))`, which runs one of them.{loop}",
        line=line,
        condition="" if line else as_tensor(site.condition),
    )


def _comparison(site: BreakSite) -> CodeFix | None:
    """Replace `torch.allclose` and `torch.equal`: they return a Python bool, which `torch.where` does not take."""
    call = site.find_call(r"(^|\.)(allclose|equal)$")
    if not call:
        return None
    return CodeFix(
        "comparison",
        f"`{call}` returns a Python bool. Compute a tensor, such as `torch.isclose(x, y).all()` or "
        "`torch.eq(x, y).all()`, and choose with `torch.where(condition, this_side, other_side)`.",
        line=with_where(site.statement),
        condition=as_tensor(site.condition),
    )
