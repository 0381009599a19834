"""Starts of kernels by the driver: with which numbers it is called, and which calls Triton answers instead."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpu_kernels import Kernels, use_kernels
from row_calls import compile_call
from row_cases import CASES, check
from torchwise.compile.programs.gpu import direct, launch
from torchwise.compile.programs.gpu.direct import Compiled, Driver
from torchwise.errors import UnsupportedError

CPU = torch.device("cpu")
CONTEXT, FUNCTION = 7, 99
DRIVER = """
#include <stdint.h>
typedef struct { int id; _Alignas(8) unsigned value[16]; } Attribute;
typedef struct { unsigned grid[3], block[3], shared; void* stream; Attribute* attributes; unsigned count; } Config;
unsigned seen[16];
void *function, *values[16];
int tensors, refusal;
void* context;
int status;

int start(const Config* config, void* called, void** parameters, void** extra) {
  for (int place = 0; place < 3; ++place) {
    seen[place] = config->grid[place];
    seen[3 + place] = config->block[place];
  }
  seen[6] = config->shared;
  seen[7] = config->count;
  for (unsigned place = 0; place < config->count; ++place) {
    seen[8 + 2 * place] = config->attributes[place].id;
    seen[9 + 2 * place] = config->attributes[place].value[0];
  }
  function = called;
  for (int place = 0; place < tensors + 2; ++place) values[place] = *(void**)parameters[place];
  if (!refusal) *(float*)values[2] = *(float*)values[0] + *(float*)values[1];
  return refusal;
}

int get_context(void** found) {
  *found = context;
  return 0;
}

int get_capture(void* stream, int* found) {
  *found = status;
  return 0;
}
"""
"""In the place of NVIDIA's driver. The kernel adds the first numbers of two inputs."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The driver's two functions, and the values of their last call."""
    folder: Path = tmp_path_factory.mktemp("driver")
    text, made = folder / "driver.c", folder / "driver.so"
    text.write_text(DRIVER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-Bsymbolic", str(text), "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


@dataclass
class Started:
    """A kernel that the driver starts, and its calls."""

    library: Any
    call: Callable[..., Any]
    others: list[tuple[Any, ...]]

    def write(self, **values: int) -> None:
        """Set variables of the driver."""
        for name, value in values.items():
            self.read(name, ctypes.c_void_p if name == "context" else ctypes.c_int).value = value

    def read(self, name: str, kind: Any) -> Any:
        return kind.in_dll(self.library, name)

    @property
    def seen(self) -> list[int]:
        return list(self.read("seen", ctypes.c_uint * 16))

    @property
    def values(self) -> list[int | None]:
        return list(self.read("values", ctypes.c_void_p * 16))


def start(
    library: Any,
    *inputs: torch.Tensor,
    shared: int = 0,
    cluster: int = 1,
    constants: tuple[torch.Tensor, ...] = (),
    work: bool = False,
    draw: Callable[[], torch.Tensor] | None = None,
) -> Started:
    """Return a kernel for inputs like these, which has one number as its output."""
    prototypes = [direct.make_prototype((1,), (1,), torch.float32, CPU) for _ in range(1 + work)]
    start, get_context, get_capture = (
        direct.find_address(one) for one in (library.start, library.get_context, library.get_capture)
    )
    others: list[tuple[Any, ...]] = []

    def answer(*args: Any) -> str:
        others.append(args)
        return "other"

    started = Started(library, direct.make_region(answer), others)
    compiled = Compiled(FUNCTION, 3, 128, shared, cluster, object())
    driver = Driver(start, get_context, get_capture, CONTEXT, (1, 0))
    direct.set_kernel(started.call, driver, compiled, inputs, prototypes, 1, constants, draw)
    started.write(context=CONTEXT, tensors=3 + len(constants) + (draw is not None) + work, refusal=0, status=0)
    return started


def test_the_driver_is_told_the_kernel_its_size_and_its_tensors(library: Any) -> None:
    x, y = torch.randn(4, 2), torch.randn(2)
    started = start(library, x, y, shared=1024)
    (found,) = started.call(x, y)
    assert found.item() == (x[0] + y)[0].item()
    assert started.seen[:8] == [3, 1, 1, 128, 1, 1, 1024, 0]
    assert started.read("function", ctypes.c_void_p).value == FUNCTION
    assert started.values[:3] == [x.data_ptr(), y.data_ptr(), found.data_ptr()]
    assert started.values[3:5] == [None, None]  # Triton's own memory
    assert started.others == []


def test_each_call_has_an_output_of_its_own(library: Any) -> None:
    x, y = torch.randn(2), torch.randn(2)
    call = start(library, x, y).call
    kept = [call(x, y)[0] for _ in range(3)]
    x.add_(1)
    assert call(x, y)[0].item() == pytest.approx(kept[0].item() + 1, abs=1e-6)
    assert len({one.data_ptr() for one in kept}) == 3


def test_programs_of_a_cluster_have_attributes_and_memory_to_share(library: Any) -> None:
    x, y, table = torch.randn(2), torch.randn(2), torch.randn(5, dtype=torch.float64)
    started = start(library, x, y, cluster=8, constants=(table,), work=True)
    started.call(x, y)
    assert started.seen[:3] == [24, 1, 1]
    assert started.seen[7:12] == [2, 4, 8, 5, 1]  # cuda.h: cluster dimension, and the policy to spread it
    assert started.values[3] == table.data_ptr()
    assert started.values[4] is not None
    assert started.values[5:7] == [None, None]


def test_memory_to_share_serves_all_calls_of_a_stream_but_not_a_captured_graph(library: Any) -> None:
    x, y = torch.randn(2), torch.randn(2)
    started = start(library, x, y, cluster=8, work=True)
    seen, kept = list[int | None](), list[Any]()
    for status in (0, 0, 1, 0):
        started.write(status=status)
        kept.append(started.call(x, y))
        seen.append(started.values[3])
    first, second, captured, last = seen
    assert first == second == last != captured


def test_each_call_draws_a_seed_before_the_memory_to_share(library: Any) -> None:
    x, y, drawn = torch.randn(2), torch.randn(2), list[torch.Tensor]()

    def draw() -> torch.Tensor:
        drawn.append(torch.tensor([len(drawn)]))
        return drawn[-1]

    started = start(library, x, y, cluster=8, work=True, draw=draw)
    for number in range(1, 4):
        assert started.call(x, y) != "other"
        assert len(drawn) == number
        assert started.values[3] == drawn[-1].data_ptr() != started.values[4]
        assert started.values[5:7] == [None, None]


@pytest.mark.parametrize("seed", [torch.ones(1, device="meta"), 3])
def test_a_seed_that_is_no_tensor_in_memory_is_left_to_triton(library: Any, seed: Any) -> None:
    x, y = torch.randn(2), torch.randn(2)
    assert start(library, x, y, draw=lambda: seed).call(x, y) == "other"


def test_a_region_has_one_kernel(library: Any) -> None:
    x, y = torch.randn(2), torch.randn(2)
    region = start(library, x, y).call
    driver, compiled = Driver(1, 1, 1, CONTEXT, (1, 0)), Compiled(FUNCTION, 3, 128, 0, 1, object())
    with pytest.raises(ValueError, match="has a kernel"):
        direct.set_kernel(region, driver, compiled, (x, y), (), 0, (), None)
    assert region(x, y)[0].item() == (x + y)[0].item()


def test_a_region_without_a_kernel_is_answered_otherwise() -> None:
    region = direct.make_region(lambda *args: len(args))
    assert (region(), region(torch.ones(1)), region(1, 2)) == (0, 1, 2)
    assert region.is_native


@pytest.mark.parametrize(
    "change",
    [
        lambda x, y: (x.double(), y),
        lambda x, y: (x.int(), y),
        lambda x, y: (x[:3], y),
        lambda x, y: (x.t().contiguous().t(), y),
        lambda x, y: (x.flatten(), y),
        lambda x, y: (x.bfloat16(), y),
        lambda x, y: (x, torch.zeros(3)[1:]),  # at an address that is no multiple of 16
        lambda x, y: (x, y, y),
        lambda x, _: (x,),
        lambda x, y: (x.to("meta"), y),
        lambda x, y: (x.as_subclass(type("Own", (torch.Tensor,), {})), y),
    ],
)
def test_other_inputs_are_left_to_triton(library: Any, change: Callable[..., tuple[torch.Tensor, ...]]) -> None:
    x, y = torch.randn(4, 2), torch.randn(2)
    started = start(library, x, y)
    given = change(x, y)
    assert started.call(*given) == "other"
    assert [len(one) for one in started.others] == [len(given)]


def test_code_for_any_address_takes_any(library: Any) -> None:
    x, y = torch.randn(2), torch.randn(3)[1:]
    started = start(library, x, y)
    assert started.call(x, y) != "other"
    assert started.call(y, y) == "other"  # the first input was at a multiple of 16


def test_a_thread_with_another_device_is_left_to_triton(library: Any) -> None:
    x, y = torch.randn(2), torch.randn(2)
    started = start(library, x, y)
    started.write(context=CONTEXT + 1)
    assert started.call(x, y) == "other"


def test_what_the_driver_refuses_is_left_to_triton_which_says_why(library: Any) -> None:
    x, y = torch.randn(2), torch.randn(2)
    started = start(library, x, y)
    started.write(refusal=719)
    assert started.call(x, y) == "other"


@pytest.mark.parametrize(
    ("shape", "strides"), [((), ()), ((3,), (1,)), ((2, 3, 4), (12, 4, 1)), ((2, 3), (1, 2)), ((4, 1, 2), (2, 2, 1))]
)
def test_outputs_have_their_strides(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    found = torch.empty_like(direct.make_prototype(shape, strides, torch.float64, CPU))
    assert (tuple(found.shape), found.stride(), found.dtype) == (shape, strides, torch.float64)


def test_an_output_in_order_costs_no_memory_to_describe() -> None:
    assert direct.make_prototype((1000, 1000), (1000, 1), torch.float32, CPU).untyped_storage().nbytes() == 4


def write_compiled(**changes: Any) -> Any:
    facts = {
        "num_warps": 4,
        "shared": 64,
        "target": SimpleNamespace(warp_size=32),
        "global_scratch_size": 0,
        "profile_scratch_size": 0,
        "launch_cooperative_grid": False,
        "launch_pdl": False,
        "num_ctas": 1,
        **changes,
    }
    signature = {"a": "*fp32", "b": "*fp32", "BLOCK": "constexpr"}
    return SimpleNamespace(
        metadata=SimpleNamespace(**facts), src=SimpleNamespace(signature=signature), function=FUNCTION
    )


def test_a_kernel_of_triton_is_read() -> None:
    found = direct.read_compiled(kernel := write_compiled(), 5, 2, 2)
    assert found == Compiled(FUNCTION, 5, 128, 64, 2, kernel)


@pytest.mark.parametrize(
    ("changes", "given"),
    [
        ({"global_scratch_size": 8}, 2),
        ({"profile_scratch_size": 8}, 2),
        ({"launch_cooperative_grid": True}, 2),
        ({"launch_pdl": True}, 2),
        ({"num_ctas": 2}, 2),
        ({}, 3),
    ],
)
def test_a_kernel_that_needs_more_is_left_to_triton(changes: dict[str, Any], given: int) -> None:
    with pytest.raises(UnsupportedError, match="the kernel takes"):
        direct.read_compiled(write_compiled(**changes), 1, 1, given)


def test_a_triton_that_keeps_kernels_otherwise_is_named() -> None:
    with pytest.raises(UnsupportedError, match="keeps a compiled kernel otherwise"):
        direct.read_compiled(SimpleNamespace(), 1, 1, 1)


def test_a_number_beside_the_tensors_is_left_to_triton() -> None:
    kernel = write_compiled()
    kernel.src.signature["n"] = "i32"
    with pytest.raises(UnsupportedError, match="i32"):
        direct.read_compiled(kernel, 1, 1, 3)


def test_a_cpu_has_no_driver() -> None:
    with pytest.raises(UnsupportedError, match="the device is cpu"):
        direct.find_driver(CPU)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Kernels]:
    """The kernels that a test makes."""
    yield from use_kernels(monkeypatch, tmp_path)


def test_calls_after_the_first_are_started_without_triton(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(
        launch.Launch, "start_directly", lambda _self, region, _compiled, args: tried.append((region, len(args)))
    )
    case = CASES["perceptron"]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    call = compile_call(case.call, *inputs)
    for _ in range(3):
        check(call, case, inputs)
    (region, count), (kernel,) = *tried, kernels
    assert region.is_native
    assert count == len(kernel._wanted)


@pytest.mark.parametrize("problem", [UnsupportedError("no driver"), torch.OutOfMemoryError("no memory")])
def test_a_kernel_that_cannot_be_started_directly_is_left_to_triton(
    problem: Exception, kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def refuse(_self: Any, _region: Any, _compiled: Any, args: Any) -> None:
        tried.append(len(args))
        raise problem

    monkeypatch.setattr(launch.Launch, "start_directly", refuse)
    case = CASES["perceptron"]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    call = compile_call(case.call, *inputs)
    for _ in range(3):
        check(call, case, inputs)
    assert len(tried) == len(kernels) == 1


def test_a_call_by_other_arguments_is_no_code_for_dynamo(kernels: Kernels) -> None:
    """Its guards then lead to the region, which Triton answers here, and which must not be traced."""

    def multiply(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ weight) + 1

    x, weight = torch.randn(4, 8), torch.randn(8, 8)
    call = compile_call(multiply, x, weight)
    for given in ({}, {"weight": weight}, {"x": x, "weight": weight}):
        args = [one for name, one in (("x", x), ("weight", weight)) if name not in given]
        for _ in range(2):
            assert torch.allclose(call(*args, **given), multiply(x, weight), atol=1e-5)
    assert len(kernels) <= 3


def test_a_kernel_of_too_many_tensors_is_left_to_triton(library: Any) -> None:
    many = [torch.randn(1) for _ in range(direct.MOST_TENSORS)]
    with pytest.raises(UnsupportedError, match="241 tensors"):
        start(library, *many)


def test_memory_that_programs_share_has_the_type_of_the_code() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert launch.allocate_work(4, CPU).dtype is torch.float32
    finally:
        torch.set_default_dtype(before)


def test_without_a_compiler_triton_starts_each_call(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: Any) -> Any:
        raise UnsupportedError("there is no compiler")

    monkeypatch.setattr(direct, "make_region", refuse)
    case = CASES["perceptron"]
    inputs = case.inputs(torch.Generator().manual_seed(0))
    with caplog.at_level("INFO", "torchwise"):
        call = compile_call(case.call, *inputs)
        for _ in range(2):
            check(call, case, inputs)
    assert kernels[0]._launch is not None
    assert "Triton starts each call of a kernel: there is no compiler" in caplog.text
