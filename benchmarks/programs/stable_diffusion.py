"""Draw images with a Stable Diffusion of random weights.

python benchmarks/programs/stable_diffusion.py --device cuda --widths 320 640 1280 1280 --blocks 2 --side 512

--compile MODE puts torch.compile in by hand, around the U-Net. --save FILE keeps the image, and the seconds of each
round.
"""

from __future__ import annotations

import argparse
import time

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel


def parse_options() -> argparse.Namespace:
    """Return the sizes. Those by default are tiny."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32], help="channels of each resolution")
    parser.add_argument("--blocks", type=int, default=1, help="blocks of each resolution")
    parser.add_argument("--prompt", type=int, default=8, help="tokens of the prompt")
    parser.add_argument("--prompt-width", type=int, default=32)
    parser.add_argument("--side", type=int, default=32, help="pixels of a side of the image")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", metavar="MODE", help="a mode of torch.compile")
    parser.add_argument("--save", metavar="FILE")
    return parser.parse_args()


def build(options: argparse.Namespace) -> StableDiffusionPipeline:
    """Return a pipeline. Embeddings of the prompt take the place of a text encoder."""
    torch.manual_seed(0)
    groups = min(32, options.widths[0] // 2)
    inner = len(options.widths) - 1
    with torch.device(options.device):  # a CPU takes long to draw so many numbers
        unet = UNet2DConditionModel(
            sample_size=options.side // 8,
            block_out_channels=tuple(options.widths),
            layers_per_block=options.blocks,
            down_block_types=(*["CrossAttnDownBlock2D"] * inner, "DownBlock2D"),
            up_block_types=("UpBlock2D", *["CrossAttnUpBlock2D"] * inner),
            cross_attention_dim=options.prompt_width,
            attention_head_dim=8,
            norm_num_groups=groups,
        )
        vae = AutoencoderKL(
            block_out_channels=(16, 32, 32, 32),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
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
    return pipe.to(options.device, getattr(torch, options.dtype))


def main() -> None:
    """Draw an image in each round, and print what the last one is like."""
    options = parse_options()
    pipe = build(options)
    if options.compile:
        pipe.unet = torch.compile(pipe.unet, mode=options.compile)
    size = (1, options.prompt, options.prompt_width)
    prompt = torch.randn(size, generator=torch.Generator().manual_seed(1)).to(pipe.unet.device, pipe.unet.dtype)
    rounds = []
    for _ in range(options.rounds):
        began = time.perf_counter()
        image = pipe(
            prompt_embeds=prompt,
            negative_prompt_embeds=torch.zeros_like(prompt),
            height=options.side,
            width=options.side,
            num_inference_steps=options.steps,
            generator=torch.Generator().manual_seed(2),
            output_type="pt",
        ).images.cpu()
        rounds.append(time.perf_counter() - began)
    print(f"{tuple(image.shape)}, mean {image.float().mean():.2f}")
    if options.save:
        torch.save({"answer": image, "rounds_s": rounds}, options.save)


if __name__ == "__main__":
    main()
