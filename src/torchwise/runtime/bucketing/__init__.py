"""Run inputs of many sizes by padding them to a few sizes, if verified, without compiling during a request."""

from torchwise.former_packages import load_attributes
from torchwise.runtime.bucketing.bucketed import WarmedBucket, bucketed, fit, warm_up
from torchwise.runtime.bucketing.buckets import Choice, buckets_for, choose, padded_share
from torchwise.runtime.bucketing.module import BucketedFunction, BucketedModule, apply_buckets, counts_of
from torchwise.runtime.bucketing.padding import Padding
from torchwise.runtime.bucketing.padding_check import VerifiedPadding, verify_padding
from torchwise.runtime.statistics import Counts

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
