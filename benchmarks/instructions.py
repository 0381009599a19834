"""How many machine instructions do a plan's loops take on a GPU?

This needs no GPU: everything is compiled, and nothing runs.

Inductor sees a simulated Hopper GPU with the properties of an H200. Triton compiles Inductor's code for the target's
graph for sm_90, for each block size that Inductor would try. The machine code is disassembled. `machine_loop.py` finds
the instructions of a kernel's longest loop. They are divided by the number of elements per thread in the loop. If
arithmetic bounds the loop, the result is its time. The unit is cycles of one of a multiprocessor's four parts for 32
elements.

It needs a CUDA build of PyTorch (2.11 and 2.15 were tried). It takes plain functions and modules for inference. The one
choice of a plan that it takes is whether complex numbers are carried as real ones.

Run it: python benchmarks/instructions.py benchmarks/targets.py:field_million --complex-to-real
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from machine_loop import longest_loop
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import codecache, compile_fx, config
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import fake_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from torchwise._torch import inductor
from torchwise.compile.transforms.complex_to_real import ComplexToReal
from torchwise.workload import pytree, target

H200 = SimpleNamespace(
    name="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    L2_cache_size=50 << 20,
    total_memory=140 << 30,
    gcnArchName="",
)
HOPPER = GPUTarget("cuda", 90, 32)
DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
TUNED = re.compile(r"@triton_heuristics\.\w+\(.*?\n\)\n(?=@triton.jit)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--complex-to-real", action="store_true")
    options = parser.parse_args()
    with pretended():
        source = generate_source(options)
    form = "complex numbers as real ones" if options.complex_to_real else "as it is"
    print(f"{options.target}, {form}, torch {torch.__version__}, Triton {triton.__version__}, sm_90")
    for name, text in re.findall(r"async_compile\.triton\('(\w+)', '''(.*?)'''", source, re.DOTALL):
        show(name, text)


@contextlib.contextmanager
def pretended() -> Iterator[None]:
    """Make Inductor find a GPU. Operations that would touch it do nothing."""
    here = {"is_available": True, "current_device": 0, "device_count": 1, "get_device_properties": H200}
    interface = {**here, "synchronize": None, "get_compute_capability": 90}
    worker = {"current_device": 0, "get_device_properties": H200}
    cuda = {**here, "get_device_capability": (9, 0), "_lazy_init": None, "_exchange_device": 0}
    cuda |= {"_maybe_exchange_device": 0, "get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None}
    driver = SimpleNamespace(get_current_target=lambda: HOPPER, get_current_device=lambda: 0)
    with contextlib.ExitStack() as patches:
        for holder, answers in ((CudaInterface, interface), (CudaInterface.Worker, worker), (torch.cuda, cuda)):
            for name, value in answers.items():
                patches.enter_context(mock.patch.object(holder, name, return_value=value))
        patches.enter_context(mock.patch.object(fake_tensor, "init_gpu_context"))
        patches.enter_context(mock.patch.object(triton.runtime.driver, "_active", driver))
        patches.enter_context(config.patch(force_disable_caches=True, compile_threads=1))
        yield


def generate_source(options: argparse.Namespace) -> str:
    """Return the program that Inductor writes."""
    backend = ComplexToReal({})
    compiled = backend._compile_graph if options.complex_to_real else compile_fx.compile_fx_inner

    class Written(BaseException):
        pass

    def raise_source(source: str, *_: Any, **__: Any) -> None:
        raise Written(source)

    try:
        with mock.patch.object(codecache.PyCodeCache, "write", raise_source):
            compiled(*trace_for_gpu(options.target))
    except Written as found:
        if not backend.reasons:
            return str(found)
    raise SystemExit("; ".join(backend.reasons) or "Inductor wrote nothing")


def trace_for_gpu(name: str) -> tuple[torch.fx.GraphModule, list[Any]]:
    """Trace a target on the CPU with fake tensors, and mark everything in it as on a GPU."""
    workload = target.load(name, device="cpu", seed=0)
    example = workload.examples[0]
    weights = dict(workload.call.state_dict(keep_vars=True)) if isinstance(workload.call, torch.nn.Module) else {}
    given = pytree.tensors((example.args, example.kwargs))

    def call(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors[len(weights) :])
        args, kwargs = pytree.map_tensors(lambda _: next(rest), (example.args, dict(example.kwargs)))
        if not weights:
            return pytree.tensors(workload.call(*args, **kwargs))
        state = dict(zip(weights, tensors[: len(weights)], strict=True))
        return pytree.tensors(torch.func.functional_call(workload.call, state, args, kwargs))

    with fake_tensor.FakeTensorMode(), torch.no_grad():
        here, there = (
            [
                torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device)
                for t in (*weights.values(), *given)
            ]
            for device in ("cpu", "cuda")
        )
        module = make_fx(call, decomposition_table=select_decomp_table())(*here)
    for node in module.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
    inductor.PROPAGATE_FAKES.get()(module, there, True)
    return module, there


def show(name: str, text: str) -> None:
    """Print the instructions of one kernel for each block size."""
    print(f"\n{name}")
    for chosen in blocks(name, text):
        sizes = {key: value for key, value in chosen.kwargs.items() if key.endswith("BLOCK")}
        path = longest_loop(disassemble(name, text, chosen))
        each = math.prod(sizes.values()) / (32 * chosen.num_warps)
        words = " ".join(f"{key}={value}" for key, value in sizes.items()) + f" num_warps={chosen.num_warps}"
        if path is None:
            print(f"  {words}: no loop")
            continue
        print(f"  {words}: {len(path)} instructions in a loop for {each:g} elements, {len(path) / each:.1f} for each")


def blocks(name: str, text: str) -> list[Any]:
    """Return the block sizes that Inductor would try, and for many rows also those with one row per thread."""
    found = load_kernel(name, text).configs
    if any("R0_BLOCK" in one.kwargs for one in found):
        found += [triton.Config({"XBLOCK": rows, "R0_BLOCK": 1}, num_warps=4) for rows in (256, 512, 1024)]
    return found


def load_kernel(name: str, text: str) -> Any:
    """Return the kernel in a source text, without a driver."""
    return getattr(codecache.PyCodeCache.load(text.replace("triton_helpers.set_driver_to_gpu()", "")), name)


def disassemble(name: str, text: str, chosen: Any) -> str:
    """Compile a kernel for one block size, and return its disassembled machine code."""
    tuned, kernel = load_kernel(name, text), load_kernel(name, TUNED.sub("", text))
    signature, [attributes] = tuned.triton_meta["signature"], tuned.triton_meta["configs"]
    places = {argument: (place,) for place, argument in enumerate(signature)}
    constants = {places[size]: number for size, number in chosen.kwargs.items() if size in places}
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, HOPPER, {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return subprocess.run([DISASSEMBLER, "-c", file.name], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
