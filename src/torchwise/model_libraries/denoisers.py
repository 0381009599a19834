"""Networks of `diffusers` whose arguments and results are plain tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class FirstOutput(nn.Module):
    """Calls a `diffusers` model with the same arguments and returns its one tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        """Call the model and return the only item of its result."""
        found: torch.Tensor = self.model(*args, return_dict=False)[0]
        return found


class LatentDecoder(nn.Module):
    """The decoding half of an autoencoder, a 1×1 convolution of the latents and then the decoder."""

    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.convolution = autoencoder.post_quant_conv
        self.decoder = autoencoder.decoder

    def forward(self, latents: torch.Tensor) -> torch.Tensor:
        """Map latents (batch, 4, side, side) to images (batch, 3, 8 side, 8 side)."""
        images: torch.Tensor = self.decoder(self.convolution(latents))
        return images
