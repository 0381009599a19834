"""The data of spans, generated code and a profile: seconds by stage, bytes of kernels, waits and work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchwise.diagnose import evidence, kernels
from torchwise.diagnose.code_copies import copy_with_fresh_code
from torchwise.diagnose.op_trace import ReadKind, Work, observe
from torchwise.diagnose.savings import patched
from torchwise.diagnose.trace import Artifact, Span
from torchwise.diagnose.work import KnownWork, bytes_of_kernels
from torchwise.records.explanation import Limits

WRAPPER = """
cpp_fused_relu_sum_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r'''kernel''')
def call(args):
    arg0_1, arg1_1 = args
    buf0 = empty_strided_cpu((64, 64), (64, 1), torch.float32)
    extern_kernels.mm(arg0_1, arg0_1, out=buf0)
    buf1 = empty_strided_cpu((64, ), (1, ), torch.float32)
    cpp_fused_relu_sum_0(buf0, arg1_1, buf1)
    buf2 = torch.ops.aten.exp.default(arg1_1)
    return (buf1, )
def get_args():
    arg0_1 = rand_strided((64, 64), (64, 1), device='cpu', dtype=torch.float32)
    arg1_1 = rand_strided((64, ), (1, ), device='cpu', dtype=torch.bfloat16)
"""
GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, L_x_: "f32[8, 64]"):
        # File: model.py:3 in f, code: return torch.relu(x @ x)
        mm: "f32[64, 64]" = torch.ops.aten.mm.default(arg0_1, arg0_1);  arg0_1 = None
        relu: "f32[64, 64]" = torch.ops.aten.relu.default(mm);  mm = None
        return (relu,)
"""


def span(name: str, start: float, seconds: float, compile_id: str = "0/0") -> Span:
    return Span(name, compile_id, start, seconds)


def test_a_span_counts_without_those_inside_it() -> None:
    found = evidence.times(
        [
            span("bytecode_tracing", 0.5, 1.5),
            span("_recursive_post_grad_passes", 3.0, 1.0),
            span("something new", 3.2, 0.5),
            span("Scheduler.codegen", 5.0, 2.0),
            span("async_compile.wait", 7.0, 2.0),
            span("backend_compile", 2.5, 7.0),
            span("entire_frame_compile", 0.0, 10.0),
        ]
    )
    assert found[evidence.CAPTURE] == pytest.approx(3.0)
    assert found[evidence.OPTIMISATION] == pytest.approx(3.0), "its own passes, and what is new inside them"
    assert found[evidence.GENERATION] == pytest.approx(2.0)
    assert found[evidence.COMPILATION] == pytest.approx(2.0)
    assert sum(found.values()) == pytest.approx(10.0), "every second once"


def test_spans_of_other_threads_do_not_count() -> None:
    assert evidence.times([span("compile_file", 0.0, 5.0, compile_id="")]) == {}


def test_nodes_are_counted_and_code_is_read() -> None:
    artifacts = [Artifact("inductor_post_grad_graph", "0/0", GRAPH), Artifact("inductor_output_code", "0/0", WRAPPER)]
    assert evidence.nodes(artifacts, "inductor_post_grad_graph") == 2
    code = evidence.code_of(artifacts)
    assert (code.generated, dict(code.library), dict(code.fallbacks)) == (1, {"mm": 1}, {"aten.exp": 1})


def test_artifacts_become_files_by_stage(tmp_path: Path) -> None:
    both = [Artifact("inductor_output_code", "0/0", "forward"), Artifact("inductor_output_code", "0/0", "backward")]
    files = evidence.write(both, tmp_path / "new")
    assert len(files[evidence.GENERATION]) == 2
    assert {(tmp_path / "new" / name).read_text() for name in files[evidence.GENERATION]} == {"forward", "backward"}


def test_a_kernel_is_given_the_bytes_of_its_tensors() -> None:
    assert bytes_of_kernels([WRAPPER]) == {"cpp_fused_relu_sum_0": 64 * 64 * 4 + 64 * 2 + 64 * 4}


LIBRARY = """
def call(args):
    arg0_1, arg1_1 = args
    buf0 = extern_kernels.convolution(arg0_1, arg1_1, None, stride=(1, 1))
    assert_size_stride(buf0, (1, 8, 16, 16), (2048, 256, 16, 1), 'torch.ops.aten.convolution.default')
    buf1 = buf0; del buf0  # reuse
    cpp_fused_relu_0(buf1)
    buf2 = torch.ops.aten.argmax.default(buf1)
    assert_size_stride(buf2, (1, 16, 16), (256, 16, 1))
    cpp_fused_add_1(buf1, buf2)
def get_args():
    arg0_1 = rand_strided((1, 3, 16, 16), (768, 256, 16, 1), device='cpu', dtype=torch.bfloat16)
    arg1_1 = rand_strided((8, 3, 3, 3), (27, 9, 3, 1), device='cpu', dtype=torch.bfloat16)
"""


def test_what_a_library_returns_has_the_size_that_is_asserted_and_what_is_not_known_is_left_out() -> None:
    assert bytes_of_kernels([LIBRARY]) == {"cpp_fused_relu_0": 8 * 16 * 16 * 2}


@pytest.mark.parametrize(
    "source", ["this is C++ {", WRAPPER.replace("(64, 64), (64, 1), torch", "(s0, 64), (64, 1), torch")]
)
def test_bytes_that_nobody_can_know_are_not_made_up(source: str) -> None:
    assert bytes_of_kernels([source]) == {}


def test_the_roofline_is_the_nearer_of_two_limits() -> None:
    limits = Limits(bandwidth=1e9, flops=1e12)
    assert limits.share(2.0, 1e9, 1e11) == pytest.approx(0.5)
    assert limits.share(2.0, 1e9, None) is limits.share(2.0, None, 1e11) is None, "half of the work is not the work"


def event(name: str, us: float, at: float = 0.0, parent: Any = None, shapes: Any = (), **more: Any) -> Any:
    fields = {"kernels": [], "cpu_children": [], "is_user_annotation": False, "device": "CPU", **more}
    made = SimpleNamespace(
        name=name,
        cpu_parent=parent,
        input_shapes=list(shapes),
        device_type=SimpleNamespace(name=fields.pop("device")),
        time_range=SimpleNamespace(start=at, end=at + us, elapsed_us=lambda: us),
        **fields,
    )
    if parent is not None:
        parent.cpu_children.append(made)
    return made


def profile_events(
    events: list[Any], device: str, monkeypatch: pytest.MonkeyPatch, call_us: float = 100.0, **known: Any
) -> kernels.Profiled:
    monkeypatch.setattr(kernels, "_events", lambda _call, _device: events)
    given = KnownWork(**{"nbytes": {}, "operators": {}, **known})
    return kernels.profile(lambda: None, device, call_us / 1e6, Limits(1e9, 1e12), given)


def a_call(us: float = 100.0, at: float = 0.0) -> Any:
    return event("torchwise.call", us, at, is_user_annotation=True)


def test_the_outermost_operators_are_a_cpus_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    region = event("Torch-Compiled Region: 0/0", 95, 5)
    product = event("aten::addmm", 40, 10, region, [[8], [4, 16], [16, 8]])
    events = [
        a_call(),
        event("TorchDynamo Cache Lookup", 5),
        region,
        product,
        event("aten::copy_", 10, 12, product),
        event("aten::view", 3, 50, region),
        event("graph_0_cpp_fused_relu_0", 20, 60, region),
    ]
    seen = profile_events(events, "cpu", monkeypatch, nbytes={"cpp_fused_relu_0": 1000.0})
    assert [(k.name, pytest.approx(k.seconds)) for k in seen.kernels] == [
        ("aten::addmm", 40e-6),
        ("cpp_fused_relu_0", 20e-6),
    ]
    assert seen.busy_s == pytest.approx(60e-6)
    assert seen.guards_s == pytest.approx(5e-6)
    assert seen.kernels[0].flops == 2 * 4 * 16 * 8
    assert seen.kernels[1].nbytes == 1000
    assert seen.kernels[1].share is None, "nobody knows what a generated kernel computes"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_kernel_and_no_sum_of_kernels_is_longer_than_the_call(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    """Other programs slowed the profiled call, but not the timed ones: 411 ms in a kernel, in a call of 10.8 ms."""
    work = [event("aten::exp", 200e3, 1e3, device="CPU"), event("aten::mul", 211e3, 201e3, device="CPU")]
    if device == "cuda":
        work = [event(one.name, one.time_range.elapsed_us(), one.time_range.start, device="CUDA") for one in work]
    seen = profile_events([a_call(420e3), *work], device, monkeypatch, call_us=10.8e3)
    assert seen.busy_s == pytest.approx(sum(kernel.seconds for kernel in seen.kernels))
    assert 0.5 * 10.8e-3 < seen.busy_s <= 10.8e-3
    assert seen.kernels[0].seconds / seen.kernels[1].seconds == pytest.approx(211 / 200)
    assert seen.inflation > 30


def test_the_profiled_call_that_was_not_disturbed_stands_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [a_call(900), event("aten::exp", 850, 10), a_call(105, 1000), event("aten::exp", 84, 1010)]
    seen = profile_events(events, "cpu", monkeypatch)
    assert [(k.calls, pytest.approx(k.seconds)) for k in seen.kernels] == [(1, 80e-6)]
    assert seen.inflation == pytest.approx(1.05)


def test_kernels_that_run_beside_each_other_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [a_call(), event("left", 80, 0, device="CUDA"), event("right", 80, 10, device="CUDA")]
    seen = profile_events(events, "cuda", monkeypatch)
    assert seen.busy_s == pytest.approx(90e-6)
    assert [pytest.approx(k.seconds) for k in seen.kernels] == [45e-6, 45e-6]


def test_a_rough_profile_shows_no_share_of_the_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(call_us: float) -> Any:
        shapes = [[64, 64], [64, 64]]
        events = [a_call(100), event("aten::mm", 90, 1, shapes=shapes, input_dtypes=["float", "float"])]
        return profile_events(events, "cpu", monkeypatch, call_us=call_us).kernels[0]

    assert product(90.0).share is not None
    assert product(30.0).share is product(300.0).share is None


def test_on_a_gpu_the_kernels_are_what_ran_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = SimpleNamespace(name="sgemm", duration=9)
    product = event("aten::mm", 50, 5, None, [[4, 16], [16, 8]], kernels=[ran])
    seen = profile_events([a_call(), product, event("sgemm", 9, 60, device="CUDA")], "cuda", monkeypatch)
    (kernel,) = seen.kernels
    assert (kernel.name, kernel.calls) == ("sgemm", 1)
    assert kernel.seconds == pytest.approx(9e-6)
    assert kernel.flops == 2 * 4 * 16 * 8


def test_a_gpus_kernel_has_no_work_where_that_of_one_launch_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = SimpleNamespace(name="sgemm", duration=9)
    product = event("aten::mm", 50, 5, None, [[4, 16], [16, 8]], kernels=[ran])
    launches = [event("sgemm", 9, at, device="CUDA") for at in (60, 70)]
    assert profile_events([a_call(), product, *launches], "cuda", monkeypatch).kernels[0].flops is None


def test_a_mix_of_examples_is_the_mean_of_their_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [profile_events([a_call(), event("aten::exp", us, 1)], "cpu", monkeypatch) for us in (80.0, 40.0)]
    seen = kernels.average_profiles(each, (0.25, 0.75))
    assert [(k.calls, pytest.approx(k.seconds)) for k in seen.kernels] == [(1, 50e-6)]
    assert seen.busy_s == pytest.approx(50e-6)


def test_the_plain_model_is_watched_operator_by_operator() -> None:
    def call() -> None:
        x = torch.ones(4, 8) @ torch.ones(8, 2)
        for _ in range(2):
            x.sum().item()  # here
        while x.min() < 0:
            pass
        torch.ones(1, dtype=torch.int64).item()
        torch.ones(1, dtype=torch.bfloat16).item()
        (x + 1j).abs()

    seen = observe(call, "cpu")
    number = seen.waits[0]
    assert (number.times, number.place.excerpt) == (2, "x.sum().item()  # here")
    assert number.place.file == __file__
    assert [wait.reads for wait in seen.waits] == [ReadKind.SCALAR, ReadKind.BOOL, ReadKind.COUNT, ReadKind.OTHER]
    assert seen.work["aten::mm", ((4, 8), (8, 2))] == Work((32 + 16 + 8) * 4, 2 * 4 * 8 * 2)
    assert seen.complex_operators == 1


def test_a_setting_is_held_and_put_back() -> None:
    before = torch._dynamo.config.capture_scalar_outputs
    with patched(f"torch._dynamo.config.capture_scalar_outputs = {not before}"):
        assert torch._dynamo.config.capture_scalar_outputs is not before
    assert torch._dynamo.config.capture_scalar_outputs is before


@pytest.mark.parametrize("setting", ["os.environ = True", "torch._dynamo.config.x = __import__('os')", "nonsense"])
def test_only_switches_of_pytorch_are_settings(setting: str) -> None:
    with pytest.raises(ValueError, match="must be such as"), patched(setting):
        pass


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor, *, by: float = 2.0) -> torch.Tensor:
        return x * self.weight * by


def test_a_twin_shares_all_but_its_code() -> None:
    model = Scaled()
    other = copy_with_fresh_code(model)
    assert isinstance(other, Scaled)
    assert other.weight is model.weight
    assert torch.equal(other(torch.ones(2)), model(torch.ones(2)))
    assert type(other).forward.__code__ is not Scaled.forward.__code__


def test_a_function_has_a_twin_and_any_other_callable_is_its_own() -> None:
    offset = 3

    def add(x: int, *, more: int = 1) -> int:
        return x + offset + more

    other = copy_with_fresh_code(add)
    assert other(1) == 5
    assert other.__code__ is not add.__code__  # type: ignore[attr-defined]
    assert copy_with_fresh_code(len) is len
