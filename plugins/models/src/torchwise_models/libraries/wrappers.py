"""Models of other libraries, wrapped so that their arguments and results are plain tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Past = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Keys and values of each layer, both (batch, heads, length, head size)."""


class PlainOutputs(nn.Module):
    """Maps token ids to the output tensors of a `transformers` model, without their dictionary."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Map ids (batch, length), int64, to the one output tensor, or to all of them in the library's order."""
        found = tuple(value for value in self.model(input_ids=ids).values() if isinstance(value, torch.Tensor))
        return found[0] if len(found) == 1 else found


class Prefill(nn.Module):
    """Reads a text before the first token is generated, and returns logits and the past for decoding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, Past]:
        """Map ids (batch, length), int64, to logits (batch, length, vocabulary) and the past of `length`."""
        output = self.model(input_ids=ids, use_cache=True)
        return output.logits, _read_past(output.past_key_values)


class DecodingStep(nn.Module):
    """One step of generation: from the newest token and the past to the next token's logits.

    Nothing is written in place. The longer keys and values are new tensors, as in `DynamicCache`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: torch.Tensor, past: Past) -> tuple[torch.Tensor, Past]:
        """Map a token (batch, 1), int64, and a past of `length` to logits (batch, 1, vocabulary) and a longer past."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        cache = DynamicCache()
        for keys, values in past:
            layer = DynamicLayer()
            # Set directly: `update` would first concatenate each to an empty tensor, a copy that real steps do not
            # make.
            layer.keys, layer.values = keys, values
            layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
            cache.layers.append(layer)
        output = self.model(input_ids=token, past_key_values=cache, use_cache=True)
        return output.logits, _read_past(output.past_key_values)


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


def _read_past(cache: Any) -> Past:
    return tuple((layer.keys, layer.values) for layer in cache.layers)
