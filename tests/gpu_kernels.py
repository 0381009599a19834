"""Row programs as kernels of a GPU that is not there, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchwise.compile import programs
from torchwise.compile.programs.gpu.launch import Kernel
from torchwise.compile.programs.gpu.target import GpuTarget
from triton_interpreter import add_functions


class Kernels(list[Kernel]):
    """The kernels that were made, and the calls that they left to the operators."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    @property
    def source(self) -> str:
        """The text of the only one."""
        (kernel,) = self
        return kernel._write(64, True).source


def use_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Kernels]:
    """Have row programs be kernels, though tensors are on the CPU, and yield those that are made."""
    made, bind = Kernels(), Kernel.bind
    add_functions(monkeypatch)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(programs, "_find_target", lambda _inputs, draws: GpuTarget(torch.device("cpu"), draws=draws))

    def bind_and_keep(self: Kernel, original: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            made.left += 1
            return original(*args)

        made.append(self)
        return bind(self, count)

    monkeypatch.setattr(Kernel, "bind", bind_and_keep)
    with torch.no_grad():
        yield made
    torch.compiler.reset()
