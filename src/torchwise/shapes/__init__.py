"""Run inputs of many sizes by padding them to a few sizes, if verified, without compiling during a request."""

from torchwise.shapes.bucketed import bucketed
from torchwise.shapes.buckets import buckets_for, padded_share
from torchwise.shapes.choice import Choice, choose
from torchwise.shapes.counts import Counts
from torchwise.shapes.fit import fit
from torchwise.shapes.module import BucketedFunction, BucketedModule, apply_buckets, counts_of
from torchwise.shapes.padding import Padding
from torchwise.shapes.proof import Proof, prove
from torchwise.shapes.warm import Warmed, warm_up

__all__ = [
    "BucketedFunction",
    "BucketedModule",
    "Choice",
    "Counts",
    "Padding",
    "Proof",
    "Warmed",
    "apply_buckets",
    "bucketed",
    "buckets_for",
    "choose",
    "counts_of",
    "fit",
    "padded_share",
    "prove",
    "warm_up",
]
