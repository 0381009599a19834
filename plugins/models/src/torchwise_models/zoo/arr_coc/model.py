"""Family `arr_coc`: the whole vision model, from an image and a query to features in relevant detail.

A vision transformer (https://arxiv.org/abs/2010.11929) without a class token encodes the patches. Three scorers, their
balance and the allocation of tokens then decide the detail of each patch.
"""

from __future__ import annotations

import functools

import torch
from torch import nn
from torch.nn import functional

from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request
from torchwise_models.zoo.arr_coc.detail import LEVELS, MEAN, allocate, blend, detail_flops
from torchwise_models.zoo.arr_coc.patches import CHANNELS, image_of_scene
from torchwise_models.zoo.arr_coc.scorers import Scorers, scorers_flops
from torchwise_models.zoo.arr_coc.tension import TensionBalance, tension_flops

EXPANSION = 4
"""Width of the hidden layer of a block's perceptron, in widths."""


class Attention(nn.Module):
    """Self-attention, softmax(Q Kᵀ / √(width / heads)) V per head (https://arxiv.org/abs/1706.03762), projected."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, patches, width) to the same shape."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        projected: torch.Tensor = self.projection(mixed.transpose(1, 2).flatten(2))
        return projected


class Block(nn.Module):
    """x ← x + Attention(LayerNorm(x)), then x ← x + W₂ GELU(W₁ LayerNorm(x)), without dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm = nn.LayerNorm(width)
        self.expand = nn.Linear(width, EXPANSION * width)
        self.contract = nn.Linear(EXPANSION * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, patches, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        grown: torch.Tensor = x + self.contract(functional.gelu(self.expand(self.norm(x))))
        return grown


class Encoder(nn.Module):
    """An image as features of its patches: a linear embedding, learned positions, blocks, and a LayerNorm."""

    def __init__(self, grid: int, patch: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Conv2d(CHANNELS, width, kernel_size=patch, stride=patch)
        self.positions = nn.Parameter(torch.empty(grid**2, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Map images (batch, 3, grid · patch, grid · patch) to features, (batch, grid², width)."""
        x = self.embedding(image).flatten(2).transpose(1, 2) + self.positions
        for block in self.blocks:
            x = block(x)
        encoded: torch.Tensor = self.norm(x)
        return encoded


class RelevanceModel(nn.Module):
    """Encoder, scorers, balance, allocation, and features in the detail that was allocated to them."""

    def __init__(self, grid: int, patch: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.grid = grid
        self.encoder = Encoder(grid, patch, width, heads, layers)
        self.scorers = Scorers(grid, width)
        self.tension = TensionBalance()

    def budgets(self, features: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Return tokens per patch, (batch, grid²), for features (batch, grid², width) and queries (batch, width)."""
        relevance = self.tension(self.scorers(features, query))
        return allocate(relevance, MEAN * self.grid**2)

    def forward(self, image: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
        """Map images (batch, 3, side, side) and queries (batch, width) to features, (batch, grid², width)."""
        features = self.encoder(image)
        return blend(features, self.budgets(features, query), self.grid)


def build_model(
    request: Request, *, batch: int, grid: int, patch: int, width: int, heads: int, layers: int
) -> Workload:
    """Build it for square images of `grid` · `patch` pixels a side. Nothing in it differs between train and eval."""
    model = request.draws().module(lambda: RelevanceModel(grid, patch, width, heads, layers)).eval()
    examples = functools.partial(_examples, request, batch, grid, patch, width)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    pixels = CHANNELS * (grid * patch) ** 2
    return Workload(
        model,
        examples(request.seed),
        name=request.name,
        roofline=Roofline(
            flops=_encoder_flops(batch, grid**2, patch, width, heads, layers) + _relevance_flops(batch, grid, width),
            # Weights, images and queries are read, features written. Between layers nothing is moved.
            bytes=float(request.dtype.itemsize * (parameters + batch * (pixels + width + grid**2 * width))),
        ),
        reseed=examples,
    )


def _encoder_flops(batch: int, patches: int, patch: int, width: int, heads: int, layers: int) -> float:
    """Count the encoder's FLOPs, per patch and with width w.

    Embedding 2 · 3 · patch² · w, its bias and position 2 w. Per block: products 2 · (3 + 1 + 4 + 4) w², biases 9 w, two
    norms 8 w each, GELU 5 · 4 w, two sums 2 w. Attention 4 w per patch looked at, and softmax 5 per head. In the end a
    norm, 8 w.
    """
    embedding = (2 * CHANNELS * patch**2 + 2) * width
    block = 24 * width * width + 47 * width + patches * (4 * width + 5 * heads)
    return float(batch * patches * (embedding + layers * block + 8 * width))


def _relevance_flops(batch: int, grid: int, width: int) -> float:
    """Count scorers, balance and allocation, and the operations of the blend.

    Per patch: its level and weight 5, shares of the levels 4 each. Per feature: two window means in two passes,
    2 · 2 + 1 and 2 · 4 + 1, and a product and a sum per level.
    """
    patches = grid**2
    blending = batch * patches * (5.0 + 4.0 * LEVELS + width * (14.0 + 2.0 * LEVELS))
    decision = scorers_flops(batch, grid, width) + tension_flops(batch, patches) + detail_flops(batch, patches)
    return decision + blending


def _examples(request: Request, batch: int, grid: int, patch: int, width: int, seed: int) -> tuple[Example, ...]:
    draws = request.draws(seed + 1)  # another stream than the weights
    return (Example((image_of_scene(draws, batch, grid, patch), draws.normal(batch, width))),)
