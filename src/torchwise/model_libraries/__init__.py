"""Build models of other libraries as targets by name, from configurations with random weights, offline.

`timm:resnet50`, `torchvision:resnet50`, `hf:gpt2@decode,length=128`, `diffusers:unet@batch=2,dtype=bfloat16`. Speed
depends on shapes and not on trained weights, so nothing is ever downloaded. There is one file per library. `options`
reads the text after the `@`. `weights`, `inputs` and `work` turn any of their models into a workload.
"""

from torchwise.model_libraries.diffusion import load_diffusers
from torchwise.model_libraries.images import load_timm, load_torchvision
from torchwise.model_libraries.text import load_hf

__all__ = ["load_diffusers", "load_hf", "load_timm", "load_torchvision"]
