"""Models that people serve, with random weights: torchwise bench benchmarks/served_targets.py:unet

`benchmarks/served_models.py` measures them together with four language models of the scheme `hf`. Sizes are the
published ones, and inputs those of one request. A name with the ending `_bf16` is the same model in bfloat16.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from torchwise.workload import Workload
from torchwise_models.libraries.build import Normal, Whole, build
from torchwise_models.libraries.options import Options

FEATURES, ROWS, TABLES = 13, 100_000, 26
IMAGE = (Normal((1, 3, 224, 224)),)


class FirstOutput(nn.Module):
    """Calls a model of Transformers with one tensor, and returns the first tensor of its answer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(values, return_dict=False)[0]
        return found


class SentenceEncoder(nn.Module):
    """BERT with a mean over tokens, of length 1: the embedding of a sentence (https://arxiv.org/abs/1908.10084)."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        states = self.encoder(input_ids=ids, attention_mask=mask, return_dict=False)[0]
        weights = mask[..., None].to(states.dtype)
        return nn.functional.normalize((states * weights).sum(1) / weights.sum(1).clamp(min=1), dim=-1)


class Tagger(nn.Module):
    """Two LSTM layers and a linear one: a label for each element of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(128, 256, num_layers=2, batch_first=True)
        self.head = nn.Linear(256, 32)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        labels: torch.Tensor = self.head(self.lstm(sequence)[0])
        return labels


class UNet(nn.Module):
    """Four resolutions with skips between its two halves (https://arxiv.org/abs/1505.04597), for one class."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256)) -> None:
        super().__init__()
        pairs = tuple(zip((3, *widths), widths, strict=False))
        self.down = nn.ModuleList(_two_convolutions(before, after) for before, after in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, stride=2) for narrow, wide in reversed(pairs[1:]))
        self.join = nn.ModuleList(_two_convolutions(2 * narrow, narrow) for narrow, _ in reversed(pairs[1:]))
        self.head = nn.Conv2d(widths[0], 1, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        skips: list[torch.Tensor] = []
        for level, convolutions in enumerate(self.down):
            image = convolutions(nn.functional.max_pool2d(image, 2) if level else image)
            skips.append(image)
        for up, join, skip in zip(self.up, self.join, reversed(skips[:-1]), strict=True):
            image = join(torch.cat([up(image), skip], dim=1))
        mask: torch.Tensor = self.head(image)
        return mask


class Recommender(nn.Module):
    """DLRM (https://arxiv.org/abs/1906.00091): products of pairs of embeddings, between two stacks of linear layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, width, mode="sum") for _ in range(TABLES))
        self.bottom = _linear_layers(FEATURES, 512, 256, width)
        self.top = _linear_layers(width + TABLES * (TABLES + 1) // 2, 512, 256, 1)
        self.register_buffer("pairs", torch.tril_indices(TABLES + 1, TABLES + 1, offset=-1), persistent=False)

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        dense = torch.relu(self.bottom(features))
        found = [table(ids[:, place]) for place, table in enumerate(self.tables)]
        vectors = torch.stack([dense, *found], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([dense, products], dim=1)))


def resnet50(dtype: torch.dtype, seed: int) -> Workload:
    """Build ResNet-50 for one image."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(num_labels=1000)
    return _build("resnet50", lambda: FirstOutput(ResNetForImageClassification(config)), IMAGE, dtype, seed)


def mobilenet_v2(dtype: torch.dtype, seed: int) -> Workload:
    """Build MobileNetV2 for one image."""
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(num_labels=1000)
    return _build("mobilenet_v2", lambda: FirstOutput(MobileNetV2ForImageClassification(config)), IMAGE, dtype, seed)


def vit_base(dtype: torch.dtype, seed: int) -> Workload:
    """Build ViT-B/16 for one image."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(num_labels=1000)
    return _build("vit_base", lambda: FirstOutput(ViTForImageClassification(config)), IMAGE, dtype, seed)


def sentence_encoder(dtype: torch.dtype, seed: int) -> Workload:
    """Build a sentence encoder of the size of MiniLM-L6 for one sentence of 64 tokens."""
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    inputs = (Whole((1, 64), config.vocab_size), Whole((1, 64), 2))
    return _build("sentence_encoder", lambda: SentenceEncoder(BertModel(config)), inputs, dtype, seed)


def lstm(dtype: torch.dtype, seed: int) -> Workload:
    """Build a small LSTM for four sequences of 64 elements."""
    return _build("lstm", Tagger, (Normal((4, 64, 128)),), dtype, seed)


def mlp(dtype: torch.dtype, seed: int) -> Workload:
    """Build four linear layers for 16 rows."""
    return _build("mlp", lambda: _linear_layers(1024, 2048, 2048, 2048, 1000), (Normal((16, 1024)),), dtype, seed)


def convnet(dtype: torch.dtype, seed: int) -> Workload:
    """Build five convolutions for one image."""
    return _build("convnet", _make_convnet, (Normal((1, 3, 160, 160)),), dtype, seed)


def unet(dtype: torch.dtype, seed: int) -> Workload:
    """Build a UNet for one image."""
    return _build("unet", UNet, (Normal((1, 3, 160, 160)),), dtype, seed)


def whisper_encoder(dtype: torch.dtype, seed: int) -> Workload:
    """Build the encoder of Whisper-tiny for 30 seconds of sound."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    inputs = (Normal((1, config.num_mel_bins, 3000)),)
    return _build("whisper_encoder", lambda: FirstOutput(WhisperEncoder(config)), inputs, dtype, seed)


def recommender(dtype: torch.dtype, seed: int) -> Workload:
    """Build a recommender for 256 candidates."""
    inputs = (Normal((256, FEATURES)), Whole((256, TABLES, 1), ROWS))
    return _build("recommender", Recommender, inputs, dtype, seed)


def feed_forward(dtype: torch.dtype, seed: int) -> Workload:
    """Build the feed-forward parts of four layers of Llama 7B, for 32 requests of 128 tokens: large products."""

    class Gated(nn.Module):
        def __init__(self, width: int = 4096, inner: int = 11_008) -> None:
            super().__init__()
            self.norm = nn.RMSNorm(width)
            self.gate, self.up = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            given = self.norm(x)
            added: torch.Tensor = self.down(nn.functional.silu(self.gate(given)) * self.up(given))
            return x + added

    inputs = (Normal((32, 128, 4096)),)
    return _build("feed_forward", lambda: nn.Sequential(*(Gated() for _ in range(4))), inputs, dtype, seed)


FACTORIES = (
    resnet50,
    mobilenet_v2,
    vit_base,
    sentence_encoder,
    lstm,
    mlp,
    convnet,
    unet,
    whisper_encoder,
    recommender,
    feed_forward,
)


def _in_bf16(factory: Callable[[torch.dtype, int], Workload]) -> Callable[[int], Workload]:
    def build_in_bf16(seed: int) -> Workload:
        return factory(torch.bfloat16, seed)

    return build_in_bf16


globals().update({f"{factory.__name__}_bf16": _in_bf16(factory) for factory in FACTORIES})


def _build(
    name: str, make: Callable[[], nn.Module], inputs: tuple[Normal | Whole, ...], dtype: torch.dtype, seed: int
) -> Workload:
    """Build a workload. `inputs` describe one request, and those that calibrate a batch-norm are several of it."""

    def describe(times: int) -> tuple[Normal | Whole, ...]:
        return tuple(replace(one, shape=(one.shape[0] * times, *one.shape[1:])) for one in inputs)

    options = Options(name, {"batch": 1}, frozenset(), None)
    return build(name, make, describe, options, device="cpu", dtype=dtype, seed=seed)


def _two_convolutions(before: int, after: int) -> nn.Sequential:
    one = (nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())
    return nn.Sequential(*one, nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def _linear_layers(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _make_convnet() -> nn.Module:
    layers: list[nn.Module] = []
    widths = (3, 32, 64, 128, 128, 256)
    for level, (before, after) in enumerate(itertools.pairwise(widths)):
        layers += [nn.Conv2d(before, after, 3, stride=1 + (level > 0), padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 100))
