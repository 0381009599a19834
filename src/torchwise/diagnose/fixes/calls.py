"""Fixes for calls that the compiler does not trace into."""

from __future__ import annotations

import re

from torchwise._torch import dynamo
from torchwise.diagnose.fixes.break_site import BreakSite
from torchwise.records.compile_events import CodeFix

_OPERATOR = (
    "make it one operator of the graph: decorate it with `@torch.library.custom_op`, with types in its signature, and "
    "use `register_fake` for the shape of its result"
)


def compiler_disable(site: BreakSite) -> CodeFix | None:
    """Functions under `torch.compiler.disable`."""
    if not site.says(rf"torch\.compiler\.disable|{re.escape(dynamo.DISABLE)}"):
        return None
    return CodeFix(
        "disabled",
        f"{site.quoted} calls a function under `torch.compiler.disable`. Remove that decorator if it is no longer "
        "needed. If the function must stay eager, call it first or last, so that the rest stays one graph.",
    )


def recurrent(site: BreakSite) -> CodeFix | None:
    """`nn.RNN`, `nn.GRU`, `nn.LSTM`."""
    if not site.says(r"RNN, GRU, or LSTM|\b(GRU|LSTM|RNN)\(|nn\.modules\.rnn|variables\.lazy.*rnn"):
        return None
    return CodeFix(
        "recurrent",
        "PyTorch does not compile RNN modules, and may leave the code after them uncompiled, too. Have "
        "Torchwise isolate it (`torchwise tune` tries `isolate_rnn`), or put it in a module whose forward is under "
        "`torch.compiler.disable`: the code on both sides is then compiled. For few steps, loop over `nn.GRUCell` or "
        "`nn.LSTMCell`, which is compiled.",
        f"{dynamo.CONFIG}.allow_rnn = True",
        "The steps are unrolled: compiling takes seconds for every few steps, and again for each length. In some "
        "versions, training an LSTM like this crashes.",
    )


def deepcopy(site: BreakSite) -> CodeFix | None:
    """`copy.deepcopy` of tensors."""
    if not site.says("deepcopy"):
        return None
    return CodeFix("copy", f"Copy the tensor with `.clone()` instead of {site.quoted}.")


def sort(site: BreakSite) -> CodeFix | None:
    """`sorted`, `min`, `max` over Python lists of tensors."""
    if not site.says("sort with non-constant keys"):
        return None
    return CodeFix(
        "sort", f"Stack the tensors and sort them together: `torch.sort(torch.stack(values))` for {site.quoted}."
    )


def backward(site: BreakSite) -> CodeFix | None:
    """`.backward()` and leaves made inside."""
    if not site.says(r"Tensor\.backward\(\)|requires_grad"):
        return None
    return CodeFix(
        "backward",
        f"Move {site.quoted} out of the compiled function. Compile the code that computes the loss, create leaves and "
        "call `.backward()` in the caller. The backward pass is compiled too.",
    )


def exception(site: BreakSite) -> CodeFix | None:
    """Exceptions that leave the compiled function."""
    if not site.says("Observed exception"):
        return None
    return CodeFix(
        "exception",
        f"{site.quoted} raises while it is traced. Check its condition in the caller, before the compiled call. If it "
        'should not raise, `torch.compiler.set_stance("force_eager")` shows the original error.',
    )


def opaque(site: BreakSite) -> CodeFix | None:
    """Functions of C extensions and of built-in modules."""
    if not site.says(r"marked as skipped|C/C\+\+|C extension|does not know how to trace (the )?builtin"):
        return None
    return CodeFix(
        "opaque",
        f"The compiler cannot trace into the function that {site.quoted} calls. If it needs no tensor, compute it "
        f"before the compiled call (in `__init__`, or as an argument). If it needs one, {_OPERATOR}.",
    )


def other(site: BreakSite) -> CodeFix:
    """Anything else."""
    return CodeFix(
        "other",
        f"Move {site.quoted} out of the compiled function: before it, with the result as an argument, or after it. If "
        f"it computes with tensors, write it with PyTorch's operators, or {_OPERATOR}.",
    )
