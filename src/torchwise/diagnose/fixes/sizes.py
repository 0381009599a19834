"""Fixes for operators whose result has a size that lies in the data."""

from __future__ import annotations

from torchwise.diagnose.fixes.break_site import BreakSite
from torchwise.records.compile_events import CodeFix

_MASK = (
    "Keep the whole shape, and let what is left out count nothing: `torch.where(mask, x, 0)` before a sum, a count by "
    "`mask.sum()`; other reductions take their own neutral value (`-inf` before a maximum)."
)
_INSTEAD = {
    "nonzero": "Where a largest number is known: `torch.nonzero_static(x, size=MAX, fill_value=-1)`. Or use the mask "
    f"itself. {_MASK}",
    "unique": "Sort instead, which keeps the size: `torch.sort(x).values`, and a value is new where it differs from "
    "the one before it.",
    "repeat_interleave": "Build the index from the TOTAL that the caller knows, "
    "`torch.searchsorted(counts.cumsum(0), torch.arange(TOTAL), right=True)`, and take `x[index]`.",
    "one_hot": "Say how many classes there are: `torch.nn.functional.one_hot(x, num_classes=CLASSES)`.",
    "bincount": "Add up into a fixed number of bins: `torch.zeros(BINS).scatter_add_(0, x, ones)`.",
}


def dynamic(look: BreakSite) -> CodeFix | None:
    """`nonzero`, boolean masks, `masked_select`, `unique`, `repeat_interleave`, `one_hot`, `bincount`."""
    if not look.says(r"[Dd]ynamic shape operator|output shape depends on|data-dependent output shape"):
        return None
    kind = next((name for name in _INSTEAD if look.says(name) and look.reads(name)), "mask")
    text = f"How large the result of {look.quoted} is lies in the data. {_INSTEAD.get(kind, _MASK)}"
    if kind == "one_hot":  # it needs no more than a number of classes
        return CodeFix(kind, text)
    return CodeFix(
        kind,
        text,
        f"{look.find_setting('capture_dynamic_output_shape_ops')} = True",
        "Sizes that lie in the data become symbols in the graph. Code that asks for them fails or breaks there, and "
        "CUDA graphs do not take such a graph.",
    )
