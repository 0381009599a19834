"""Family `ivhl`: fields, tensor networks and condensates, as pure data."""

from torchwise.zoo import Entry, Family

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
    Entry(
        "ivhl.vortex_field",
        "A product of complex factors along a dimension, from elementwise chains: no complex kernel is needed for it",
        {
            "small": {"grid": 512, "vortices": 5},
            "medium": {"grid": 2048, "vortices": 6},
            "large": {"grid": 8192, "vortices": 8},
            "extreme": {"grid": 32768, "vortices": 10},
        },
    ),
    Entry(
        "ivhl.intensity",
        "Real in, real out, complex between: fused whole, it never writes a complex number",
        {
            "small": {"grid": 512, "sources": 10},
            "medium": {"grid": 2048, "sources": 20},
            "large": {"grid": 8192, "sources": 50},
            "extreme": {"grid": 32768, "sources": 100},
        },
    ),
    Entry(
        "ivhl.mera_layer",
        "Batched complex matrices times vectors: bound by reading the matrices once, which eager already does",
        {
            "small": {"sites": 32, "site_dim": 16, "coarse_dim": 32},
            "medium": {"sites": 64, "site_dim": 16, "coarse_dim": 32},
            "large": {"sites": 128, "site_dim": 16, "coarse_dim": 32},
            "extreme": {"sites": 256, "site_dim": 16, "coarse_dim": 32},
        },
    ),
    Entry(
        "ivhl.tensor_network",
        "A HaPPY network: tens to hundreds of small complex contractions in a row, for which launching is the cost",
        {
            "small": {"tiles": 32, "bond": 3},
            "medium": {"tiles": 64, "bond": 4},
            "large": {"tiles": 128, "bond": 6},
            "extreme": {"tiles": 256, "bond": 8},
        },
    ),
    Entry(
        "ivhl.gft_network",
        "Amplitudes of 4-simplices: four batched contractions, whose large intermediates decide",
        {
            "small": {"simplices": 32, "bond": 3},
            "medium": {"simplices": 64, "bond": 4},
            "large": {"simplices": 128, "bond": 6},
            "extreme": {"simplices": 256, "bond": 8},
        },
    ),
    Entry(
        "ivhl.entanglement_entropy",
        "Singular values: a library call that no compiler rewrites, with a short real chain after it",
        {
            "small": {"states": 32, "left": 16, "right": 16},
            "medium": {"states": 64, "left": 32, "right": 32},
            "large": {"states": 128, "left": 64, "right": 64},
            "extreme": {"states": 256, "left": 128, "right": 128},
        },
    ),
    Entry(
        "ivhl.condensate_potential",
        "A stencil of six shifted copies that fuse into one pass over a complex lattice",
        {
            "small": {"grid": 16},
            "medium": {"grid": 32},
            "large": {"grid": 64},
            "extreme": {"grid": 128},
        },
    ),
    Entry(
        "ivhl.gross_pitaevskii_step",
        "One time step: a stencil and complex arithmetic, twenty kernels that could be one",
        {
            "small": {"grid": 16},
            "medium": {"grid": 32},
            "large": {"grid": 64},
            "extreme": {"grid": 128},
        },
    ),
    Entry(
        "ivhl.gross_pitaevskii",
        "Time steps in a Python loop: unrolled it takes long to compile, captured whole it is one launch",
        {
            "small": {"grid": 16, "steps": 100},
            "medium": {"grid": 32, "steps": 100},
            "large": {"grid": 64, "steps": 100},
            "extreme": {"grid": 128, "steps": 1000},
        },
    ),
    Entry(
        "ivhl.gru_step",
        "A recurrent cell of two small matrix products and gates: launch overhead, and weights read at every step",
        {
            "small": {"batch": 32, "hidden": 128},
            "medium": {"batch": 128, "hidden": 256},
            "large": {"batch": 512, "hidden": 512},
            "extreme": {"batch": 1024, "hidden": 1024},
        },
        trains=True,
    ),
    Entry(
        "ivhl.pachner_moves",
        "Whole-number and boolean logic with strided halves: nothing to round, so any difference is a mistake",
        {
            "small": {"moves": 1000},
            "medium": {"moves": 10_000},
            "large": {"moves": 100_000},
            "extreme": {"moves": 1_000_000},
        },
    ),
)

FAMILY = Family("ivhl", "torchwise_models.zoo.ivhl", ENTRIES)
