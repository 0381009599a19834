"""A Triton kernel in place of a model's norm, found, verified and timed as any other choice.

    TORCHWISE_PLUGINS=examples/own_kernel.py torchwise tune examples/own_kernel.py:make

The operator is registered with `torch.library`, so that compilers and CUDA graphs take it as it is. On a CPU, which
Triton is not for, plain PyTorch stands in for the kernel.
"""

import torch
from torch import nn

from torchwise.plan import register_kernel

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build of PyTorch comes without it
    triton = None


class RMSNorm(nn.Module):
    """Divides rows by their root mean square, and scales them. In eager it reads and writes each row several times."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width) + 0.5), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x / √(mean(x²) + ε) · weight, with the mean in float32 at least."""
        wide = x if x.dtype == torch.float64 else x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


if triton is not None:

    @triton.jit
    def _norm_row(x, weight, y, width, eps, BLOCK: tl.constexpr):  # noqa: N803
        row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
        inside = column < width
        values = tl.load(x + row * width + column, mask=inside, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(values * values, axis=0) / width + eps)
        weights = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + row * width + column, values * scale * weights, mask=inside)


@torch.library.custom_op("example::rms_norm", mutates_args=(), device_types="cuda")
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Run one program of the kernel for each row."""
    rows = x.contiguous()
    y, width = torch.empty_like(rows), rows.shape[-1]
    _norm_row[(rows.numel() // width,)](rows, weight, y, width, eps, BLOCK=triton.next_power_of_2(width))
    return y


@rms_norm.register_kernel("cpu")
def _(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return nn.functional.rms_norm(x, weight.shape, weight, eps)


@rms_norm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:  # noqa: ARG001
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def run_kernel(norm: RMSNorm, x: torch.Tensor) -> torch.Tensor:
    """Call the operator in place of `RMSNorm.forward`."""
    return rms_norm(x, norm.weight, norm.eps)


register_kernel("rms_norm_kernel", RMSNorm, run_kernel, devices=("cpu", "cuda"))


def make(device: str = "cpu") -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return the model and its inputs."""
    layers = [nn.Sequential(RMSNorm(512), nn.Linear(512, 512), nn.SiLU()) for _ in range(4)]
    return nn.Sequential(*layers).eval().to(device), (torch.randn(256, 512, device=device),)
