"""Family `arr_coc`: relevance scorers for a vision model, as pure data."""

from torchwise.zoo import Entry, Family

_SCENES = {
    "small": {"batch": 2, "grid": 4, "width": 64},
    "medium": {"batch": 8, "grid": 14, "width": 768},
    "large": {"batch": 64, "grid": 14, "width": 768},
    "extreme": {"batch": 256, "grid": 28, "width": 1024},
}
"""224² pixels are 14² patches of 16², 448² pixels are 28²."""

_PATCHES = {
    "small": {"batch": 2, "patches": 16},
    "medium": {"batch": 8, "patches": 196},
    "large": {"batch": 64, "patches": 196},
    "extreme": {"batch": 4096, "patches": 784},
}

_VIT = {"grid": 14, "patch": 16, "width": 768, "heads": 12, "layers": 12}

ENTRIES = (
    Entry(
        "arr_coc.information_scorer",
        "Softmax and entropy over the last dimension: one pass over memory where eager makes several",
        _SCENES,
    ),
    Entry(
        "arr_coc.salience_scorer",
        "A stencil over neighbouring patches, reduced at once: fusion across a pooling",
        _SCENES,
    ),
    Entry(
        "arr_coc.query_scorer",
        "One query per image, too thin for a matrix kernel, and a softmax over its patches",
        _SCENES,
        trains=True,
    ),
    Entry(
        "arr_coc.scorers",
        "Three scorers of the same patches: eager reads them many times over, at best they are read once",
        _SCENES,
        trains=True,
    ),
    Entry(
        "arr_coc.tension",
        "Many small kernels on few numbers: starting them costs more than the work",
        _PATCHES,
        trains=True,
    ),
    Entry(
        "arr_coc.detail",
        "Sort, running sum and gather between elementwise work: an allocation without synchronisation",
        _PATCHES,
    ),
    Entry(
        "arr_coc.model",
        "A vision transformer and small relevance kernels behind it: latency at batch 1, training at batch 16 and 64",
        {
            "small": {"batch": 2, "grid": 4, "patch": 16, "width": 64, "heads": 4, "layers": 2},
            "medium": {"batch": 1, **_VIT},
            "large": {"batch": 16, **_VIT},
            "extreme": {"batch": 64, **_VIT},
        },
        trains=True,
    ),
)

FAMILY = Family("arr_coc", "torchwise_models.zoo.arr_coc", ENTRIES)
