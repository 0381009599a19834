"""Targets of benchmarks that are no size of the zoo: torchwise bench benchmarks/targets.py:field_million"""

from __future__ import annotations

import torch

from torchwise.workload import Example, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.ivhl import build_field_superposition


def resnet50() -> Workload:
    """Build the ResNet-50 of Transformers, which needs no torchvision, with random weights, for one image."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).eval()
    return Workload(model, (Example((torch.randn(1, 3, 224, 224),)),), name="resnet50")


def vit_base() -> Workload:
    """Build the ViT-B/16 of Transformers with random weights, for one image."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    model = ViTForImageClassification(ViTConfig(num_labels=1000)).eval()
    return Workload(model, (Example((torch.randn(1, 3, 224, 224),)),), name="vit_base")


def field_million() -> Workload:
    """Build the field of 100 sources at 1 048 576 points, float32: 1 GB of intermediate values in eager."""
    request = Request("ivhl.field_superposition@1048576x100", "cpu", torch.float32, 0)
    return build_field_superposition(request, grid=1_048_576, sources=100)


def potential() -> Workload:
    """Build the softened Coulomb potential of 50 charges at 8192 points, float32, with real numbers only."""

    def call(points: torch.Tensor, charges: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        distance = (points[:, None] - places).square().sum(dim=-1).add(0.01).sqrt()
        return (charges / distance).sum(dim=-1)

    torch.manual_seed(0)
    return Workload(call, (Example((torch.randn(8192, 3), torch.randn(50), torch.randn(50, 3))),), name="potential")
