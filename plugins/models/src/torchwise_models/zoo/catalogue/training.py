"""Family `training`: whole training steps, as pure data."""

from torchwise.zoo import Entry, Family

_VIT = {"grid": 14, "patch": 16, "width": 768, "heads": 12, "layers": 12}
_RELEVANCE = {
    "small": {"batch": 4, "grid": 4, "patch": 16, "width": 64, "heads": 4, "layers": 2},
    "medium": {"batch": 8, **_VIT},
    "large": {"batch": 16, **_VIT},
    "extreme": {"batch": 64, **_VIT},
}

ENTRIES = (
    Entry(
        "training.transformer",
        "Six blocks under bfloat16 autocast with AdamW: thousands of launches a step, which capture turns into one",
        {
            "small": {"batch": 4, "length": 16, "width": 64, "heads": 4},
            "medium": {"batch": 16, "length": 128, "width": 512, "heads": 8},
            "large": {"batch": 64, "length": 256, "width": 512, "heads": 8},
            "extreme": {"batch": 64, "length": 512, "width": 512, "heads": 8},
        },
        is_step=True,
    ),
    Entry(
        "training.relevance",
        "The vision model of arr_coc in float32 with AdamW: large products, and small kernels on few numbers",
        _RELEVANCE,
        is_step=True,
    ),
    Entry(
        "training.relevance_amp",
        "The same under bfloat16 autocast: what is left to gain for those who have it already",
        _RELEVANCE,
        is_step=True,
    ),
    Entry(
        "training.carrier",
        "The recurrent carrier of energy_flow learns another one's steps: an RNN that compilers leave alone",
        {
            "small": {"batch": 8, "hidden": 32},
            "medium": {"batch": 256, "hidden": 1024},
            "large": {"batch": 4096, "hidden": 1024},
            "extreme": {"batch": 32768, "hidden": 1024},
        },
        is_step=True,
    ),
    Entry(
        "training.operator",
        "spinlock's stochastic operator learns diffusion with clipping and a schedule: noise in every step",
        {
            "small": {"batch": 4, "side": 16, "channels": 8},
            "medium": {"batch": 16, "side": 64, "channels": 64},
            "large": {"batch": 32, "side": 128, "channels": 64},
            "extreme": {"batch": 32, "side": 256, "channels": 64},
        },
        stochastic=True,
        is_step=True,
    ),
)

FAMILY = Family("training", "torchwise_models.zoo.training", ENTRIES)
