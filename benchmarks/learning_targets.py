"""Small nets of the usual kinds, from which the order of trials is learned: see `benchmarks/learn_gains.py`.

None of them is measured by another benchmark, so that those tell whether the learned order helps models not seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from torchwise.workload import Workload


class Residual(nn.Module):
    """A block of a residual net, with grouped convolutions if asked for. NCHW images, float32."""

    def __init__(self, channels: int, groups: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=groups, bias=False),
            nn.BatchNorm2d(channels),
            nn.SiLU(),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Return an image of the same shape."""
        return functional.relu(image + self.body(image))


class Attention(nn.Module):
    """A pre-norm transformer layer of heads of 64. Tokens are [batch, length, width], float32."""

    def __init__(self, width: int, causal: bool = False) -> None:
        super().__init__()
        self.width, self.causal = width, causal
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return tokens of the same shape."""
        split = self.qkv(self.first(tokens)).unflatten(-1, (3, -1, 64)).permute(2, 0, 3, 1, 4)
        q, k, v = split.unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        tokens = tokens + self.out(mixed.transpose(1, 2).flatten(2))
        wide: torch.Tensor = self.down(functional.gelu(self.up(self.second(tokens))))
        return tokens + wide


class Recurrent(nn.Module):
    """A recurrent net with a head. Sequences are [batch, length, inputs], float32."""

    def __init__(self, net: nn.RNNBase, outputs: int) -> None:
        super().__init__()
        self.net, self.head = net, nn.Linear(net.hidden_size, outputs)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """Return [batch, outputs] by the last step."""
        last: torch.Tensor = self.head(self.net(sequence)[0][:, -1])
        return last


class Tables(nn.Module):
    """Embeddings of several columns beside numbers, and a tower on both."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(1000, width) for _ in range(columns)])
        self.tower = _stack_linear(columns * width + 8, 256, 64, 1)

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return [batch, 1] from [batch, 8] float32 and [batch, columns] int64."""
        found = [table(column) for table, column in zip(self.tables, ids.unbind(1), strict=True)]
        scores: torch.Tensor = self.tower(torch.cat([numbers, *found], 1))
        return scores


def _stack_linear(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _stack_convolutions(*channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(channels):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 10))


def _images(side: int, batch: int = 1) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, side, side),)


def _tokens(length: int, width: int, batch: int = 1) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, length, width),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "strided": (lambda: _stack_convolutions(3, 24, 48, 96, 192), lambda: _images(96)),
    "strided_batch": (lambda: _stack_convolutions(3, 16, 32, 64), lambda: _images(64, 16)),
    "residual": (
        lambda: nn.Sequential(nn.Conv2d(3, 64, 7, 4, 3), *(Residual(64) for _ in range(6))),
        lambda: _images(160),
    ),
    "depthwise": (
        lambda: nn.Sequential(nn.Conv2d(3, 96, 3, 4, 1), *(Residual(96, 96) for _ in range(10))),
        lambda: _images(192),
    ),
    "encoder": (lambda: nn.Sequential(*(Attention(384) for _ in range(4))), lambda: _tokens(96, 384)),
    "encoder_batch": (lambda: nn.Sequential(*(Attention(256) for _ in range(3))), lambda: _tokens(64, 256, 8)),
    "causal": (lambda: nn.Sequential(*(Attention(512, True) for _ in range(3))), lambda: _tokens(128, 512)),
    "tower": (lambda: _stack_linear(784, 1024, 512, 256, 10), lambda: (torch.randn(64, 784),)),
    "tower_one": (lambda: _stack_linear(64, 128, 128, 8), lambda: (torch.randn(1, 64),)),
    "gru": (lambda: Recurrent(nn.GRU(40, 128, batch_first=True), 12), lambda: _tokens(50, 40, 4)),
    "lstm_deep": (lambda: Recurrent(nn.LSTM(64, 192, 3, batch_first=True), 5), lambda: _tokens(24, 64, 2)),
    "tables": (lambda: Tables(12, 16), lambda: (torch.randn(128, 8), torch.randint(1000, (128, 12)))),
    "waves": (
        lambda: nn.Sequential(nn.Conv1d(1, 64, 9, 4), nn.GELU(), nn.Conv1d(64, 128, 9, 4), nn.GELU(), nn.Flatten()),
        lambda: (torch.randn(2, 1, 4000),),
    ),
}


HALVED = ("strided", "residual", "encoder", "tower")
"""Those that are built in bfloat16, too."""


def _make_factory(name: str, dtype: torch.dtype) -> Callable[[int], Workload]:
    def build(seed: int) -> Workload:
        """Return the net with weights and inputs of the seed."""
        make, draw = MODELS[name]
        torch.manual_seed(seed)
        model, inputs = make().eval().to(dtype), draw()
        return Workload.of((model, tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)))

    return build


globals().update({name: _make_factory(name, torch.float32) for name in MODELS})
globals().update({f"{name}_bf16": _make_factory(name, torch.bfloat16) for name in HALVED})
