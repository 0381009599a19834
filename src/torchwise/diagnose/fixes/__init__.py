"""Code that removes a graph break, in one file for each class of fix.

A rule reads PyTorch's message about a break and its line of source. The first rule that matches gives the fix.
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


def add_fix(graph_break: Break) -> Break:
    """Return a break with its fix.

    For a break in a library, the fix says that the call into it can change.
    """
    site = BreakSite(graph_break)
    fix = next(fix for rule in _RULES if (fix := rule(site)))
    if graph_break.library:
        fix = replace(fix, text=f"The break lies in library code ({graph_break.library}), called from here. {fix.text}")
    if graph_break.whole:
        fix = replace(fix, text=f"{fix.text} {_WHOLE}")
    return replace(graph_break, fix=fix)


_WHOLE = (
    "Within a `with`, a `try`, a loop or a generator, the compiler cannot resume after the break and leaves the whole "
    "function uncompiled. If the line must stay, move it out of that block."
)
