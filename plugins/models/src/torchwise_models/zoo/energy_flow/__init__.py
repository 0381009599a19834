"""Family `energy_flow`: particles of energy carried by a recurrent net. One file per part of the system.

Flows move, redistribute their energy, die and divide. The number of live ones changes at every step, which is the
point. `processor` has a form that follows that number with its shapes, and one that masks a static number of slots.
"""

from torchwise_models.zoo.energy_flow.carrier import EnergyCarrier, build_carrier
from torchwise_models.zoo.energy_flow.mapper import EmbeddingMapper, build_embedding_mapper
from torchwise_models.zoo.energy_flow.neuron import SimpleNeuron, build_neuron
from torchwise_models.zoo.energy_flow.processor import (
    DynamicProcessor,
    PaddedProcessor,
    build_padded_processor,
    build_processor,
)
from torchwise_models.zoo.energy_flow.rollout import Rollout, build_dynamic_rollout, build_rollout
from torchwise_models.zoo.energy_flow.step import FusedStep, build_fused_step
from torchwise_models.zoo.energy_flow.storage import (
    FlowState,
    FlowStorage,
    build_storage,
    build_storage_in_place,
    fetch_and_update,
    update_in_place,
)

__all__ = [
    "DynamicProcessor",
    "EmbeddingMapper",
    "EnergyCarrier",
    "FlowState",
    "FlowStorage",
    "FusedStep",
    "PaddedProcessor",
    "Rollout",
    "SimpleNeuron",
    "build_carrier",
    "build_dynamic_rollout",
    "build_embedding_mapper",
    "build_fused_step",
    "build_neuron",
    "build_padded_processor",
    "build_processor",
    "build_rollout",
    "build_storage",
    "build_storage_in_place",
    "fetch_and_update",
    "update_in_place",
]
