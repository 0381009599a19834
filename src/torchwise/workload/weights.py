"""The values of a model's weights, as a digest.

Most plans hold for any weights, and no identity covers these. An error that a user allows was measured on some weights,
and says nothing of others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.workload.identity import describe_state

UNREADABLE = "unreadable"
"""The digest of weights whose bytes cannot be read, which equals that of no others."""


def digest_if_judged(call: Callable[..., Any], spec: WorkloadSpec) -> str:
    """Return the digest of a model's weights if a request judges changes, whose size depends on them, or ""."""
    is_judged = spec.permits_change and spec.mode == "inference"  # training changes weights in any case
    return digest_weights(call) if is_judged else ""


def digest_weights(call: Callable[..., Any]) -> str:
    """Return 16 hex digits for the values of parameters and of buffers that a checkpoint has.

    Other buffers hold state, such as the keys and values of earlier calls.
    """
    digest = hashlib.sha256()
    try:
        for name, tensor in _list_weights(call):
            digest.update(f"{name} {describe_state(tensor)}".encode())
            digest.update(_read_bytes(tensor))
    except Exception:  # a tensor may be of any class, whose own code runs here
        return UNREADABLE
    return digest.hexdigest()[:16]


def _list_weights(call: Callable[..., Any]) -> Iterator[tuple[str, torch.Tensor]]:
    if not isinstance(call, torch.nn.Module):
        return
    yield from call.named_parameters()
    for name, part in call.named_modules():
        state = getattr(part, "_non_persistent_buffers_set", ())  # TorchScript has none
        own = part.named_buffers(name, recurse=False)
        yield from (one for one in own if one[0].rpartition(".")[2] not in state)


def _read_bytes(tensor: torch.Tensor) -> Any:
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    flat = dense.resolve_conj().resolve_neg().contiguous().flatten()
    return flat.view(torch.uint8).cpu().numpy() if flat.numel() else b""
