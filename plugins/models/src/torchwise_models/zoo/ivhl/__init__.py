"""Family `ivhl`: fields, tensor networks and condensates. One file per kind of physics."""

from torchwise_models.zoo.ivhl.condensate import (
    build_condensate_potential,
    build_gross_pitaevskii,
    build_gross_pitaevskii_step,
    condensate_potential,
    gross_pitaevskii,
    gross_pitaevskii_step,
    laplacian,
)
from torchwise_models.zoo.ivhl.entropy import build_entanglement_entropy, entanglement_entropy
from torchwise_models.zoo.ivhl.field import (
    build_field_superposition,
    build_intensity,
    build_vortex_field,
    compute_intensity,
    field_superposition,
    intensity,
    vortex_field,
)
from torchwise_models.zoo.ivhl.holography import (
    build_gft_network,
    build_tensor_network,
    gft_legs,
    happy_legs,
    happy_tiling,
)
from torchwise_models.zoo.ivhl.mera import build_mera_layer, mera_layer
from torchwise_models.zoo.ivhl.network import TensorNetwork, contract, flops_of, greedy_path, network_of, steps_of
from torchwise_models.zoo.ivhl.pachner import build_pachner_moves, pachner_moves
from torchwise_models.zoo.ivhl.trajectories import TrajectoryStep, build_gru_step

__all__ = [
    "TensorNetwork",
    "TrajectoryStep",
    "build_condensate_potential",
    "build_entanglement_entropy",
    "build_field_superposition",
    "build_gft_network",
    "build_gross_pitaevskii",
    "build_gross_pitaevskii_step",
    "build_gru_step",
    "build_intensity",
    "build_mera_layer",
    "build_pachner_moves",
    "build_tensor_network",
    "build_vortex_field",
    "compute_intensity",
    "condensate_potential",
    "contract",
    "entanglement_entropy",
    "field_superposition",
    "flops_of",
    "gft_legs",
    "greedy_path",
    "gross_pitaevskii",
    "gross_pitaevskii_step",
    "happy_legs",
    "happy_tiling",
    "intensity",
    "laplacian",
    "mera_layer",
    "network_of",
    "pachner_moves",
    "steps_of",
    "vortex_field",
]
