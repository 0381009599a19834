"""Family `spinlock`: stochastic neural operators, as pure data."""

from torchwise.zoo.registry import Entry

ENTRIES = (
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
