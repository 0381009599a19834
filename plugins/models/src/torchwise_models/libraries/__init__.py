"""Build models of other libraries as targets by name, from configurations with random weights, offline.

`timm:resnet50`, `torchvision:resnet50`, `hf:gpt2@decode,length=128`, `diffusers:unet@batch=2,dtype=bfloat16`. Speed
depends on shapes and not on trained weights, so nothing is ever downloaded. There is one file per library. `options`
reads the text after the `@`. `wrappers`, `weights` and `build` turn any of their models into a workload.
"""

from torchwise_models.libraries.diffusion import load_diffusers
from torchwise_models.libraries.images import load_timm, load_torchvision
from torchwise_models.libraries.text import load_hf

__all__ = ["load_diffusers", "load_hf", "load_timm", "load_torchvision"]
