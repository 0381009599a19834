"""Every reference workload as pure data, so that a list of them costs no torch.

To add one: an entry here, and `build_<operation>` in the file of its family, which takes these keywords.
"""

from __future__ import annotations

from torchwise.zoo.registry import Entry

CATALOGUE: tuple[Entry, ...] = (
    Entry(
        "ivhl.field_superposition",
        "Complex arithmetic: Inductor leaves it to eager kernels, a split into real and imaginary parts fuses it",
        {
            "small": {"grid": 512, "sources": 10},
            "medium": {"grid": 2048, "sources": 20},
            "large": {"grid": 8192, "sources": 50},
            "extreme": {"grid": 32768, "sources": 100},
        },
    ),
    Entry(
        "tutorial.fusion_demo",
        "Four elementwise passes and a normalisation that fuse into one: memory traffic is everything",
        {
            "small": {"batch": 8, "length": 32, "width": 512},
            "medium": {"batch": 64, "length": 128, "width": 512},
            "large": {"batch": 256, "length": 128, "width": 512},
            "extreme": {"batch": 512, "length": 256, "width": 512},
        },
    ),
    Entry(
        "tutorial.many_small_ops",
        "Launch overhead: many small layers, for which a CUDA graph does more than compilation",
        {
            "small": {"layers": 10, "width": 64, "batch": 4},
            "medium": {"layers": 20, "width": 256, "batch": 8},
            "large": {"layers": 40, "width": 512, "batch": 16},
            "extreme": {"layers": 80, "width": 1024, "batch": 32},
        },
    ),
    Entry(
        "spinlock.operator",
        "A stochastic network: noise and dropout in inference, so that equality cannot be the test of correctness",
        {
            "small": {"batch": 2, "side": 24, "channels": 8},
            "medium": {"batch": 5, "side": 128, "channels": 64},
            "large": {"batch": 16, "side": 128, "channels": 64},
            "extreme": {"batch": 16, "side": 256, "channels": 128},
        },
    ),
)
"""In the order in which they are shown."""
