"""Mends for `if` and `while` whose answer lies in the data."""

from __future__ import annotations

import ast

from torchwise.diagnose.mends.look import Look
from torchwise.records.watched import Mend


def branch(look: Look) -> Mend | None:
    """`if`, `while`, `and`, a conditional expression on a tensor's value; or such a value read as a Python bool."""
    asks = look.says(r"[Dd]ata-dependent (branching|jump)|attempted to jump with")
    reads = look.says(r"Tensor\.item\(\)|_local_scalar_dense|aten\.(equal|allclose)\b")
    if not asks and not (reads and look.reads(r"^\s*(el)?if\b|^\s*while\b|\bif\b.*\belse\b|\bbool\(|\bassert\b")):
        return None
    if look.reads(r"^\s*while\b"):
        return _while(look)
    return _comparison(look) or _if(look)


def _while(look: Look) -> Mend:
    return Mend(
        "while",
        f"How often {look.quoted} repeats lies in the data. Run as many steps as are ever needed, "
        f"`for _ in range(MOST)`, and hold what is finished: `x = torch.where({_bare(look)}, step(x), x)`. Where that "
        "many steps would cost more than they save, keep the loop outside and compile only its body: "
        "`step = torch.compile(step)`.",
    )


def _if(look: Look) -> Mend:
    chosen = next((n for n in ast.walk(look.statement) if isinstance(n, ast.IfExp)), None) if look.statement else None
    sides = f"{ast.unparse(chosen.body)}, {ast.unparse(chosen.orelse)}" if chosen else "this_side, other_side"
    leaves = look.reads(r":\s*(break|continue|return)\b")
    loop = (
        " In a loop that ends here: go on for all steps, and let `torch.where` hold the value that it ended with."
        if leaves
        else ""
    )
    return Mend(
        "branch",
        f"Which way {look.quoted} goes lies in the data. Compute both sides and choose: "
        f"`torch.where({_bare(look)}, {sides})`. Where a side is costly: "
        f"`torch.cond({_bare(look)}, this_function, other_function, (inputs,))`, which runs one of them.{loop}",
    )


def _comparison(look: Look) -> Mend | None:
    """`torch.allclose` and `torch.equal` answer with a Python bool, so that `torch.where` cannot be given it."""
    call = look.called(r"(^|\.)(allclose|equal)$")
    if not call:
        return None
    same = call.replace("allclose", "isclose", 1) if "allclose" in call else call.replace("equal", "eq", 1)
    return Mend(
        "comparison",
        f"`{call}` answers with a Python bool. Ask for a tensor, `{same}.all()`, and choose by "
        f"`torch.where({same}.all(), this_side, other_side)`.",
    )


def _bare(look: Look) -> str:
    """The condition, without what makes a Python number of it."""
    text = look.condition or "condition"
    if text.startswith("bool(") and text.endswith(")"):
        text = text[len("bool(") : -1]
    return text.replace(".item()", "")
