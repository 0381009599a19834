"""Scheme `diffusers`: networks of image generators, from configuration classes and published sizes.

`unet` and `vae` are from Stable Diffusion 1.5 (https://arxiv.org/abs/2112.10752). `unet` is one denoising step on
latents of 64×64. `vae` is the decoder from latents to images of 512×512. `dit` is DiT-XL/2 at 256×256
(https://arxiv.org/abs/2212.09748).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchwise.errors import TargetError
from torchwise_models.libraries.build import Normal, Whole, build
from torchwise_models.libraries.options import Options, import_library, parse, suggest_names
from torchwise_models.libraries.wrappers import FirstOutput, LatentDecoder

if TYPE_CHECKING:
    import torch
    from torch import nn

    from torchwise.workload import Workload

LATENTS = 4
"""Channels of a latent image."""
TEXT_WIDTH = 768
"""Width of the hidden states of CLIP ViT-L/14, the text encoder of Stable Diffusion 1.5."""
STEPS = 1000
"""Steps of the diffusion process. Time steps are drawn from 0 to 999."""
CLASSES = 1000
HEAD_SIZE = 72
"""Size of DiT's heads. Its width is a multiple of this."""
GROUPS = 32
"""Groups of each GroupNorm. Widths are multiples of this."""


@dataclass(frozen=True, slots=True)
class Network:
    """One network.

    Attributes:
        make: function from the library and the options to the model.
        inputs: function from the options and a batch size to the model's inputs.
        numbers: its numeric options, with the published model's values.
        multiples: the required factors of `width` and `side`.
        flags: the options without a value.
    """

    make: Callable[[Any, Options], nn.Module]
    inputs: Callable[[Options, int], tuple[Any, ...]]
    numbers: Mapping[str, int | None]
    multiples: Mapping[str, int]
    flags: tuple[str, ...] = ("channels_last", "train")


def load_diffusers(name: str, *, device: str = "cpu", dtype: torch.dtype | None = None, seed: int = 0) -> Workload:
    """Build `name`, which is `unet`, `vae` or `dit`, with or without `@OPTIONS`.

    In these shapes, `side` is the height and width of the latent image. `unet` maps latents (batch, 4, side, side),
    time steps (batch,) and text (batch, length, 768) to noise of the latents' shape. `vae` maps latents to images
    (batch, 3, 8 side, 8 side). `dit` maps latents, time steps and class labels (batch,) to noise and its variance
    (batch, 8, side, side).

    Args:
        name: such as "unet@batch=2,dtype=bfloat16,channels_last". `layers` and `width` (of the first stage, in `unet`
            and `vae`) change the model itself.
        device: device of weights and inputs, which are drawn on the CPU.
        dtype: dtype if the options name none, by default float32.
        seed: seed of weights and inputs.

    Raises:
        TargetError: there is no such model or option, a size does not fit the model, or the library is missing.
    """
    model, _, text = name.partition("@")
    if model not in NETWORKS:
        raise TargetError(f"diffusers has no model {model!r}{suggest_names(model, NETWORKS)}")
    network = NETWORKS[model]
    options = parse(f"diffusers:{model}", text, numbers=network.numbers, flags=network.flags)
    for option, unit in network.multiples.items():
        if options.number(option) % unit:
            raise TargetError(f"{option} is {options.number(option)}, but must be a multiple of {unit}")
    return build(
        f"diffusers:{name}",
        functools.partial(network.make, import_library("diffusers", options.target), options),
        functools.partial(network.inputs, options),
        options,
        device=device,
        dtype=dtype,
        seed=seed,
    )


def _stages(options: Options) -> tuple[int, ...]:
    """Return the channels of the four stages, from full to one-eighth resolution."""
    return tuple(options.number("width") * factor for factor in (1, 2, 4, 4))


def _unet(diffusers: Any, options: Options) -> nn.Module:
    return FirstOutput(
        diffusers.UNet2DConditionModel(
            sample_size=options.number("side"),
            block_out_channels=_stages(options),
            layers_per_block=options.number("layers"),
            cross_attention_dim=TEXT_WIDTH,
        )
    )


def _vae(diffusers: Any, options: Options) -> nn.Module:
    return LatentDecoder(
        diffusers.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=_stages(options),
            layers_per_block=options.number("layers"),
            norm_num_groups=GROUPS,
        )
    )


def _dit(diffusers: Any, options: Options) -> nn.Module:
    return FirstOutput(
        diffusers.DiTTransformer2DModel(
            num_attention_heads=options.number("width") // HEAD_SIZE,
            attention_head_dim=HEAD_SIZE,
            out_channels=2 * LATENTS,
            num_layers=options.number("layers"),
            sample_size=options.number("side"),
        )
    )


def _latents(options: Options, batch: int) -> Normal:
    return Normal((batch, LATENTS, options.number("side"), options.number("side")))


def _unet_inputs(options: Options, batch: int) -> tuple[Any, ...]:
    text = Normal((batch, options.number("length"), TEXT_WIDTH))
    return (_latents(options, batch), Whole((batch,), STEPS), text)


def _vae_inputs(options: Options, batch: int) -> tuple[Any, ...]:
    return (_latents(options, batch),)


def _dit_inputs(options: Options, batch: int) -> tuple[Any, ...]:
    return (_latents(options, batch), Whole((batch,), STEPS), Whole((batch,), CLASSES))


NETWORKS: Mapping[str, Network] = {
    "unet": Network(
        _unet,
        _unet_inputs,
        {"batch": 1, "side": 64, "length": 77, "width": 320, "layers": 2},
        {"width": GROUPS, "side": 8},
    ),
    "vae": Network(
        _vae,
        _vae_inputs,
        {"batch": 1, "side": 64, "width": 128, "layers": 2},
        {"width": GROUPS},
    ),
    "dit": Network(
        _dit,
        _dit_inputs,
        {"batch": 1, "side": 32, "width": 16 * HEAD_SIZE, "layers": 28},
        {"width": HEAD_SIZE, "side": 2},
        flags=("train",),
    ),
}
