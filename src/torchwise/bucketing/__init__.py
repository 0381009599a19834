"""Run inputs of many sizes by padding them to a few sizes, if verified, without compiling during a request."""

from typing import Any

from torchwise.bucketing.auto import fit
from torchwise.bucketing.bucketed import bucketed
from torchwise.bucketing.buckets import buckets_for, padded_share
from torchwise.bucketing.choice import Choice, choose
from torchwise.bucketing.counts import Counts
from torchwise.bucketing.module import BucketedFunction, BucketedModule, apply_buckets, counts_of
from torchwise.bucketing.padding import Padding
from torchwise.bucketing.padding_check import VerifiedPadding, verify_padding
from torchwise.bucketing.warmup import WarmedBucket, warm_up
from torchwise.former_packages import warn_once

__all__ = [
    "BucketedFunction",
    "BucketedModule",
    "Choice",
    "Counts",
    "Padding",
    "VerifiedPadding",
    "WarmedBucket",
    "apply_buckets",
    "bucketed",
    "buckets_for",
    "choose",
    "counts_of",
    "fit",
    "padded_share",
    "verify_padding",
    "warm_up",
]


def __getattr__(name: str) -> Any:
    if name not in _FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_once(f"{__name__}.{name}", f"{__name__}.{_FORMER[name]}")
    return globals()[_FORMER[name]]


_FORMER = {"Proof": "VerifiedPadding", "Warmed": "WarmedBucket", "prove": "verify_padding"}
