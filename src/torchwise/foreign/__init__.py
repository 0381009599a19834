"""Models of other libraries as targets, by name: built from their configurations, with random weights, offline.

`timm:resnet50`, `torchvision:resnet50`, `hf:gpt2@decode,length=128`, `diffusers:unet@batch=2,dtype=bfloat16`. Speed
depends on the shapes and not on what was learned, so nothing is downloaded, ever. One file per library holds what is
its own; `options` reads what stands after the `@`, `weights`, `inputs` and `work` make any of their models a workload.
"""

from torchwise.foreign.diffusion import load_diffusers
from torchwise.foreign.images import load_timm, load_torchvision
from torchwise.foreign.text import load_hf

__all__ = ["load_diffusers", "load_hf", "load_timm", "load_torchvision"]
