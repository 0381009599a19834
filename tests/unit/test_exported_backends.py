"""Compilers of exported graphs: what they take, what they refuse, and what a plan with them needs."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import textwrap
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import traceback

from live_decisions import make_decision
from torchwise import apply
from torchwise._torch import dynamo
from torchwise.compile.backends import load_backend, onnx_runtime, openvino, tensorrt
from torchwise.compile.backends.exported import compile_exported
from torchwise.compile.backends.index_checks import find_checks
from torchwise.compile.backends.whole_numbers import WIDTHS, check_whole_numbers, find_range
from torchwise.compile.compiled_plan import compile_plan
from torchwise.errors import PlanError, UnsupportedError
from torchwise.plan import CHOICES, Plan, PlanSpace, Trait
from torchwise.plan.choice import _is_installed, load_choices
from torchwise.plan.known_names import find_unusable_part
from torchwise.runtime.background.search import adapt_to_aot
from torchwise.runtime.call_guard import may_need_gradients
from torchwise.workload import Example, pytree

OPENVINO = Plan(backend="openvino")
WIDEST = range(-(2 ** WIDTHS[0]), 2 ** WIDTHS[0])
NAMES = ("aot-inductor", "onnxruntime", "openvino", "torch-tensorrt")


class Interpreter:
    """A compiler that runs the exported program operator by operator."""

    def __init__(self, *, lacks: str = "") -> None:
        self.programs: list[torch.export.ExportedProgram] = []
        self._lacks = lacks

    def __call__(self, program: torch.export.ExportedProgram, inputs: Any, outputs: Any) -> Any:
        if self._lacks and self._lacks in str(program.graph):
            raise UnsupportedError(f"it has no operation for {self._lacks}")
        self.programs.append(program)
        module = program.module()
        assert all(one.is_contiguous() for one in inputs)
        return lambda inputs: [one.clone(memory_format=torch.contiguous_format) for one in module(*inputs)]


def compile_by(call: Callable[..., Any], compiler: Any, plan: Plan = OPENVINO) -> Callable[..., Any]:
    torch.compiler.reset()
    compiled = compile_exported(call, plan, compiler)
    return torch.no_grad()(compiled)


def check_same(compiled: Callable[..., Any], plain: Callable[..., Any], *args: Any) -> None:
    with torch.no_grad():
        for _ in range(2):
            found, expected = compiled(*args), plain(*args)
            torch.testing.assert_close(pytree.tensors(found), pytree.tensors(expected), check_stride=True)


class Keeper(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.linear(x)


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "dropout": (lambda x: torch.nn.functional.dropout(x, 0.5), r"aten.dropout.default draws random numbers"),
    "noise": (lambda x: x + torch.rand_like(x), "draws random numbers"),
    "input": (lambda x: x.add_(1) * 2, r"aten.add_.Tensor writes to an input or a weight"),
    "view of input": (lambda x: (x[1:].mul_(2), x + 1)[1], "writes to an input"),
    "complex": (lambda x: torch.fft.fft(x).abs(), "computes with complex numbers"),
    "aliases": (lambda x: x.t(), "one of its outputs is a view of an input"),
    "two aliases": (lambda x: [y := x + 1, y[0]], "a view of an input or of another output"),
    "statistics": (
        lambda x: torch.nn.functional.batch_norm(x, x[0] * 0, x[0] * 0 + 1, training=True),
        "writes to its running statistics",
    ),
    "list": (lambda x: (torch._foreach_add_([x], 1), x + 1)[1], "writes to an input"),
    "expanded": (lambda x: (x + 1)[:1].expand(4, 4), "elements in the same memory"),
    "nothing": (lambda x: (x, 3), "PyTorch captured no graph|computes no tensor"),
    "region": (lambda x: with_grad(lambda: x.add_(1)) * 2, "aten.add_.Tensor writes to an input"),
    "random region": (lambda x: with_grad(lambda: x + torch.rand_like(x)) * 2, "aten.rand_like.default draws random"),
    "assertion": (
        lambda x: (torch._assert_async((x >= 0).all()), x + 1)[1],
        "aten._assert_async.default raises an error",
    ),
}


def with_grad(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.enable_grad():
        return call()


@pytest.mark.parametrize("case", REFUSED)
def test_a_graph_that_does_more_than_compute_is_refused(case: str) -> None:
    call, reason = REFUSED[case]
    compiler = Interpreter()
    with pytest.raises(UnsupportedError, match=rf"backend 'openvino' takes no part of the model: .*({reason})"):
        compile_by(call, compiler)(torch.rand(4, 4))
    assert not compiler.programs


STRIDED: dict[str, tuple[Callable[..., Any], str]] = {
    "copy in eager": (
        lambda x: [w := x * 2, w.reshape(-1).add_(1)],
        "which tensors it writes to depends on",
    ),
    "view in eager": (lambda x: [w := x * 2, w.t().reshape(-1).add_(1)], "which tensors it writes to depends on"),
    "input": (lambda x: [x.t().contiguous().add_(1), x + 1], "which tensors it writes to depends on"),
    "places": (lambda x: x.as_strided((2, 2), (1, 2)) + 1, "takes elements by their places in memory"),
    "places between": (lambda x: (x + 1).as_strided((2, 2), (1, 2)) + 1, "takes elements by their places in memory"),
}


@pytest.mark.parametrize("case", STRIDED)
def test_what_depends_on_strides_is_refused_where_the_code_has_others(case: str) -> None:
    call, reason = STRIDED[case]
    compiler = Interpreter()
    with pytest.raises(UnsupportedError, match=rf"takes no part of the model: .*({reason})"):
        compile_by(call, compiler)(torch.rand(3, 4).t())
    assert not compiler.programs


def test_elements_between_those_of_a_tensor_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="takes elements by their places in memory"):
        compile_by(lambda x: (x * 2)[:, 1:].as_strided((2, 2), (1, 4)) + 1, Interpreter())(torch.rand(3, 4))


def test_strides_that_change_no_write_are_taken() -> None:
    """So is a network in channels_last whose activations write to their inputs."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(x * 2 - 1).flatten(1) + 1

    compiler = Interpreter()
    check_same(compile_by(call, compiler), call, torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
    check_same(compile_by(rows := lambda x: (x + 1).as_strided((2, 4), (4, 1)), compiler), rows, torch.rand(3, 4))
    assert len(compiler.programs) == 2


def test_a_write_to_a_buffer_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="writes to an input or a weight"):
        compile_by(Keeper().eval(), Interpreter())(torch.rand(2, 4))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: torch.nn.functional.dropout(x, 0.5, training=False) + 1,
        lambda x: torch.nn.functional.scaled_dot_product_attention(x, x, x),
        lambda x: (x + 1).relu_(),
    ],
)
def test_what_draws_nothing_and_writes_to_its_own_is_taken(call: Callable[..., Any]) -> None:
    compiler = Interpreter()
    check_same(compile_by(call, compiler), call, torch.randn(1, 4, 4))
    assert len(compiler.programs) == 1


def test_outputs_keep_their_place_strides_and_identity() -> None:
    weight = torch.nn.Linear(4, 4).eval()

    def call(x: torch.Tensor, unused: torch.Tensor) -> Any:
        y = x + 1
        return {"in": x, "same": [y, y], "n": 3, "other": unused, "turned": (y * 2).t()}

    x, unused = torch.randn(3, 4), torch.randn(2)
    compiler = Interpreter()
    compiled = compile_by(call, compiler)
    check_same(compiled, call, x, unused)
    found = compiled(x, unused)
    assert found["in"] is x
    assert found["other"] is unused
    assert found["same"][0] is found["same"][1]
    assert found["n"] == 3
    assert len(compiler.programs[0].graph_signature.user_inputs) == 1
    check_same(compile_by(weight, compiler), weight, x.t().contiguous().t())


def test_what_it_lacks_runs_in_eager_between_the_parts_that_it_takes() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x) + 1
        torch._dynamo.graph_break()
        return torch.erf(x) * 2

    compiler = Interpreter(lacks="aten.erf")
    check_same(compile_by(call, compiler), call, torch.randn(3, 4))
    assert len(compiler.programs) == 1
    with pytest.raises(UnsupportedError, match=r"takes no part of the model: it has no operation for aten.erf"):
        compile_by(torch.erf, Interpreter(lacks="aten.erf"))(torch.randn(3))


def test_one_compilation_serves_all_sizes() -> None:
    net = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), torch.nn.BatchNorm1d(4), torch.nn.AdaptiveAvgPool1d(1)).eval()

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x) * x.shape[-1]

    call, compiler = Scaled().eval(), Interpreter()
    compiled = compile_by(call, compiler, replace(OPENVINO, shapes="dynamic"))
    for batch, length in ((2, 8), (3, 9), (5, 17)):
        check_same(compiled, call, torch.randn(batch, 3, length))
    assert len(compiler.programs) == 1, "the sizes are taken from the tensors"


def test_a_session_is_freed_with_the_plan() -> None:
    class Session:
        def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
            return [one * 2 for one in inputs]

    sessions = list[weakref.ref[Session]]()

    def compile_program(*_: Any) -> Session:
        session = Session()
        sessions.append(weakref.ref(session))
        return session

    compiled = compile_by(lambda x: x * 2, compile_program)
    compiled(torch.ones(3))
    assert sessions[0]() is not None
    del compiled
    gc.collect()
    assert sessions[0]() is None


# Functions, methods and plug-ins.


def test_frozen_weights_of_a_function_or_a_method_are_refused() -> None:
    model, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)
    with pytest.raises(UnsupportedError, match="If this is a function, pass the module that has the weights"):
        compile_by(lambda x: model(x), Interpreter())(x)
    with pytest.raises(UnsupportedError, match=r"this is a method of one \(forward\): pass a module whose forward"):
        compile_whole(model.forward, OPENVINO, x)


def test_a_function_keeps_its_gradients() -> None:
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    trains = Plan(backend="inductor")
    assert may_need_gradients(None, OPENVINO, (x,), {})
    assert may_need_gradients(None, replace(OPENVINO, backend="aot-inductor"), (x,), {})
    assert not may_need_gradients(None, trains, (x,), {})
    assert not may_need_gradients(model.requires_grad_(False), OPENVINO, (x,), {})


def test_a_plug_in_for_all_sizes_need_not_know_which_vary(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = replace(load_choices()["backend", "openvino"], realized_by=lambda call, _plan: call)
    monkeypatch.setitem(CHOICES, plain.key, plain)
    example, plan = Example((torch.ones(2, 4),)), replace(OPENVINO, shapes="dynamic")
    model = torch.nn.Identity().eval()
    lines = [f"[0][0] float32[{n}, 4] (4, 1)" for n in (2, 3)]
    call = compile_plan(model, plan, example, device="cpu", mode="inference", inputs=lines).call
    assert torch.equal(call(torch.ones(3, 4)), torch.ones(3, 4))


def test_a_refusal_tells_which_parts_of_the_plan_it_is_about() -> None:
    def refuse(*about: str) -> Any:
        def compile_program(*_: Any) -> Any:
            raise UnsupportedError("it cannot", about)

        return compile_program

    for about in ((), ("backend",)):
        with pytest.raises(UnsupportedError, match="takes no part of the model") as found:
            compile_by(lambda x: x + 1, refuse(*about))(torch.ones(2))
        assert found.value.about == (about or ("backend", "scope", "transforms", "precision", "shapes"))


# Plans.


def test_a_plan_with_settings_of_another_compiler_is_refused() -> None:
    with pytest.raises(PlanError, match="mode has 'max-autotune-no-cudagraphs', which is for inductor, but backend is"):
        Plan(backend="openvino", mode="max-autotune-no-cudagraphs")
    with pytest.raises(PlanError, match=r"options has \('freezing', True\), which is for inductor"):
        Plan(backend="onnxruntime", options=(("freezing", True),))
    with pytest.raises(PlanError, match="transforms has 'complex_to_real', which is for inductor"):
        Plan(backend="aot-inductor", transforms=("complex_to_real",))
    with pytest.raises(PlanError, match="backend 'torch-tensorrt' compiles for one shape: shapes must be static"):
        Plan(backend="torch-tensorrt", shapes="dynamic")
    for name in NAMES:
        with pytest.raises(PlanError, match=f"backend '{name}' takes no graph with autocast: use bf16"):
            Plan(backend=name, precision="autocast_bf16")
    with pytest.raises(PlanError, match="is of a training step, but one call captured, bf16 and frozen weights"):
        Plan(backend="openvino", optimizer="fused")
    with pytest.raises(UnsupportedError, match=r"mode and options are Inductor's: leave them out"):
        compile_exported(abs, Plan(backend="openvino", options=(("x", 1),)), Interpreter())


@pytest.mark.parametrize("name", NAMES)
def test_random_models_are_closed_to_other_compilers_and_background_code_is_inductors(name: str) -> None:
    choice = load_choices()["backend", name]
    space = PlanSpace(choice.devices[0], "inference", frozenset({Trait.STOCHASTIC}), effort="thorough")
    assert "draws random numbers" in (space.bars(choice) or "")
    assert adapt_to_aot(Plan(backend=name, threads=1 if "cpu" in choice.devices else None)).backend == "inductor"


def test_a_missing_package_closes_the_choice_and_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = replace(load_choices()["backend", "openvino"], packages=("sys", "not_there", "not_here"))
    monkeypatch.setitem(CHOICES, choice.key, choice)
    lacks = "it needs not_there, which is not installed: pip install not_there not_here"
    space = PlanSpace("cpu", "inference", frozenset(), effort="thorough")
    assert space.excludes(choice) == lacks
    assert choice not in space.choices()
    with pytest.raises(UnsupportedError, match=f"^backend is 'openvino', but {lacks}$"):
        load_backend("openvino")
    model, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)
    fast = apply(model, make_decision(model, OPENVINO, x))
    with torch.no_grad():
        assert torch.equal(fast(x), model(x))
    assert any(lacks in sentence for sentence in fast.statistics.sentences.values())


def test_a_folder_is_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mere_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not _is_installed("mere_folder")
    assert _is_installed("torch")


def test_a_package_that_is_not_built_for_a_device_is_missing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is exported to find that out."""
    monkeypatch.setattr("torchwise.plan.choice._has_file", lambda package, _pattern: package != "onnxruntime")
    monkeypatch.setattr("torchwise.plan.choice._is_installed", lambda _package: True)
    choice = load_choices()["backend", "onnxruntime"]
    lacks = "this onnxruntime is not built for cuda: pip install onnxruntime-gpu"
    spaces = {device: PlanSpace(device, "inference", frozenset()) for device in ("cpu", "cuda")}
    assert spaces["cuda"].excludes(choice) == lacks
    assert spaces["cpu"].excludes(choice) != lacks
    with pytest.raises(UnsupportedError, match=f"backend is 'onnxruntime', but {lacks}"):
        load_backend("onnxruntime", "cuda")


def test_a_missing_package_is_named_with_its_own_part(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = replace(load_choices()["transforms", "eager_strides"], packages=("not_there",))
    monkeypatch.setitem(CHOICES, choice.key, choice)
    found = find_unusable_part(Plan(backend="inductor", transforms=("eager_strides",)))
    assert (
        found == "transforms has 'eager_strides', but it needs not_there, which is not installed: pip install not_there"
    )


# OpenVINO.


def test_openvino_keeps_the_precision_of_the_model_and_the_threads_of_pytorch() -> None:
    tensors = [torch.ones(1), torch.ones(1, dtype=torch.int64)]
    config = openvino._make_config(tensors)
    assert config["INFERENCE_PRECISION_HINT"] == "f32"
    assert config["INFERENCE_NUM_THREADS"] == torch.get_num_threads()
    assert openvino._make_config([one.bfloat16() for one in tensors])["INFERENCE_PRECISION_HINT"] == "bf16"
    assert openvino._make_config([tensors[0], tensors[0].half()])["INFERENCE_PRECISION_HINT"] == "f32"
    assert openvino._make_config(tensors[1:])["INFERENCE_PRECISION_HINT"] == "f32"


@pytest.mark.parametrize("shapes", ["static", "dynamic"])
def test_openvino_leaves_an_input_alone_that_it_returns_a_clone_of(shapes: str) -> None:
    """It would take the memory of the answer for that of the input, and write there."""

    def call(x: torch.Tensor, y: torch.Tensor) -> Any:
        return y.clone(), x.clone(), torch.tanh(x), y.unsqueeze(0).clone(), x + 0

    x, y = torch.rand(3, 4), torch.arange(12).view(3, 4)
    before = x.clone(), y.clone()
    check_same(compile_whole(call, replace(OPENVINO, shapes=shapes), x, y), call, x, y)
    assert torch.equal(x, before[0])
    assert torch.equal(y, before[1])


class Tokens(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(9, 4)
        self.lstm = torch.nn.LSTM(4, 4, batch_first=True)
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, ids: torch.Tensor, bias: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.norm(self.lstm(self.embedding(ids))[0])
        return {"hidden": hidden.transpose(1, 2) + 1, "best": hidden.argmax(-1), "sum": ids.sum() + bias}


def compile_whole(model: Any, plan: Plan, *args: torch.Tensor) -> Callable[..., Any]:
    return torch.no_grad()(compile_plan(model, plan, Example(args), device="cpu", mode="inference").call)


def test_a_signal_still_finds_its_handler_once_plans_of_openvino_are_gone() -> None:
    """A Python handler runs on the stack that its thread has for signals, which must not be one that was freed."""
    code = textwrap.dedent("""
        import gc, signal, torch
        from torchwise.compile.compiled_plan import compile_plan
        from torchwise.plan import Plan
        from torchwise.workload import Example
        torch.set_grad_enabled(False)
        example = Example((torch.ones(2, 4),))
        plan = Plan(backend="openvino")
        calls = [compile_plan(torch.nn.Linear(4, 4), plan, example, device="cpu", mode="inference") for _ in range(3)]
        for one in calls:
            one.call(*example.args)
        while calls:
            del calls[0], one
            torch.compiler.reset()
            gc.collect()
            one = None
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                print("interrupted")
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout.split()) == (0, ["interrupted"] * 3), done.stderr[-2000:]


def test_openvino_compiles_an_lstm_with_whole_numbers_and_turned_outputs() -> None:
    torch.manual_seed(0)
    model, args = Tokens().eval(), (torch.randint(0, 9, (2, 5)), torch.tensor(3))
    compiled = compile_whole(model, OPENVINO, *args)
    check_same(compiled, model, *args)
    with pytest.raises(UnsupportedError, match=rf"from {2**30} to {2**30}, and openvino can take {-(2**30)} to"):
        compiled(args[0], torch.tensor(2**30))
    for wrong in (9, -1):  # OpenVINO would read zeros, and PyTorch raises an error
        with pytest.raises(UnsupportedError, match="and openvino can take 0 to 8 for it"):
            compiled(args[0] * 0 + wrong, args[1])


def test_openvino_compiles_a_network_of_convolutions_for_all_sizes_and_in_bfloat16() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(2)
    model = torch.nn.Sequential(*layers).eval()
    compiled = compile_whole(model, replace(OPENVINO, shapes="dynamic"), torch.randn(2, 3, 8, 8))
    for size in (8, 6):
        check_same(compiled, model, torch.randn(2, 3, size, size))
    narrow, x = torch.nn.Linear(4, 4).eval().bfloat16(), torch.randn(2, 4).bfloat16()
    found = compile_whole(narrow, OPENVINO, x)(x)
    torch.testing.assert_close(found, narrow(x).detach(), atol=0.02, rtol=0.02)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (torch.special.bessel_j0, "OpenVINO has no operation for aten.special_bessel_j0.default"),
        (lambda x: x.double() + 1, "OpenVINO has no torch.float64 on the CPU"),
    ],
)
def test_openvino_names_what_it_lacks(call: Callable[..., Any], reason: str) -> None:
    x = torch.rand(3)
    with pytest.raises(UnsupportedError, match=rf"takes no part of the model: {reason}"):
        compile_whole(lambda x: call(x), OPENVINO, x)(x)


def test_what_openvino_cannot_convert_is_named_whatever_it_says_first() -> None:
    told = "Check 'false' failed at unconverted_ops_report.cpp:151:\n\nConversion is failed for: aten._embedding_bag\n"
    found = openvino._LACKS.search(told)
    assert found is not None
    assert found[1] == "aten._embedding_bag"


def take_shifted(x: torch.Tensor) -> torch.Tensor:
    return (torch.cumsum(x.ne(1).int(), 1).type_as(x) * x.ne(1)).long() + 1


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x * 100_000,
        lambda x: (x * 2654435761) % 97,
        lambda x: x.cumsum(-1),
        lambda x: x.sum(),
        lambda x: x.prod(),
        lambda x: x**2,
        lambda x: x << 8,
        lambda x: (x.float() * 3).long(),
        lambda x: x + x + x,
        lambda x: (x.int() * 1000).long() * 2,
        lambda x: x.masked_fill(x > 1, -(2**40)),
    ],
)
def test_whole_numbers_that_may_need_64_bits_are_refused(call: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedError, match="its whole numbers may need 64 bits"):
        check_whole_numbers(export(call, torch.randint(0, 9, (2, 5))), WIDEST)


@pytest.mark.parametrize(
    "call",
    [
        take_shifted,
        lambda x: x + 2,
        lambda x: torch.min(x, torch.full_like(x, 9)) + 1,
        lambda x: x - x,
        lambda x: (x > 3).sum(-1),
        lambda x: torch.arange(x.shape[1]) * 4 + x * 0,
        lambda x: x.float().argmax(-1) + 1,
        lambda x: x.float().topk(2).indices,
        lambda x: torch.where(x > 1, x, 0).view(-1)[1:],
        lambda x: (x.int() * 1000).float(),
        lambda x: BAG(x) + 1,
        lambda x: torch.nn.functional.max_pool1d(x.float(), 2, return_indices=True)[1] + 1,
        lambda x: torch.nn.functional.adaptive_max_pool1d(x.float(), 2, return_indices=True)[1] + 1,
    ],
)
def test_small_whole_numbers_are_taken(call: Callable[..., Any]) -> None:
    check_whole_numbers(export(call, torch.randint(0, 9, (2, 5))), WIDEST)


def test_inputs_may_hold_fewer_numbers_where_sums_of_them_need_more_bits() -> None:
    mask = torch.ones(2, 5, dtype=torch.int64)
    program = export(lambda mask: mask.cumsum(1) * mask - 1, mask)
    assert find_range(program, [mask]) == range(-(2**8), 2**8)
    assert find_range(export(lambda mask: mask.cumsum(1), mask), [mask]) == range(-(2**24), 2**24)
    assert find_range(export(lambda mask: mask + 1, mask), [mask]) == WIDEST
    with pytest.raises(UnsupportedError, match="its whole numbers may need 64 bits"):
        find_range(program, [mask * 2**10])
    with pytest.raises(UnsupportedError, match="its whole numbers may need 64 bits"):
        find_range(export(lambda mask: mask**9, mask), [mask])


def test_an_empty_cache_is_left_out_of_a_concatenation() -> None:
    empty = torch.empty(0)
    compiler = Interpreter()
    compiled = compile_by(lambda x: torch.cat([empty, x * 2, x], dim=-2), compiler)
    check_same(compiled, lambda x: torch.cat([empty, x * 2, x], dim=-2), torch.randn(2, 3, 4))
    (node,) = compiler.programs[0].graph.find_nodes(op="call_function", target=torch.ops.aten.cat.default)
    assert len(node.args[0]) == 2


def test_an_empty_part_of_a_wider_dtype_stays() -> None:
    """PyTorch counts its dtype, so that the sum is not one of halves."""
    empty, compiler = torch.empty(0), Interpreter()

    def add_up(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([empty, x]).sum(0)

    compiled, x = compile_by(lambda x: add_up(x), compiler), torch.full((3000, 2), 30.0, dtype=torch.float16)
    with torch.no_grad():
        found, expected = compiled(x), add_up(x)
    assert found.dtype is expected.dtype is torch.float32
    assert torch.equal(found, expected)


def test_openvinos_outputs_lie_on_the_cpu_whatever_the_default_device_is() -> None:
    class Request:
        def __getattr__(self, name: str) -> Any:
            return lambda *args, **kwargs: None

    kind = types.SimpleNamespace(get_type_name=lambda: "f32")
    port = types.SimpleNamespace(get_element_type=lambda: kind, get_names=lambda: {"y"})
    whole: Any = types.SimpleNamespace(inputs=[], outputs=[port], create_infer_request=Request)
    session = openvino._Session(whole, [torch.ones(2)])
    with torch.device("meta"):
        (answer,) = session([])
    assert answer.device.type == "cpu"


# Indices, sizes and memory.


def export(call: Callable[..., Any], *args: torch.Tensor) -> torch.export.ExportedProgram:
    class Whole(torch.nn.Module):
        def forward(self, *args: torch.Tensor) -> Any:
            return call(*args)

    return torch.export.export(Whole(), args)


TABLE = torch.nn.Embedding(9, 4)
BAG = torch.nn.EmbeddingBag(9, 4)


@pytest.mark.parametrize(
    "call",
    [
        lambda ids, x: TABLE(ids),
        lambda ids, x: TABLE(ids.view(-1, 2).long().clone()),
        lambda ids, x: BAG(ids),
        lambda ids, x: x.index_select(0, ids[0]),
        lambda ids, x: x.gather(0, ids.expand(2, 4)),
        lambda ids, x: x[ids],
        lambda ids, x: x[None][:, ids.unsqueeze(0)],
        lambda ids, x: TABLE(ids[:, 1:]),
    ],
)
def test_indices_beyond_a_table_are_refused(call: Callable[..., Any]) -> None:
    ids, x = torch.tensor([[8, 1, 2, 3], [4, 5, 6, 7]], dtype=torch.int32), torch.randn(9, 4)
    ids = ids.long()
    checks = find_checks(export(call, ids, x), None)
    for check in checks:
        check([ids, x], "it")
    for wrong in (9, -1):
        bad = ids.clone()
        bad[0, 1] = wrong
        with pytest.raises(UnsupportedError, match="and it can take 0 to 8 for it"):
            [check([bad, x], "it") for check in checks]


def test_a_part_of_an_input_is_an_index_by_itself() -> None:
    other = torch.nn.Embedding(100, 4)
    checks = find_checks(export(lambda ids: TABLE(ids[:, 0]) + other(ids[:, 1]), torch.zeros(2, 2).long()), None)
    for check in checks:
        check([torch.tensor([[8, 99], [0, 50]])], "it")
    with pytest.raises(UnsupportedError, match="0 to 8 for it"):
        [check([torch.tensor([[9, 99], [0, 50]])], "it") for check in checks]


def test_indices_in_a_region_or_a_branch_are_refused() -> None:
    """An index beyond the table would get an answer there, and no error."""
    table = torch.randn(9, 4)

    def choose(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x, ids: table[ids] + x, lambda x, ids: table[ids] * x, (x, ids))

    for call in (choose, lambda x, ids: with_grad(lambda: table[ids]) + x):
        compiled = compile_by(call, Interpreter(), Plan(backend="onnxruntime"))
        with pytest.raises(UnsupportedError, match="it has indices inside a branch or a region"):
            compiled(torch.ones(4), torch.tensor([1, 2]))


def test_all_compilers_but_inductors_check_indices() -> None:
    compiled = compile_by(TABLE, Interpreter(), Plan(backend="onnxruntime"))
    with pytest.raises(UnsupportedError, match="onnxruntime can take 0 to 8"):
        compiled(torch.tensor([8])) is None or compiled(torch.tensor([-1]))


def test_code_for_one_size_is_refused_where_sizes_vary() -> None:
    def specialize(program: torch.export.ExportedProgram, inputs: Any, outputs: Any) -> Any:
        (node,) = program.graph.find_nodes(op="placeholder")
        int(node.meta["val"].shape[0])
        return lambda inputs: [inputs[0] + 1]

    dynamic = replace(OPENVINO, shapes="dynamic")
    with pytest.raises(UnsupportedError, match=r"its code holds only for sizes with .*: keep shapes static"):
        compile_by(lambda x: x + 1, specialize, dynamic)(torch.ones(5, 3))


# Constants.


CONSTANTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda y: y * torch.tensor([1.0, 2.0, 3.0]),
    "of a dtype": lambda y: y * torch.tensor([1, 2, 3], dtype=torch.float32, device=y.device),
    "index": lambda y: y[:, torch.tensor([0, 2])],
    "new_tensor": lambda y: y + y.new_tensor([[1.0], [2.0]]),
    "as_tensor": lambda y: y * torch.as_tensor([1.0, 2.0, 3.0]),
    "number": lambda y: torch.where(y > 0, y, torch.tensor(-1.5)),
    "arange": lambda y: y * torch.arange(3) + torch.arange(0.0, 1.5, 0.5),
    "linspace": lambda y: y * torch.linspace(0, 1, 3),
    "full": lambda y: y * torch.full((3,), 2.0),
    "answer": lambda y: (y + 1, torch.tensor([1.0, 2.0])),
    "written": lambda y: y * torch.tensor([1.0, 2.0, 3.0]).add_(1),
    "mask": lambda y: y.masked_fill(torch.ones(3, 3).tril().bool()[1], 0.0),
}


def use_all_constants(y: torch.Tensor) -> Any:
    return [use(y) for use in CONSTANTS.values()]


class WithConstants(torch.nn.Module):
    def __init__(self, use: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.use = torch.nn.Linear(3, 3), use

    def forward(self, x: torch.Tensor) -> Any:
        return self.use(self.layer(x))


@pytest.mark.parametrize("use", CONSTANTS)
def test_constants_inside_a_forward_are_part_of_the_code(use: str) -> None:
    model, x, compiler = WithConstants(CONSTANTS[use]).eval(), torch.randn(2, 3), Interpreter()
    check_same(compile_by(model, compiler), model, x)
    assert len(compiler.programs) == 1


@pytest.mark.parametrize("name", ["openvino", pytest.param("onnxruntime", marks=pytest.mark.slow)])
def test_real_compilers_take_constants_inside_a_forward(name: str, caplog: pytest.LogCaptureFixture) -> None:
    model, x = WithConstants(use_all_constants).eval(), torch.randn(2, 3)
    with caplog.at_level(logging.INFO, "torchwise"):
        check_same(compile_whole(model, Plan(backend=name), x), model, x)
    assert "leaves a part" not in caplog.text


# ONNX Runtime, AOTInductor and TensorRT.


def test_onnx_runtime_names_what_it_lacks() -> None:
    x = torch.rand(3)
    level = logging.getLogger("torch.onnx").level
    with pytest.raises(UnsupportedError, match=r"ONNX has no operation for prims.bessel_j0"):
        compile_whole(lambda x: torch.special.bessel_j0(x), Plan(backend="onnxruntime"), x)(x)
    assert logging.getLogger("torch.onnx").level == level


@pytest.mark.slow
def test_onnx_runtime_answers_at_any_size() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU()).eval()
    compiled = compile_whole(model, Plan(backend="onnxruntime", shapes="dynamic"), torch.randn(2, 4))
    for rows in (2, 5):
        check_same(compiled, model, torch.randn(rows, 4))


def test_onnx_runtime_needs_its_cuda_provider_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = [types.SimpleNamespace(device=torch.device("cuda", 1))]
    cpu = [types.SimpleNamespace(device=torch.device("cpu"))]
    providers = ["CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: providers)
    assert onnx_runtime._choose_provider(cpu) == "CPUExecutionProvider"
    with pytest.raises(UnsupportedError, match="this onnxruntime has no CUDA provider: pip install onnxruntime-gpu"):
        onnx_runtime._choose_provider(gpu)
    with pytest.raises(UnsupportedError, match="needs all inputs and outputs on the CPU, or on one GPU"):
        onnx_runtime._choose_provider([*gpu, *cpu])
    providers.append("CUDAExecutionProvider")
    assert onnx_runtime._choose_provider(gpu) == ("CUDAExecutionProvider", {"device_id": 1, "use_tf32": 0})


@pytest.mark.slow
def test_aot_inductor_heeds_changed_weights_and_answers_in_eagers_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    # For one library, headers compiled ahead and quick code cost ten seconds more than they save.
    monkeypatch.setattr("torch._inductor.config.aot_inductor.precompile_headers", False)
    monkeypatch.setattr("torch._inductor.config.aot_inductor.compile_wrapper_opt_level", "O0")
    model, x = torch.nn.Linear(4, 4).eval(), torch.randn(2, 4)

    def call(x: torch.Tensor) -> torch.Tensor:
        return model(x).t()

    compiled = compile_whole(call, Plan(backend="aot-inductor"), x)
    check_same(compiled, call, x)
    with torch.no_grad():
        model.weight.mul_(2)
    check_same(compiled, call, x)


def test_tensorrt_is_called_in_the_models_own_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def compile(program: Any, **options: Any) -> Any:
        given.update(options, program=program)
        return lambda x: x.t()

    monkeypatch.setitem(
        sys.modules, "torch_tensorrt", types.SimpleNamespace(dynamo=types.SimpleNamespace(compile=compile))
    )
    on_gpu: Any = types.SimpleNamespace(device=torch.device("cuda"))
    run = tensorrt._compile_program("a program", [on_gpu], [])  # type: ignore[arg-type]
    assert given == {"program": "a program", "arg_inputs": (on_gpu,), "use_explicit_typing": True, "disable_tf32": True}
    (answer,) = run([torch.ones(2, 3)])
    assert answer.shape == (3, 2)
    assert answer.is_contiguous()
    with pytest.raises(UnsupportedError, match="TensorRT needs all inputs on an NVIDIA GPU, but one is on cpu"):
        tensorrt._compile_program("a program", [torch.ones(1)], [])  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error::FutureWarning")
def test_exporting_warns_of_nothing_that_is_pytorch_s_own() -> None:
    """A user of a plan can make nothing of it. Where warnings are errors, the plan would fail."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    compiler = Interpreter()

    def compile_program(program: torch.export.ExportedProgram, inputs: Any, outputs: Any) -> Any:
        return compiler(program.run_decompositions(), inputs, outputs)  # which copies what PyTorch warns of

    check_same(compile_by(model, compile_program), model, torch.randn(2, 4))
    assert compiler.programs


@pytest.mark.skipif(not hasattr(traceback, "annotate"), reason="this PyTorch keeps no such notes")
def test_calls_of_other_threads_end_well_while_one_exports() -> None:
    with dynamo.while_exporting():
        other = traceback.annotate({"of": "another thread"})
        other.__enter__()
        traceback.current_meta.pop("custom")  # as the export does, which puts its own dict back
        other.__exit__(None, None, None)
    assert not traceback.current_meta.get("custom")
