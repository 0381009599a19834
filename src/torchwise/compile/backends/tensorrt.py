"""Compile graphs with TensorRT, by way of torch-tensorrt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchwise.compile.backends.exported import Run, compile_exported
from torchwise.compile.backends.graphs import NOTHING, Varying
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan


def compile(call: Callable[..., Any], plan: Plan, varying: Varying = NOTHING) -> Callable[..., Any]:
    """Return `call`, whose graphs TensorRT compiles (see `compile_exported`)."""
    return compile_exported(call, plan, _compile_program, varying)


def _compile_program(
    program: torch.export.ExportedProgram,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],  # noqa: ARG001 - the program has them
) -> Run:
    import torch_tensorrt

    for tensor in inputs:
        if tensor.device.type != "cuda":
            raise UnsupportedError(f"TensorRT needs all inputs on an NVIDIA GPU, but one is on {tensor.device}")
    compiled = torch_tensorrt.dynamo.compile(
        program,
        arg_inputs=tuple(inputs),
        use_explicit_typing=True,  # the model's own dtypes
        disable_tf32=not torch.backends.cuda.matmul.allow_tf32,
    )

    def call(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        answers = compiled(*inputs)
        return [answer.contiguous() for answer in (answers if isinstance(answers, (tuple, list)) else (answers,))]

    return call
