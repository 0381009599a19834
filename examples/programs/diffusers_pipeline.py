"""Generate images of two resolutions with a small Stable Diffusion.

python examples/programs/diffusers_pipeline.py [ROUNDS]
"""

from __future__ import annotations

import sys

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

PROMPT_LENGTH, WIDTH = 8, 32


def build() -> StableDiffusionPipeline:
    """Return a pipeline with random weights. Embeddings of the prompt take the place of a text encoder."""
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=WIDTH,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    )
    pipe = StableDiffusionPipeline(
        vae=vae.eval(),
        unet=unet.eval(),
        scheduler=DDIMScheduler(clip_sample=False, steps_offset=1),
        text_encoder=None,
        tokenizer=None,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def main(rounds: int = 3) -> None:
    """Generate one image of each resolution in each round."""
    pipe = build()
    prompt = torch.randn(1, PROMPT_LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
    for _ in range(rounds):
        images = [
            pipe(
                prompt_embeds=prompt,
                negative_prompt_embeds=torch.zeros_like(prompt),
                height=size,
                width=size,
                num_inference_steps=5,
                generator=torch.Generator().manual_seed(2),
                output_type="pt",
            ).images
            for size in (32, 48)
        ]
    for image in images:
        print(f"{tuple(image.shape)}, mean {image.mean():.4f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
