"""Compiled code shared between machines through Redis: Inductor's own remote cache, set up so that it cannot block.

By itself PyTorch connects without a time limit. So a server that accepts and never answers stops the first compilation
for good. For each of its caches, PyTorch also tries a server that is down once more. Here one connection serves all of
them, with a limit, and the first failure ends its use in this process.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Any

from torchwise._torch import aot_autograd, inductor
from torchwise.errors import InputError, UnsupportedError
from torchwise.installation import suggest_extra
from torchwise.keywords import checked_keywords

logger = logging.getLogger("torchwise")
FEATURE = "the Redis cache"
SETTINGS = {
    "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE": (inductor.SETTINGS, "fx_graph_remote_cache"),
    "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE": (aot_autograd.SETTINGS, "enable_remote_autograd_cache"),
    "TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE": (inductor.SETTINGS, "autotune_remote_cache"),
}
"""Variables that turn the caches on, with the setting that each becomes when PyTorch reads it, once."""
URL = "TORCHINDUCTOR_REDIS_URL"
SCHEMES = ("redis://", "rediss://", "unix://")


@checked_keywords()
def use_redis(url: str, *, timeout_s: float = 2.0) -> bool:
    """Share PyTorch's compiled code with other machines through a Redis server, in this process and its children.

    Call it before the first compilation. Anybody who may write to the server may run code here, since PyTorch reads its
    contents with pickle. Use a server that only your own services reach, over TLS and with a password.

    Args:
        url: redis://, rediss:// or unix://, as the redis package reads it.
        timeout_s: maximum seconds for a connection or an answer. After that the server is not asked again.

    Returns:
        Whether the server answered. If not, a warning says why, and everything is compiled here as without it.

    Raises:
        InputError: the URL or the limit cannot be used.
        UnsupportedError: the redis package is missing, or this torch has no such cache.
    """
    if not url.startswith(SCHEMES):  # it may hold a password, and is not repeated
        raise InputError(f"url has the scheme {url.partition(':')[0]!r}, but must begin with {' or '.join(SCHEMES)}")
    if not timeout_s > 0:
        raise InputError(f"timeout_s is {timeout_s}, but must be above 0")
    server = _Server(url, timeout_s)
    if not server.answers():
        return False
    inductor.REMOTE_CACHE.get(FEATURE).backend_override_cls = lambda: _backend(server)
    # Children without `use_redis` have PyTorch's own connection, which takes its limits from the URL.
    limits = f"socket_connect_timeout={timeout_s}&socket_timeout={timeout_s}"
    os.environ[URL] = f"{url}{'&' if '?' in url else '?'}{limits}"
    for variable, (settings, setting) in SETTINGS.items():
        os.environ[variable] = "1"
        # Since torch 2.13, an assignment holds for this thread alone. So the default must change.
        settings.get(FEATURE)[setting].default = True
    return True


class _Server:
    """One connection for all caches, disabled at its first failure."""

    def __init__(self, url: str, timeout_s: float) -> None:
        try:
            redis = importlib.import_module("redis")
            retry, backoff = importlib.import_module("redis.retry"), importlib.import_module("redis.backoff")
        except ImportError:
            raise UnsupportedError(f"the redis package is missing: {suggest_extra('redis')}") from None
        self._failures = (redis.exceptions.RedisError, OSError)
        once = retry.Retry(backoff.NoBackoff(), 0)
        try:
            self._client: Any = redis.Redis.from_url(
                url, socket_connect_timeout=timeout_s, socket_timeout=timeout_s, retry=once
            )
        except ValueError as error:
            raise InputError(f"url cannot be used: {error}") from None
        self._lock = threading.Lock()
        self._is_disabled = False

    def answers(self) -> bool:
        """Ask the server whether it is there."""
        return self.ask("ping") is not None

    def ask(self, command: str, *arguments: Any) -> Any:
        """Return the server's answer, or None if it has none, or was disabled."""
        if self._is_disabled:
            return None
        try:
            return getattr(self._client, command)(*arguments)
        except self._failures as error:
            with self._lock:
                first, self._is_disabled = not self._is_disabled, True
            if first:
                logger.warning(
                    "torchwise: the Redis server is no longer asked, and all is compiled here, because of %s: %s",
                    type(error).__name__,
                    error,
                )
            return None


def _backend(server: _Server) -> Any:
    """Return the object that Inductor reads from and writes to. Its base class is PyTorch's, so it is defined here."""

    class Backend(inductor.REMOTE_CACHE_BACKEND.get(FEATURE)):  # type: ignore[misc]
        def _get(self, key: str) -> Any:
            return server.ask("get", key)

        def _put(self, key: str, data: bytes) -> None:
            server.ask("set", key, data)

    return Backend()
