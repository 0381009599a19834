"""Code to write instead, so that a graph break is gone: one file for each class of fix.

A rule reads PyTorch's words on a break and its line of source. The first rule that knows the break gives its fix.
"""

from __future__ import annotations

from dataclasses import replace

from torchwise.diagnose.fixes import calls, control, effects, sizes, values
from torchwise.diagnose.fixes.break_site import Look, Rule
from torchwise.records.compile_events import Break

_RULES: tuple[Rule, ...] = (
    effects.debugger,
    effects.printed,
    effects.logged,
    effects.warned,
    calls.disabled,
    calls.recurrent,
    values.random,
    control.branch,
    values.item,
    values.listed,
    sizes.dynamic,
    values.numpy,
    effects.clock,
    effects.outside,
    calls.copied,
    calls.ordered,
    calls.differentiated,
    calls.raised,
    calls.opaque,
    calls.other,
)
"""The narrower rules before the wider."""


def mend_for(found: Break) -> Break:
    """Return a break with its fix.

    For a break in a library, the fix says that the call into it can change.
    """
    look = Look(found)
    mend = next(mend for rule in _RULES if (mend := rule(look)))
    if found.library:
        mend = replace(mend, text=f"The break lies in library code ({found.library}), called from here. {mend.text}")
    if found.whole:
        mend = replace(mend, text=f"{mend.text} {_WHOLE}")
    return replace(found, mend=mend)


_WHOLE = (
    "Here, within a `with`, a `try`, a loop or a generator, the compiler cannot go on after the break and leaves the "
    "whole function uncompiled: if the line must stay, move it out of that block."
)
