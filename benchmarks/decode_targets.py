"""One step of decoding by a Llama-like model of random weights, at batch 1: `torchwise tune
benchmarks/decode_targets.py:billion`.

It is plain PyTorch in bfloat16: rotary positions, queries that share keys, norms by the root of the mean square, gated
layers, and a table of tokens that is also the last layer. A step reads a cache of a fixed length up to its place, and
returns its own keys and values, which its caller writes there. So each timed step begins from one cache without putting
anything back, and modes that refuse inputs that are written to capture it as well.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from torchwise.plan.workload_spec import Roofline
from torchwise.workload import Example, Workload

THETA = 500_000.0
"""The base of the wavelengths of rotary positions."""


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a model, and of its cache.

    Attributes:
        shared: heads of keys and values.
        length: tokens that the cache holds.
        place: the step's own place in it: all before it is read.
    """

    width: int
    layers: int
    heads: int
    shared: int
    inner: int
    vocabulary: int
    length: int
    place: int

    @property
    def head(self) -> int:
        """Numbers of a head."""
        return self.width // self.heads

    @property
    def linear(self) -> int:
        """Weights of all linear layers, that of the last one included."""
        attention = 2 * self.width * self.width + 2 * self.width * self.shared * self.head
        return self.layers * (attention + 3 * self.width * self.inner) + self.vocabulary * self.width

    @property
    def others(self) -> int:
        """Further weights that a step reads: those of norms, and the token's row."""
        return (2 * self.layers + 2) * self.width

    def count_weight_bytes(self, bits: int = 16) -> float:
        """Return the bytes of weights that a step reads, where those of linear layers have so many bits."""
        return self.linear * bits / 8 + self.others * 2.0

    @property
    def cache_bytes(self) -> int:
        """Bytes of the keys and values that a step reads."""
        return 2 * 2 * self.layers * self.shared * self.head * self.place


SIZES = {
    "tiny": Size(64, 2, 4, 2, 128, 256, 32, 15),
    "small": Size(512, 4, 8, 2, 2048, 8192, 256, 255),
    "billion": Size(2048, 16, 32, 8, 8192, 128_256, 512, 511),
}
"""`billion` has the 1.24 billion weights of Llama 3.2 1B (https://huggingface.co/meta-llama/Llama-3.2-1B)."""


@dataclass(frozen=True, slots=True)
class Step:
    """All that the layers of a step share.

    Attributes:
        cosines: of the place, (1, head), and so are `sines`.
        seen: whether a place of the cache is before the step's, (length,).
    """

    cosines: torch.Tensor
    sines: torch.Tensor
    seen: torch.Tensor


def turn(x: torch.Tensor, step: Step) -> torch.Tensor:
    """Return heads (heads, 1, head) turned by the step's place."""
    first, second = x.chunk(2, -1)
    return x * step.cosines + torch.cat([-second, first], -1) * step.sines


class Attention(nn.Module):
    """Queries of several heads that share keys and values, over a cache and the token's own."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size, inner = size, size.shared * size.head
        self.query, self.output = (nn.Linear(size.width, size.width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(size.width, inner, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor, cache: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Map a token (1, 1, width) to itself after attention, and to its keys and values (2, shared, 1, head).

        The cache is (2, shared, length, head).
        """
        size = self.size
        query = turn(self.query(x).view(size.heads, 1, size.head), step)
        query = query.view(size.shared, -1, size.head) / math.sqrt(size.head)  # those that share keys, side by side
        key = turn(self.key(x).view(size.shared, 1, size.head), step)
        value = self.value(x).view(size.shared, 1, size.head)
        keys, values = cache.unbind(0)
        before = (query @ keys.mT).masked_fill(~step.seen, float("-inf"))
        weights = torch.cat([before, query @ key.mT], -1).softmax(-1)
        mixed = weights[..., :-1] @ values + weights[..., -1:] * value
        return self.output(mixed.reshape(1, 1, size.width)), torch.stack([key, value])


class Layer(nn.Module):
    """Attention and gated layers, each after a norm and beside a residual."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.first, self.second = (nn.RMSNorm(size.width, eps=1e-5) for _ in range(2))
        self.attention = Attention(size)
        self.gate, self.up = (nn.Linear(size.width, size.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(size.inner, size.width, bias=False)

    def forward(self, x: torch.Tensor, cache: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the token after the layer, and its keys and values."""
        mixed, own = self.attention(self.first(x), cache, step)
        x = x + mixed
        y = self.second(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), own


class Llama(nn.Module):
    """A token, its place and a cache to the logits of the next token, and the token's keys and values."""

    cosines: torch.Tensor
    sines: torch.Tensor
    places: torch.Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=1e-5)
        self.last = nn.Linear(size.width, size.vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.last.weight = self.tokens.weight
        waves = THETA ** (-torch.arange(0, size.head, 2, dtype=torch.float32) / size.head)
        angles = (torch.arange(size.length, dtype=torch.float32)[:, None] * waves).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())
        self.register_buffer("places", torch.arange(size.length))

    def forward(
        self, token: torch.Tensor, place: torch.Tensor, cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Map a token (1, 1) and its place (1,), both int64, to logits (1, 1, vocabulary), and to keys and values.

        The cache is (layers, 2, shared, length, head). The token's keys and values are (layers, 2, shared, 1, head).
        """
        x, own = self.tokens(token), []
        step = Step(self.cosines[place], self.sines[place], self.places < place)
        for layer, part in zip(self.layers, cache.unbind(0), strict=True):
            x, added = layer(x, part, step)
            own.append(added)
        return self.last(self.norm(x)), torch.stack(own)


def build(size: Size, name: str, device: str = "cuda", seed: int = 0) -> Workload:
    """Return one step on a device, on which the weights are drawn: a CPU takes most of a minute for a billion."""
    with torch.device(device):
        model = Llama(size).to(torch.bfloat16).eval()

    def draw(seed: int) -> tuple[Example, ...]:
        generator = torch.Generator().manual_seed(seed + 1)
        token = torch.randint(size.vocabulary, (1, 1), generator=generator)
        cache = torch.randn(size.layers, 2, size.shared, size.length, size.head, generator=generator)
        inputs = (token, torch.tensor([size.place]), cache.to(torch.bfloat16))
        return (Example(tuple(one.to(device) for one in inputs)),)

    least = Roofline(2.0 * size.linear, size.count_weight_bytes() + size.cache_bytes)
    return Workload(model, draw(seed), name=f"decode {name}", roofline=least, reseed=draw)


for _name, _size in SIZES.items():
    globals()[_name] = functools.partial(build, _size, _name)
