"""Code to write instead, so that a graph break is gone: one file for each class of fix.

A rule reads PyTorch's words on a break and its line of source. The first rule that knows the break gives its fix.
"""

from __future__ import annotations

from dataclasses import replace

from torchwise.diagnose.fixes import calls, control, effects, sizes, values
from torchwise.diagnose.fixes.break_site import BreakSite, Rule
from torchwise.records.compile_events import Break

_RULES: tuple[Rule, ...] = (
    effects.debugger,
    effects.print_call,
    effects.log_call,
    effects.warn_call,
    calls.compiler_disable,
    calls.recurrent,
    values.random,
    control.branch,
    values.item,
    values.tolist,
    sizes.dynamic,
    values.numpy,
    effects.clock,
    effects.file_access,
    calls.deepcopy,
    calls.sort,
    calls.backward,
    calls.exception,
    calls.opaque,
    calls.other,
)
"""The narrower rules before the wider."""


def add_fix(found: Break) -> Break:
    """Return a break with its fix.

    For a break in a library, the fix says that the call into it can change.
    """
    look = BreakSite(found)
    mend = next(mend for rule in _RULES if (mend := rule(look)))
    if found.library:
        mend = replace(mend, text=f"The break lies in library code ({found.library}), called from here. {mend.text}")
    if found.whole:
        mend = replace(mend, text=f"{mend.text} {_WHOLE}")
    return replace(found, fix=mend)


_WHOLE = (
    "Here, within a `with`, a `try`, a loop or a generator, the compiler cannot go on after the break and leaves the "
    "whole function uncompiled: if the line must stay, move it out of that block."
)
