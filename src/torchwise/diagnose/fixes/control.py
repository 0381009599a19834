"""Fixes for `if` and `while` that depend on the data."""

from __future__ import annotations

from torchwise.diagnose.fixes.break_site import BreakSite
from torchwise.diagnose.fixes.tensors import as_tensor, with_where
from torchwise.records.compile_events import CodeFix


def branch(look: BreakSite) -> CodeFix | None:
    """`if`, `while`, `and` or a conditional expression on a tensor's value, or such a value read as a Python bool."""
    asks = look.says(r"[Dd]ata-dependent (branching|jump)|attempted to jump with")
    reads = look.says(r"Tensor\.item\(\)|_local_scalar_dense|aten\.(equal|allclose)\b")
    if not asks and not (reads and look.reads(r"^\s*(el)?if\b|^\s*while\b|\bif\b.*\belse\b|\bbool\(|\bassert\b")):
        return None
    if look.reads(r"^\s*while\b"):
        return _while(look)
    return _comparison(look) or _if(look)


def _while(look: BreakSite) -> CodeFix:
    return CodeFix(
        "while",
        f"How often {look.quoted} repeats lies in the data. Run as many steps as are ever needed, "
        "`for _ in range(MAX_COUNT)`, and hold what is finished: `x = torch.where(condition, step(x), x)`. Where that "
        "many steps would cost more than they save, keep the loop outside and compile only its body: "
        "`step = torch.compile(step)`.",
        condition=as_tensor(look.condition),
    )


def _if(look: BreakSite) -> CodeFix:
    leaves = look.reads(r":\s*(break|continue|return)\b")
    loop = (
        " In a loop that ends here: go on for all steps, and let `torch.where` hold the value that it ended with."
        if leaves
        else ""
    )
    line = with_where(look.statement)
    return CodeFix(
        "branch",
        f"Which way {look.quoted} goes lies in the data. Compute both sides and choose: "
        "`torch.where(condition, this_side, other_side)`. Where a side is costly: "
        f"`torch.cond(condition, this_function, other_function, (inputs,))`, which runs one of them.{loop}",
        line=line,
        condition="" if line else as_tensor(look.condition),
    )


def _comparison(look: BreakSite) -> CodeFix | None:
    """Replace `torch.allclose` and `torch.equal`: they return a Python bool, which `torch.where` does not take."""
    call = look.find_call(r"(^|\.)(allclose|equal)$")
    if not call:
        return None
    return CodeFix(
        "comparison",
        f"`{call}` answers with a Python bool. Ask for a tensor, such as `torch.isclose(x, y).all()` or "
        "`torch.eq(x, y).all()`, and choose by `torch.where(condition, this_side, other_side)`.",
        line=with_where(look.statement),
        condition=as_tensor(look.condition),
    )
