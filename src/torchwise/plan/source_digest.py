"""The file behind a function that is named by its place, and a digest of it, by which changed code is noticed."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path


def locate_source(place: str) -> str | None:
    """Return the file of `module:function` or `path/file.py:function`, without importing it, or None."""
    head = place.rpartition(":")[0]
    if head.endswith(".py"):
        return head
    try:
        spec = importlib.util.find_spec(head)
    except (ImportError, ValueError, AttributeError):  # loading it says why
        return None
    return spec.origin if spec else None


def digest_source(place: str) -> str:
    """Return 16 hex digits for the file of a function, or "" if there is none to read."""
    try:
        return digest_bytes(Path(locate_source(place) or "").read_bytes())
    except OSError:
        return ""


def digest_bytes(source: bytes) -> str:
    """Return 16 hex digits of SHA-256."""
    return hashlib.sha256(source).hexdigest()[:16]
