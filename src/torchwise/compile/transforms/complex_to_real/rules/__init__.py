"""The rules, one file a kind of operator. Importing this package registers them all."""

from torchwise.compile.transforms.complex_to_real.rules import (
    arithmetic,
    comparisons,
    conversions,
    elementary,
    hyperbolic,
    inverse,
    powers,
    products,
    reductions,
    shapes,
)

__all__ = [
    "arithmetic",
    "comparisons",
    "conversions",
    "elementary",
    "hyperbolic",
    "inverse",
    "powers",
    "products",
    "reductions",
    "shapes",
]
