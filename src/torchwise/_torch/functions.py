"""PyTorch's functions in graphs: the modules that define them, and operators that write to their arguments."""

from __future__ import annotations

from typing import Any

from torchwise._torch.private_name import PrivateName

DEFINING_MODULES = ("torch._C._nn", "torch._C._fft", "torch._C._linalg", "torch._tensor")
"""Private modules that define functions with public names, as a function's `__module__` has them."""
OVERLOAD = PrivateName("torch._ops", "OpOverload")
OVERLOAD_PACKET = PrivateName("torch._ops", "OpOverloadPacket")


def is_operator_that_writes(target: Any) -> bool:
    """Whether a node's target is an operator of the dispatcher that may write to an argument."""
    if isinstance(target, OVERLOAD_PACKET.get()):
        return any(getattr(target, name)._schema.is_mutable for name in target.overloads())
    return isinstance(target, OVERLOAD.get()) and bool(target._schema.is_mutable)
