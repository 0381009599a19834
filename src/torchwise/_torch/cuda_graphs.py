"""CUDA graphs, and the allocator's memory pools that they record in."""

from __future__ import annotations

from torchwise._torch.private_name import PrivateName

IS_CAPTURING = PrivateName("torch._C", "_cuda_isCurrentStreamCapturing")
RAW_STREAM = PrivateName("torch._C", "_cuda_getCurrentRawStream")
"""Returns the address of the current stream, 20 times quicker than `torch.cuda.current_stream`."""
CURRENT_DEVICE = PrivateName("torch._C", "_cuda_getDevice")
END_ALLOCATING = PrivateName("torch._C", "_cuda_endAllocateToPool")
RELEASE_POOL = PrivateName("torch._C", "_cuda_releasePool")
EMPTY_STRIDED = PrivateName("torch._C._dynamo.guards", "_empty_strided_cuda")
"""Allocates a tensor on the current device in a third of the time of `torch.empty_like`, as Inductor's code does."""
