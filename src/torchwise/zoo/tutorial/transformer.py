"""The gains of a transformer: one block for inference, and six of them with a loss, for training.

Blocks are those of *Attention Is All You Need* (https://arxiv.org/abs/1706.03762). They are normalised before each part
as in https://arxiv.org/abs/2002.04745. They have GELU and no dropout, so that they are deterministic in training as
well. Attention sees all tokens in both directions, and no positions.
"""

from __future__ import annotations

import dataclasses
import functools

import torch
from torch import nn
from torch.nn import functional

from torchwise.errors import WorkloadError
from torchwise.workload import Example, Roofline, Workload
from torchwise.zoo.random_inputs import Request
from torchwise.zoo.tutorial.basics import make_workload, normal_examples

LAYERS = 6
FEATURES = 64
"""Numbers by which each token is given to the model that is trained."""
CLASSES = 10
WIDENING = 4
"""Hidden width of a block's two-layer part, over its own."""


class Attention(nn.Module):
    """softmax(Q Kᵀ / √(width / heads)) V for each head, where Q, K and V are linear in x, then a linear layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise WorkloadError(f"width is {width}, but must be a multiple of heads, which is {heads}")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        attended = functional.scaled_dot_product_attention(q, k, v)
        mixed: torch.Tensor = self.out(attended.transpose(1, 2).flatten(-2))
        return mixed


class TransformerBlock(nn.Module):
    """x ← x + Attention(LayerNorm(x)), then x + W₂ GELU(W₁ LayerNorm(x) + b₁) + b₂, hidden four times as wide."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.hidden_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, WIDENING * width)
        self.narrow = nn.Linear(WIDENING * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        y: torch.Tensor = x + self.narrow(functional.gelu(self.widen(self.hidden_norm(x))))
        return y


class SixLayerTransformer(nn.Module):
    """Six blocks between two linear layers, which classify every token. It returns the loss to train on."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Map (batch, length, 64) and int64 labels (batch, length) to the mean cross-entropy, a scalar, in nats."""
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        scores = self.classify(self.norm(x))
        return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def build_transformer_block(request: Request, *, batch: int, length: int, width: int, heads: int) -> Workload:
    """Build `TransformerBlock` on activations of shape (batch, length, width), of unit variance.

    Raises:
        WorkloadError: width is no multiple of heads.
    """
    model = request.draws().module(lambda: TransformerBlock(width, heads)).eval()
    examples = functools.partial(normal_examples, request, (batch, length, width))
    flops, weights = _block_work(batch * length, length, width, heads)
    return make_workload(request, model, examples, flops, values=weights + 2 * batch * length * width)


def build_six_layer_transformer(request: Request, *, batch: int, length: int, width: int, heads: int) -> Workload:
    """Build `SixLayerTransformer`, in training mode, on features (batch, length, 64) and as many random labels.

    The roofline is that of the forward pass alone. A backward pass does twice its products.

    Raises:
        WorkloadError: width is no multiple of heads.
    """
    model = request.draws().module(lambda: SixLayerTransformer(width, heads)).train()
    examples = functools.partial(_make_labelled_examples, request, (batch, length))
    tokens = batch * length
    flops, weights = (LAYERS * work for work in _block_work(tokens, length, width, heads))
    # Both ends: a product and a sum per weight and the bias; then the last norm 8, and the cross-entropy 4 per class.
    flops += tokens * ((2 * FEATURES + 1) * width + 8 * width + (2 * width + 1 + 4) * CLASSES)
    weights += (FEATURES + 1) * width + 2 * width + (width + 1) * CLASSES
    moved = request.dtype.itemsize * (weights + tokens * FEATURES + 1) + torch.int64.itemsize * tokens
    roofline = Roofline(flops=float(flops), bytes=float(moved))
    return Workload(model, examples(request.seed), name=request.name, roofline=roofline, reseed=examples)


def _block_work(tokens: int, length: int, width: int, heads: int) -> tuple[int, int]:
    """Return a block's FLOPs for all tokens, and its number of weights. Between its layers nothing must be moved."""
    matrices = (3 + 1 + 2 * WIDENING) * width * width
    biases = (3 + 1 + WIDENING + 1) * width
    # Per token: a product and a sum per weight, the biases; Q Kᵀ and the sum over V; softmax 5 per pair and head;
    # two norms of 8 and two sums per element, and GELU 5 per hidden value.
    attention = 4 * length * width + 5 * length * heads
    elementwise = (2 * 8 + 2 + 5 * WIDENING) * width
    return tokens * (2 * matrices + biases + attention + elementwise), matrices + biases + 4 * width


def _make_labelled_examples(request: Request, shape: tuple[int, int], seed: int) -> tuple[Example, ...]:
    ((x,),) = (example.args for example in normal_examples(request, (*shape, FEATURES), seed))
    # Drawn in float64 whatever the request: a narrow type would round some labels up, and out of their range.
    exact = dataclasses.replace(request, dtype=torch.float64)
    labels = exact.draws(seed + 2).uniform(*shape, high=CLASSES).long()
    return (Example((x, labels)),)
