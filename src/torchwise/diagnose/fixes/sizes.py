"""Fixes for operators whose output size depends on the data."""

from __future__ import annotations

from torchwise.diagnose.fixes.break_site import BreakSite
from torchwise.records.compile_events import CodeFix

_MASK = (
    "Keep the whole shape, and give excluded elements a neutral value: `torch.where(mask, x, 0)` before a sum, `-inf` "
    "before a maximum. Count with `mask.sum()`."
)
_INSTEAD = {
    "nonzero": "Where a largest number is known: `torch.nonzero_static(x, size=MAX_COUNT, fill_value=-1)`. Or use the "
    f"mask itself. {_MASK}",
    "unique": "Sort instead, which keeps the size: `torch.sort(x).values`. A value is new if it differs from the one "
    "before it.",
    "repeat_interleave": "Build the index from the TOTAL, which the caller passes in: "
    "`torch.searchsorted(counts.cumsum(0), torch.arange(TOTAL), right=True)`, and take `x[index]`.",
    "one_hot": "Pass the number of classes: `torch.nn.functional.one_hot(x, num_classes=CLASSES)`.",
    "bincount": "Add up into a fixed number of bins: `torch.zeros(BINS).scatter_add_(0, x, ones)`.",
}


def dynamic(site: BreakSite) -> CodeFix | None:
    """`nonzero`, boolean masks, `masked_select`, `unique`, `repeat_interleave`, `one_hot`, `bincount`."""
    if not site.says(r"[Dd]ynamic shape operator|output shape depends on|data-dependent output shape"):
        return None
    kind = next((name for name in _INSTEAD if site.says(name) and site.reads(name)), "mask")
    text = f"The size of the result of {site.quoted} depends on the data. {_INSTEAD.get(kind, _MASK)}"
    if kind == "one_hot":  # it needs no more than a number of classes
        return CodeFix(kind, text)
    return CodeFix(
        kind,
        text,
        f"{site.find_setting('capture_dynamic_output_shape_ops')} = True",
        "Sizes that depend on the data become symbols in the graph. Code that branches on them fails or breaks there, "
        "and such a graph cannot be a CUDA graph.",
    )
