"""Family `ivhl`: fields, tensor networks and condensates, as pure data."""

from torchwise.zoo.registry import Entry

ENTRIES = (
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
)
