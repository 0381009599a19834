"""Language models whose arguments and results are plain tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

Past = tuple[tuple[torch.Tensor, torch.Tensor], ...]
"""Keys and values of each layer, both (batch, heads, length, head size)."""


class PlainOutputs(nn.Module):
    """Maps token ids to the tensors that a `transformers` model returns, without its dictionary around them."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Map ids (batch, length), int64, to the one tensor returned, or to all of them in the library's order."""
        found = tuple(value for value in self.model(input_ids=ids).values() if isinstance(value, torch.Tensor))
        return found[0] if len(found) == 1 else found


class Prefill(nn.Module):
    """Reads a text before the first token is generated: its logits, and the past that decoding starts from."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, Past]:
        """Map ids (batch, length), int64, to logits (batch, length, vocabulary) and the past of `length`."""
        output = self.model(input_ids=ids, use_cache=True)
        return output.logits, _past_of(output.past_key_values)


class DecodingStep(nn.Module):
    """One step of generation: from the newest token and what is kept of those before it, to the next one's logits.

    Nothing is written in place: the longer keys and values are new tensors, as `DynamicCache` makes them.
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
            # Put in place: `update` would join each to an empty tensor first, a copy that no real step makes.
            layer.keys, layer.values = keys, values
            layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
            cache.layers.append(layer)
        output = self.model(input_ids=token, past_key_values=cache, use_cache=True)
        return output.logits, _past_of(output.past_key_values)


def _past_of(cache: Any) -> Past:
    return tuple((layer.keys, layer.values) for layer in cache.layers)
