"""Fixes for calls that the compiler cannot, or will not, trace into."""

from __future__ import annotations

from torchwise.diagnose.fixes.break_site import BreakSite
from torchwise.records.compile_events import CodeFix

_OPERATOR = (
    "make it one operator of the graph: `@torch.library.custom_op` around it, with types in its signature, and "
    "`register_fake` for the shape of what it returns"
)


def compiler_disable(look: BreakSite) -> CodeFix | None:
    """Functions under `torch.compiler.disable`."""
    if not look.says(r"torch\.compiler\.disable|torch\._dynamo\.disable"):
        return None
    return CodeFix(
        "disabled",
        f"{look.quoted} calls a function that is kept from the compiler by `torch.compiler.disable`. Take that away if "
        "its reason is gone. If it must stay eager, call it first or last, so that the rest stays one graph.",
    )


def recurrent(look: BreakSite) -> CodeFix | None:
    """`nn.RNN`, `nn.GRU`, `nn.LSTM`."""
    if not look.says(r"RNN, GRU, or LSTM|\b(GRU|LSTM|RNN)\(|nn\.modules\.rnn|variables\.lazy.*rnn"):
        return None
    return CodeFix(
        "recurrent",
        "PyTorch does not compile RNN modules, and may leave what follows uncompiled, too. Let Torchwise isolate it "
        "(`torchwise tune` tries `isolate_rnn`), or put it in a module whose forward is under "
        "`torch.compiler.disable`: both sides are compiled then. For few steps, loop over `nn.GRUCell` or "
        "`nn.LSTMCell`, which is compiled.",
        "torch._dynamo.config.allow_rnn = True",
        "The steps are unrolled: compiling takes seconds for every few of them, and anew for each length; training an "
        "LSTM so crashes in some versions.",
    )


def deepcopy(look: BreakSite) -> CodeFix | None:
    """`copy.deepcopy` of tensors."""
    if not look.says("deepcopy"):
        return None
    return CodeFix("copy", f"Copy the tensor by `.clone()` in place of {look.quoted}.")


def sort(look: BreakSite) -> CodeFix | None:
    """`sorted`, `min`, `max` over Python lists of tensors."""
    if not look.says("sort with non-constant keys"):
        return None
    return CodeFix(
        "sort", f"Put the tensors together and sort as one: `torch.sort(torch.stack(values))` for {look.quoted}."
    )


def backward(look: BreakSite) -> CodeFix | None:
    """`.backward()` and leaves made inside."""
    if not look.says(r"Tensor\.backward\(\)|requires_grad"):
        return None
    return CodeFix(
        "backward",
        f"Take {look.quoted} out of the compiled function: compile what computes the loss, make leaves and call "
        "`.backward()` in the caller. The backward pass is compiled with it.",
    )


def exception(look: BreakSite) -> CodeFix | None:
    """Exceptions that leave the compiled function."""
    if not look.says("Observed exception"):
        return None
    return CodeFix(
        "exception",
        f"{look.quoted} raises while it is traced. Check in the caller, before the compiled call; if it is not meant "
        'to raise, `torch.compiler.set_stance("force_eager")` shows the error as it is.',
    )


def opaque(look: BreakSite) -> CodeFix | None:
    """Functions of C extensions and of built-in modules."""
    if not look.says(r"marked as skipped|C/C\+\+|C extension|does not know how to trace (the )?builtin"):
        return None
    return CodeFix(
        "opaque",
        f"The compiler cannot look into what {look.quoted} calls. If it needs no tensor, compute it before the "
        f"compiled call (in `__init__`, or as an argument). If it does, {_OPERATOR}.",
    )


def other(look: BreakSite) -> CodeFix:
    """Anything else."""
    return CodeFix(
        "other",
        f"Move {look.quoted} out of the compiled function: before it, with the result as an argument, or after it. If "
        f"it computes with tensors, write it in PyTorch's operators, or {_OPERATOR}.",
    )
