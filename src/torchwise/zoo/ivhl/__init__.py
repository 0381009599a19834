"""Family `ivhl`: fields, tensor networks and condensates; one file per kind of physics."""

from torchwise.zoo.ivhl.field import build_field_superposition, field_superposition

__all__ = ["build_field_superposition", "field_superposition"]
