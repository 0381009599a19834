"""Compile graphs with AOTInductor: Inductor's kernels, and C++ around them in place of Python.

Weights stay inputs of the code, so that changed ones take effect.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from torchwise._torch import inductor
from torchwise.compile.backends.exported import Run, compile_exported
from torchwise.compile.backends.graphs import NOTHING, Varying
from torchwise.plan import Plan


def compile(call: Callable[..., Any], plan: Plan, varying: Varying = NOTHING) -> Callable[..., Any]:
    """Return `call`, whose graphs AOTInductor compiles (see `compile_exported`)."""
    return compile_exported(call, plan, _compile_program, varying, checks_indices=False)


def _compile_program(
    program: torch.export.ExportedProgram,
    inputs: Sequence[torch.Tensor],  # noqa: ARG001 - the program has them
    outputs: Sequence[torch.Tensor],  # noqa: ARG001
) -> Run:
    with tempfile.TemporaryDirectory(prefix="torchwise-aoti-") as folder:  # the library is loaded from its own copy
        package = inductor.AOTI_PACKAGE.get()(program, package_path=str(Path(folder, "model.pt2")))
        loaded = inductor.AOTI_LOAD.get()(package)
    run: Callable[[list[torch.Tensor]], list[torch.Tensor]] = loaded.loader.run  # without a tree of inputs

    def call(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [answer.contiguous() for answer in run(list(inputs))]

    return call
