"""Family `energy_flow`: particles of energy carried by a recurrent net, as pure data."""

from torchwise.zoo import Entry, Family

ENTRIES = (
    Entry(
        "energy_flow.neuron",
        "A tiny perceptron: at small batches nothing but launch overhead, at large ones memory traffic",
        {
            "small": {"batch": 8},
            "medium": {"batch": 32},
            "large": {"batch": 1024},
            "extreme": {"batch": 262144},
        },
        trains=True,
    ),
    Entry(
        "energy_flow.carrier",
        "One step of a two-layer GRU with heads: reading the weights is everything, and the GRU breaks the graph",
        {
            "small": {"batch": 8, "hidden": 32},
            "medium": {"batch": 32, "hidden": 1024},
            "large": {"batch": 512, "hidden": 1024},
            "extreme": {"batch": 8192, "hidden": 1024},
        },
    ),
    Entry(
        "energy_flow.fused_step",
        "Neuron, carrier, survival and statistics in one callable: many small kernels around a few large ones",
        {
            "small": {"batch": 8, "hidden": 32},
            "medium": {"batch": 32, "hidden": 1024},
            "large": {"batch": 512, "hidden": 1024},
            "extreme": {"batch": 8192, "hidden": 1024},
        },
    ),
    Entry(
        "energy_flow.storage",
        "Fetch live rows by a mask and update them in bulk: memory traffic, and a wait for the number of rows",
        {
            "small": {"capacity": 8, "hidden": 32},
            "medium": {"capacity": 512, "hidden": 1024},
            "large": {"capacity": 8192, "hidden": 1024},
            "extreme": {"capacity": 65536, "hidden": 1024},
        },
    ),
    Entry(
        "energy_flow.storage_in_place",
        "The same update by masks, in place: no wait, so that a CUDA graph can hold it and write to the storage",
        {
            "small": {"capacity": 8, "hidden": 32},
            "medium": {"capacity": 512, "hidden": 1024},
            "large": {"capacity": 8192, "hidden": 1024},
            "extreme": {"capacity": 65536, "hidden": 1024},
        },
    ),
    Entry(
        "energy_flow.processor",
        "Flows are born and die, so shapes depend on data: graph breaks, waits, recompilation",
        {
            "small": {"capacity": 8, "hidden": 32},
            "medium": {"capacity": 32, "hidden": 1024},
            "large": {"capacity": 512, "hidden": 1024},
            "extreme": {"capacity": 8192, "hidden": 1024},
        },
    ),
    Entry(
        "energy_flow.padded_processor",
        "The same answer from static shapes and masks: no waits, so that a CUDA graph can hold the whole call",
        {
            "small": {"capacity": 8, "hidden": 32},
            "medium": {"capacity": 32, "hidden": 1024},
            "large": {"capacity": 512, "hidden": 1024},
            "extreme": {"capacity": 8192, "hidden": 1024},
        },
    ),
    Entry(
        "energy_flow.rollout",
        "Many padded steps: a loop of small kernels that one CUDA graph can hold",
        {
            "small": {"capacity": 8, "hidden": 32, "steps": 6},
            "medium": {"capacity": 32, "hidden": 1024, "steps": 16},
            "large": {"capacity": 512, "hidden": 1024, "steps": 32},
            "extreme": {"capacity": 4096, "hidden": 1024, "steps": 64},
        },
    ),
    Entry(
        "energy_flow.dynamic_rollout",
        "Many steps whose shapes change at each: what compilation per shape cannot win",
        {
            "small": {"capacity": 8, "hidden": 32, "steps": 6},
            "medium": {"capacity": 32, "hidden": 1024, "steps": 16},
            "large": {"capacity": 512, "hidden": 1024, "steps": 32},
            "extreme": {"capacity": 4096, "hidden": 1024, "steps": 64},
        },
    ),
    Entry(
        "energy_flow.embedding_mapper",
        "The optional input stage: two projections with softmax and tanh, from embeddings to new-born flows",
        {
            "small": {"batch": 2, "width": 32, "side": 2},
            "medium": {"batch": 32, "width": 768, "side": 8},
            "large": {"batch": 1024, "width": 768, "side": 8},
            "extreme": {"batch": 8192, "width": 768, "side": 16},
        },
        trains=True,
    ),
)

FAMILY = Family("energy_flow", "torchwise_models.zoo.energy_flow", ENTRIES)
