"""Process groups."""

from __future__ import annotations

from torchwise._torch.private_name import PrivateName

SET_TIMEOUT = PrivateName("torch.distributed.distributed_c10d", "_set_pg_timeout")
"""Sets how long the ranks of a group wait for each other."""
