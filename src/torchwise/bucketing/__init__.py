"""Run inputs of many sizes by padding them to a few sizes, if verified, without compiling during a request."""

from torchwise.bucketing.auto import fit
from torchwise.bucketing.bucketed import bucketed
from torchwise.bucketing.buckets import buckets_for, padded_share
from torchwise.bucketing.choice import Choice, choose
from torchwise.bucketing.counts import Counts
from torchwise.bucketing.module import BucketedFunction, BucketedModule, apply_buckets, counts_of
from torchwise.bucketing.padding import Padding
from torchwise.bucketing.padding_check import VerifiedPadding, verify_padding
from torchwise.bucketing.warmup import WarmedBucket, warm_up
from torchwise.lazy import load_attributes

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

__getattr__ = load_attributes(
    __name__, {}, {"Proof": "VerifiedPadding", "Warmed": "WarmedBucket", "prove": "verify_padding"}
)
