"""Family `tutorial`: the small programs by which `torch.compile` is taught, each with one lesson.

`basics` has fusion, launches and branches, `transformer` its gains, and `breaks` graph breaks. Inputs are
dimensionless activations of unit variance.
"""

from torchwise.zoo.tutorial.basics import build_branch, build_elementwise_chain, build_fusion_demo, build_many_small_ops
from torchwise.zoo.tutorial.breaks import (
    build_break_branch,
    build_break_item,
    build_break_list,
    build_break_numpy,
    build_break_print,
)
from torchwise.zoo.tutorial.transformer import build_six_layer_transformer, build_transformer_block

__all__ = [
    "build_branch",
    "build_break_branch",
    "build_break_item",
    "build_break_list",
    "build_break_numpy",
    "build_break_print",
    "build_elementwise_chain",
    "build_fusion_demo",
    "build_many_small_ops",
    "build_six_layer_transformer",
    "build_transformer_block",
]
