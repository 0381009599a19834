"""Generate Inductor's code for a GPU that is not there, and run it on the CPU in Triton's interpreter.

The interpreter must be chosen before Triton is imported, so callers run this in a process of its own.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

GPU = types.SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=140 << 30,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    shared_memory_per_block_optin=232448,
)
BLOCKS = {"XBLOCK": 32, "YBLOCK": 32, "ZBLOCK": 1}


@contextlib.contextmanager
def assume_gpu() -> Iterator[None]:
    """Have PyTorch believe in a GPU, as far as Inductor asks before it runs anything."""
    interface = "torch._dynamo.device_interface.CudaInterface."
    with contextlib.ExitStack() as stack:
        for name, value in {
            "torch.cuda.is_available": lambda: True,
            "torch.cuda.get_device_properties": lambda *_: GPU,
            "torch.cuda.get_device_capability": lambda *_: (GPU.major, GPU.minor),
            "torch.cuda.current_device": lambda: 0,
            "torch.cuda.device_count": lambda: 1,
            "torch.cuda.is_tf32_supported": lambda *_: True,
            "torch.version.cuda": "13.0",
            "torch.utils._triton.triton_hash_with_backend": lambda *_: "none",
            f"{interface}get_device_properties": staticmethod(lambda *_: GPU),
            f"{interface}Worker.get_device_properties": staticmethod(lambda *_: GPU),
        }.items():
            stack.enter_context(mock.patch(name, value))
        stack.enter_context(mock.patch.object(AlgorithmSelectorCache, "do_autotuning", time_kernels))
        stack.enter_context(mock.patch.object(AlgorithmSelectorCache, "make_precompile_fn", return_value=list))
        yield


def time_kernels(*given: Any, **_: Any) -> dict[Any, float]:
    """Return a time of each kernel, of which none is run: the first is the fastest."""
    kernels = given[6]  # after self, name, inputs, layout, their generators, and their key
    return {kernel: float(place) for place, kernel in enumerate(kernels)}


def generate(call: Callable[..., Any], inputs: tuple[torch.Tensor, ...], options: dict[str, Any]) -> str:
    """Return Inductor's code for a GPU of a function, compiled with options of Inductor."""
    with assume_gpu(), FakeTensorMode() as mode:
        fakes = [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cuda") for one in inputs]
        traced = make_fx(call, decomposition_table=select_decomp_table())(*fakes)
        graph = GraphLowering(traced, example_inputs=fakes, is_inference=True, shape_env=mode.shape_env)
        # Whether what follows a product belongs to its kernel is not timed.
        settings = {"max_autotune_gemm": True, "benchmark_epilogue_fusion": False, "compile_threads": 1, **options}
        with (
            config.patch(settings),
            V.set_graph_handler(graph),
            V.set_fake_mode(mode),
            V.set_debug_handler(mock.MagicMock()),
        ):
            graph.run(*fakes)
            code: Any = graph.codegen()[0]
    return str(getattr(code, "value", code))


def run(code: str, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return the answers of such code for tensors of a CPU, by Triton's interpreter."""
    space: dict[str, Any] = {}
    code = code.replace("device='cuda:0'", "device='cpu'").replace("empty_strided_cuda", "empty_strided_cpu")
    code = re.sub(r"from torch\._C import _cuda_getCurrentRawStream.*", "get_raw_stream = int", code)
    with (
        mock.patch("torch._inductor.async_compile.AsyncCompile", Interpreter),
        mock.patch("torch.cuda._DeviceGuard", return_value=contextlib.nullcontext()),
        mock.patch("torch.cuda.set_device", return_value=None),
        mock.patch(
            "torch._C._dynamo.guards.assert_size_stride", return_value=None
        ),  # code names it with other arguments
    ):
        exec(compile(code, "generated", "exec"), space)
        found: tuple[torch.Tensor, ...] = space["call"](list(inputs))
    return found


class Interpreter:
    """What generated code gives its kernels to. They are run as they are, in blocks of `BLOCKS`."""

    def triton(self, name: str, source: str, **_: Any) -> Any:
        """Return a kernel."""
        source = re.sub(r"@triton_heuristics\.\w+\(\n.*?\n\)\n(?=@triton\.jit)", "", source, flags=re.S)
        source = source.replace("triton_helpers.set_driver_to_gpu()", "")
        file = Path(tempfile.mkdtemp()) / f"{name}.py"  # Triton reads the text of its kernels
        file.write_text(source)
        space: dict[str, Any] = {"__name__": name}
        exec(compile(source, str(file), "exec"), space)
        return Kernel(space[name], "_tem_" in name)

    def wait(self, _: Any) -> None:
        """Do nothing, as nothing is compiled."""


class Kernel:
    """A kernel of generated code."""

    def __init__(self, function: Any, is_template: bool) -> None:
        self._function, self._is_template = function, is_template

    def run(self, *given: Any, stream: int) -> None:
        """Run it on tensors, with its grid, or with the numbers of elements that it is for."""
        if self._is_template:
            *given, x, y, z = given
            self._function[(x, y, z)](*given)
            return
        names = self._function.arg_names
        blocks = {name: BLOCKS[name] for name in names if name in BLOCKS}
        counts = {name: count for name, count in zip(names, given, strict=False) if name.endswith("numel")}
        grid = [
            -(-counts[f"{axis}numel"] // BLOCKS[f"{axis.upper()}BLOCK"]) for axis in "xyz" if f"{axis}numel" in counts
        ]
        self._function[tuple(grid)](*given, **blocks)
