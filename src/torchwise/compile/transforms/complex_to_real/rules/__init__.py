"""The rules, one file for each kind of operator. Importing this package registers them all."""

from torchwise.compile.transforms.complex_to_real.rules import arithmetic, elementary, shapes

__all__ = ["arithmetic", "elementary", "shapes"]
