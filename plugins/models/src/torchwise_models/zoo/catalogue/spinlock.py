"""Family `spinlock`: stochastic neural operators, as pure data."""

from torchwise.zoo import Entry, Family

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
        stochastic=True,
    ),
    Entry(
        "spinlock.operator_groupnorm",
        "GroupNorm for InstanceNorm: another operator with other kernels, and what swapping the two could be worth",
        {
            "small": {"batch": 2, "side": 24, "channels": 16},
            "medium": {"batch": 5, "side": 128, "channels": 64},
            "large": {"batch": 16, "side": 128, "channels": 64},
            "extreme": {"batch": 16, "side": 256, "channels": 128},
        },
        stochastic=True,
    ),
    Entry(
        "spinlock.operator_single",
        "One field at a time: latency, and against the batch what batching is worth",
        {
            "small": {"side": 24, "channels": 8},
            "medium": {"side": 128, "channels": 64},
            "large": {"side": 256, "channels": 64},
            "extreme": {"side": 512, "channels": 128},
        },
        stochastic=True,
    ),
    Entry(
        "spinlock.operator_groupnorm_single",
        "One field at a time with GroupNorm: latency of the other operator",
        {
            "small": {"side": 24, "channels": 16},
            "medium": {"side": 128, "channels": 64},
            "large": {"side": 256, "channels": 64},
            "extreme": {"side": 512, "channels": 128},
        },
        stochastic=True,
    ),
)

FAMILY = Family("spinlock", "torchwise_models.zoo.spinlock", ENTRIES)
