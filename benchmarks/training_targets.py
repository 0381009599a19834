"""Training steps of published models: torchwise bench benchmarks/training_targets.py:bert_base --mode training

They have random weights and data, and bfloat16 autocast. ResNet-50 trains with SGD and momentum on images in
channels_last, BERT-base with AdamW and clipping.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional

from torchwise.workload import Example, Workload, pytree
from torchwise.workload.train_step import TrainStep
from torchwise_models.libraries import load_hf, load_timm

CLASSES = 1000


def resnet50(device: str = "cpu", seed: int = 0) -> Workload:
    """Build ResNet-50 on 64 images of 224² pixels and random labels."""
    forward = load_timm("resnet50@batch=64,channels_last,train", device=device, seed=seed)
    model = module_of(forward)
    labels = torch.randint(0, CLASSES, (64,), generator=torch.Generator().manual_seed(seed)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    step = TrainStep(model, functional.cross_entropy, optimizer, autocast=torch.bfloat16)
    return steps(forward, step, labels)


def bert_base(device: str = "cpu", seed: int = 0) -> Workload:
    """Build BERT-base on 32 texts of 128 tokens. Its hidden states learn random ones."""
    forward = load_hf("bert-base-uncased@batch=32,length=128,train", device=device, seed=seed)
    model = module_of(forward)
    drawn = torch.randn(32, 128, 768, generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    step = TrainStep(model, distance, optimizer, autocast=torch.bfloat16, clip_norm=1.0)
    return steps(forward, step, drawn.to(device))


def distance(outputs: Any, target: torch.Tensor) -> torch.Tensor:
    """Return the mean squared distance of the hidden states, which come first, from the target."""
    return functional.mse_loss(pytree.tensors(outputs)[0].float(), target)


def module_of(workload: Workload) -> torch.nn.Module:
    assert workload.module is not None
    return workload.module


def steps(forward: Workload, step: TrainStep, target: torch.Tensor) -> Workload:
    def batches(found: tuple[Example, ...]) -> tuple[Example, ...]:
        return tuple(replace(example, args=(example.args, target)) for example in found)

    reseed = forward.reseed
    return Workload(
        step,
        batches(forward.examples),
        name=forward.name,
        reseed=(lambda seed: batches(reseed(seed))) if reseed else None,
    )
