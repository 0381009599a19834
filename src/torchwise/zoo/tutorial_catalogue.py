"""Family `tutorial`: the programs that teach `torch.compile`, as pure data."""

from torchwise.zoo.entry import Entry, Family

BREAK_SIZES = {
    "small": {"batch": 4, "width": 32},
    "medium": {"batch": 32, "width": 256},
    "large": {"batch": 128, "width": 1024},
    "extreme": {"batch": 1024, "width": 4096},
}
"""Two layers with a break between them, the same in the whole gallery."""

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
        trains=True,
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
        trains=True,
    ),
    Entry(
        "tutorial.elementwise_chain",
        "Seven elementwise passes over a large matrix: bandwidth, and nothing else",
        {
            "small": {"side": 64},
            "medium": {"side": 4096},
            "large": {"side": 8192},
            "extreme": {"side": 16384},
        },
    ),
    Entry(
        "tutorial.branch",
        "A Python `if` on the data: the host waits, the graph breaks, and no capture can hold both branches",
        {
            "small": {"batch": 8},
            "medium": {"batch": 64},
            "large": {"batch": 4096},
            "extreme": {"batch": 262144},
        },
        trains=True,
    ),
    Entry(
        "tutorial.transformer_block",
        "Large matrix products, which are fast already: what is left between them to fuse",
        {
            "small": {"batch": 2, "length": 16, "width": 64, "heads": 4},
            "medium": {"batch": 32, "length": 128, "width": 768, "heads": 12},
            "large": {"batch": 64, "length": 512, "width": 768, "heads": 12},
            "extreme": {"batch": 32, "length": 2048, "width": 768, "heads": 12},
        },
        trains=True,
    ),
    Entry(
        "tutorial.six_layer_transformer",
        "A training step: thousands of small launches forward and backward, which capture turns into one",
        {
            "small": {"batch": 2, "length": 16, "width": 64, "heads": 4},
            "medium": {"batch": 16, "length": 128, "width": 512, "heads": 8},
            "large": {"batch": 64, "length": 256, "width": 512, "heads": 8},
            "extreme": {"batch": 64, "length": 512, "width": 512, "heads": 8},
        },
        trains=True,
    ),
    Entry(
        "tutorial.break_print", "A graph break by `print`: output that must keep its place in the program", BREAK_SIZES
    ),
    Entry("tutorial.break_item", "A graph break by `.item()`: a tensor that becomes a Python number", BREAK_SIZES),
    Entry("tutorial.break_branch", "A graph break by a data-dependent `if` between two layers", BREAK_SIZES),
    Entry("tutorial.break_numpy", "A graph break by a NumPy round trip through the host", BREAK_SIZES),
    Entry("tutorial.break_list", "A graph break by a Python list that grows for as long as the data say", BREAK_SIZES),
)

TUTORIAL = Family("tutorial", "torchwise.zoo.tutorial", ENTRIES)
