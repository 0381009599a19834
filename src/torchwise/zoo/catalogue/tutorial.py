"""Family `tutorial`: the programs that teach `torch.compile`, as pure data."""

from torchwise.zoo.registry import Entry

ENTRIES = (
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
)
