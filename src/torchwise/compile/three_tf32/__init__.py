"""Float32 products on TF32 tensor cores at the accuracy of float32, in the kernels that Inductor's autotuning writes.

TF32 keeps 10 bits of a mantissa. Each float32 number is the sum of one TF32 number and a rest, which is rounded to a
second one. Three products of such parts, summed in float32, have the error of a product in float32: 1.4e-7 of the
result where cuBLAS has 1.5e-7 (262,144 × 256 × 256 on an H200). That is so for numbers far from the ends of float32's
range. Tensor cores are so much faster that three products took 0.64 of cuBLAS's time there. CUTLASS names it 3xTF32
(its example 27), and Triton "tf32x3", a value of `input_precision` of `tl.dot`.

Inductor's templates pass `allow_tf32` instead, which is yes or no. So a further name of a backend in its option
`max_autotune_gemm_backends` has them pass the precision. Inductor ignores a name that it does not know. Its autotuning
then chooses between these kernels and cuBLAS by time. On Hopper, large products have a kernel of Torchwise instead
(`products`).
Kernels to which Inductor grants TF32, as the program does, stay as they are. Keys of compiled code have the option, and
a note of this patch.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchwise._torch import inductor
from torchwise._torch.private_name import check
from torchwise.compile.inductor_patches import note_in_keys
from torchwise.compile.three_tf32 import products
from torchwise.errors import UnsupportedError

NAME = "TF32X3"
"""The name of the backend."""
TRITON = "TRITON"
NOTE = "float32_products_of_three_tf32_3"
"""The note in keys of compiled code. Its number changes with the kernels."""
MAIN_TEMPLATE = "triton_mm.py.jinja"
"""The file of the template of most products."""
OPTION = "max_autotune_gemm_backends"
WHO = f"{NAME} in Inductor's {OPTION}"
PARAMETER = "ALLOW_TF32"
IN_THREE = '"tf32x3"'
"""The value of the parameter, as it is written into a kernel."""
BEFORE, AFTER = f"allow_tf32={PARAMETER}", f"input_precision={PARAMETER}"


_adding = threading.Lock()  # `functools.cache` lets two threads in at once


def complete(options: dict[str, Any]) -> None:
    """If options of Inductor name the backend, have templates multiply so, and add the options that it needs.

    Convolutions are left to libraries, for which PyTorch allows TF32 by default. But Inductor makes products of those
    of one point in layout channels-last.

    Raises:
        UnsupportedError: Triton is not named, or this torch writes such kernels in another way.
    """
    if is_chosen(options):
        if TRITON not in _list_names(options[OPTION]):
            raise UnsupportedError(
                f"{OPTION} is {options[OPTION]!r}, but the kernels of {NAME} are Triton's: name {TRITON} as well"
            )
        add_to_templates()
        options.setdefault("max_autotune_gemm", True)
        options.setdefault("max_autotune_conv_backends", "ATEN")


def is_chosen(options: Mapping[str, Any]) -> bool:
    """Return whether options of Inductor name the backend."""
    return NAME in _list_names(options.get(OPTION))


def _list_names(backends: Any) -> list[str]:
    return [name.strip() for name in str(backends or "").upper().split(",")]


def add_to_templates() -> None:
    """Have Inductor's templates multiply so where its configuration names the backend. Others stay as they are.

    Raises:
        UnsupportedError: this torch writes such kernels in another way.
    """
    with _adding:
        _add_once()


@functools.cache
def _add_once() -> None:
    check(WHO, (inductor.GENERATE, inductor.RENDER, inductor.GRAPH_KEY))
    folder = Path(str(inductor.TEMPLATE_KERNELS.get(WHO).__file__)).parent / "templates"
    if BEFORE not in (folder / MAIN_TEMPLATE).read_text():
        raise UnsupportedError(f"{WHO} needs kernels with {BEFORE}, which torch {torch.__version__} does not write")
    products.add_to_lowerings(_is_configured)
    patch_templates(inductor.TEMPLATE.get(WHO), inductor.TEMPLATE_KERNEL.get(WHO))
    note_in_keys(inductor.GRAPH_KEY.get(WHO), NOTE, _is_configured)


def patch_templates(template: Any, kernel: Any) -> None:
    """Patch the classes of templates and of their kernels."""
    generate, render = template.generate, kernel.render

    def generate_in_three(self: Any, *args: Any, **kwargs: Any) -> Any:
        nodes = kwargs.get("input_nodes", args[0] if args else ())
        if kwargs.get(PARAMETER) is False and _is_configured() and _is_float32(nodes):
            kwargs[PARAMETER] = IN_THREE  # a part of the keys under which kernels and their times are kept
        return generate(self, *args, **kwargs)

    def render_in_three(self: Any, template: Any, kwargs: dict[str, Any], *args: Any, **named: Any) -> Any:
        if kwargs.get(PARAMETER) == IN_THREE:
            template = _InThree(template)
        return render(self, template, kwargs, *args, **named)

    template.generate, kernel.render = generate_in_three, render_in_three


class _InThree:
    """A template whose products take a precision."""

    def __init__(self, template: Any) -> None:
        self._template = template

    def render(self, **parameters: Any) -> str:
        """Return the text of the kernel."""
        text: str = self._template.render(**parameters)
        if BEFORE not in text:
            raise NotImplementedError(f"no {BEFORE} in this kernel")  # by which Inductor drops it alone
        return text.replace(BEFORE, AFTER)


def _is_configured() -> bool:
    return is_chosen({OPTION: getattr(inductor.CONFIG.get(WHO), OPTION)})


def _is_float32(nodes: Any) -> bool:
    return all(node.get_dtype() == torch.float32 for node in nodes)
