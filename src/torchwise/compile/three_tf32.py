"""Float32 products on TF32 tensor cores at the accuracy of float32, in the kernels that Inductor's autotuning writes.

TF32 keeps 10 bits of a mantissa. Each float32 number is the sum of one TF32 number and a rest, which is rounded to a
second one. Three products of such parts, summed in float32, have the error of a product in float32: 1.4e-7 of the
result where cuBLAS has 1.5e-7 (262,144 × 256 × 256 on an H200). Tensor cores are so much faster that three products
took 0.64 of cuBLAS's time there. CUTLASS names it 3xTF32 (its example 27), and Triton "tf32x3", a value of
`input_precision` of `tl.dot`.

Inductor's templates pass `allow_tf32` instead, which is yes or no. So a further name of a backend in its option
`max_autotune_gemm_backends` has them pass the precision. Inductor ignores a name that it does not know, but the option
is part of its keys of compiled code. Its autotuning then chooses between these kernels and cuBLAS, or cuDNN, by time.
Where the program itself allows TF32, kernels stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch

from torchwise._torch import inductor
from torchwise._torch.private_name import check
from torchwise.errors import UnsupportedError

NAME = "TF32X3"
"""The name of the backend. Its kernels come from Triton, which must be named, too."""
OPTION = "max_autotune_gemm_backends"
WHO = f"{NAME} in Inductor's {OPTION}"
PARAMETER = "ALLOW_TF32"
IN_THREE = '"tf32x3"'
"""The value of the parameter, as it is written into a kernel."""
BEFORE, AFTER = f"allow_tf32={PARAMETER}", f"input_precision={PARAMETER}"


def is_chosen(options: Mapping[str, Any]) -> bool:
    """Return whether options of Inductor name the backend."""
    return NAME in _list_names(options.get(OPTION))


def _list_names(backends: Any) -> list[str]:
    return [name.strip() for name in str(backends or "").upper().split(",")]


@functools.cache
def add_to_templates() -> None:
    """Have Inductor's templates multiply so where its configuration names the backend. Others stay as they are.

    Raises:
        UnsupportedError: this torch writes such kernels in another way.
    """
    check(WHO, (inductor.GENERATE, inductor.RENDER))
    patch_templates(inductor.TEMPLATE.get(WHO), inductor.TEMPLATE_KERNEL.get(WHO))


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
            raise UnsupportedError(f"{WHO} is for kernels with {BEFORE}, which torch {torch.__version__} lacks")
        return text.replace(BEFORE, AFTER)


def _is_configured() -> bool:
    return is_chosen({OPTION: getattr(inductor.CONFIG.get(WHO), OPTION)})


def _is_float32(nodes: Any) -> bool:
    return all(node.get_dtype() == torch.float32 for node in nodes)
