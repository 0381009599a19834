"""Classify batches of images with a small ResNet of timm.

python examples/programs/timm_images.py [ROUNDS]
"""

from __future__ import annotations

import sys

import timm
import torch


def main(rounds: int = 10) -> None:
    """Classify one batch in each round."""
    torch.manual_seed(0)
    model = timm.create_model("resnet10t", pretrained=False, num_classes=10).eval()
    images = torch.randn(4, 3, 64, 64)
    with torch.inference_mode():
        for _ in range(rounds):
            classes = model(images).argmax(-1)
    print(*classes.tolist())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
