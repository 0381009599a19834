"""Each rewrite and backend is broken once, and its verdict fails. No code is compiled for it.

Those for GPUs alone are broken on the CPU: formats and graphs have a reference there, settings have no effect, and
backends are broken in PyTorch's eager operators.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from torchwise.compile.transforms.function_graphs import products_of_few_rows
from torchwise.compile.transforms.quantization import formats
from torchwise.plan import CHOICES, Choice, Plan, Stage, Trait
from torchwise.plan.choice import load_choices, load_code
from torchwise.plan.effort import EFFORTS
from torchwise.plan.rules import find_choices
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Outcome, Verdict
from torchwise.trial import Job
from torchwise.trial.experiment import PlanCandidate, PlanExperiment
from torchwise.workload import pytree

FILE = Path(__file__).with_name("rewritten_models.py")
MODELS = {
    **dict.fromkeys(
        ("openvino", "onnxruntime", "aot-inductor", "inductor", "row_programs", "torch-tensorrt"), "linear"
    ),
    **dict.fromkeys(("int8_dynamic", "int8_weights", "int4_weights"), "linear"),
    **dict.fromkeys(("fp8_weights", "fp8_dynamic", "fp8_per_tensor"), "linear"),
    **dict.fromkeys(("compiled_rnn", "isolate_rnn"), "lstm"),
    **dict.fromkeys(("patch_matmul", "group_norm"), "convolution"),
    "tanh_gelu": "gelu",
    "no_dropout": "dropout",
    "log_softmax": "shares",
    "fft_sizes": "convolved",
    "distance_products": "distances",
    "batched_loop": "samples",
    "fused_attention": "attention",
    "math_attention": "shared_keys",
    **dict.fromkeys(("flash_attention", "cudnn_attention", "efficient_attention"), "shared_keys"),
    **dict.fromkeys(("flash_attention_3", "flash_attention_4"), "shared_keys"),
    "cudnn_benchmark": "plain_convolution",
    "products_of_few_rows": "few_rows",
    "grouped_keys": "shared_keys",
    "joined_products": "shared_inputs",
    "eager_strides": "transposed",
    "complex_to_real": "complex_numbers",
    "structure_of_arrays": "points",
    "static_form": "selected",
}
ON_GPU = {
    "fp8_weights": formats.Float8Weights,
    "fp8_dynamic": formats.Float8Dynamic,
    "fp8_per_tensor": formats.Float8PerTensor,
}
"""Formats for GPUs, of which the reference is broken on the CPU."""
UNBROKEN = {"numbers_on_gpu"}
"""A graph of a GPU must be recorded of it: `tests/gpu/test_data_dependent_gpu.py` has its wrong answers."""
OFF, FAR_OFF = 1.001, 2.0
"""Factors of wrong answers: for plans that are held to rounding, and for those that the user's limit judges."""
TOLERANCE = 0.2
COMPILED = (Stage.GRAPH, Stage.PASS)
"""Stages whose right result Inductor would have to compile."""


def list_cases() -> list[Choice]:
    known = [choice for choice in load_choices().values() if choice.realized_by]
    return [choice for choice in known if choice.field in ("backend", "transforms") and choice.value not in UNBROKEN]


def spoil(call: Callable[..., Any], factor: float) -> Callable[..., Any]:
    return lambda *args, **kwargs: pytree.map_tensors(lambda one: one * factor, call(*args, **kwargs))


class SpoilsKernels(TorchFunctionMode):
    """Spoils the answers of the operators that settings choose kernels for: attention and convolutions."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_chosen = func in (torch.nn.functional.scaled_dot_product_attention, torch.conv2d)
        return result * self.factor if is_chosen else result


def spoil_graph(graph: torch.fx.Graph, factor: float) -> None:
    output = graph.output_node()
    for node in output.all_input_nodes:
        with graph.inserting_before(output):
            output.replace_input_with(node, graph.call_function(operator.mul, (node, factor)))


def break_choice(choice: Choice, factor: float) -> Callable[..., Any]:
    """Return the function that realizes a choice, with a result that is off by a factor."""
    assert choice.realized_by is not None
    real = load_code(choice.realized_by)

    def rewrite_model(call: Any) -> Any:
        rewritten, layer = real(call)
        return rewritten, lambda inner: spoil(layer(inner), factor)

    def rewrite_graph(graph: torch.fx.Graph) -> int:
        places = real(graph)
        spoil_graph(graph, factor)
        return int(places)

    @contextlib.contextmanager
    def hold_setting() -> Iterator[None]:
        with real() if "cpu" in choice.devices else contextlib.nullcontext(), SpoilsKernels(factor):
            yield

    broken: dict[Stage | None, Callable[..., Any]] = {
        None: lambda call, _plan, **_: spoil(torch.compile(call, backend="eager"), factor),
        Stage.FORM: rewrite_model,
        Stage.MODEL: rewrite_model,
        Stage.TRACE: rewrite_graph,
        Stage.GRAPH: lambda _options: lambda graph, _inputs: spoil(graph.forward, factor),
        Stage.PASS: lambda: lambda graph: spoil_graph(graph, factor),
        Stage.SETTING: hold_setting,
    }
    return broken[choice.stage]


def interpret(call: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
    """Run Dynamo's graphs by a plan in Inductor's place, operator by operator."""

    def run(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        for choice in find_choices(plan):
            code = load_code(choice.realized_by or abs)
            if choice.stage is Stage.GRAPH:
                return code(())(graph, inputs)
            if choice.stage in (Stage.TRACE, Stage.PASS):
                assert code(graph.graph) if choice.stage is Stage.TRACE else code()(graph.graph) is None
        graph.recompile()
        return graph.forward

    torch.compiler.reset()
    return torch.compile(call, backend=run)


def verify_choice(choice: Choice) -> Verdict:
    given = choice.requires or (choice.implies if choice.stage is Stage.TRACE else ())
    plan = Plan(**{**dict(given), choice.field: (choice.value,) if choice.stage else choice.value})
    tolerance = TOLERANCE if choice.numerics.is_judged_by_user else None
    spec = WorkloadSpec(f"{FILE}:{MODELS[choice.value]}", tolerance=tolerance)
    traits = frozenset({Trait.STOCHASTIC} if MODELS[choice.value] == "dropout" else ())
    job = Job("try", spec, plan, effort=EFFORTS["quick"], traits=traits)
    trial = PlanExperiment(job, PlanCandidate(plan, interpret if given else None))
    with trial.harness.gradients():
        trial.build()
        trial.first_calls()
        return trial.verify(lambda _stage: None)


@pytest.mark.parametrize("choice", list_cases(), ids=lambda choice: choice.value)
def test_a_broken_choice_is_seen_by_its_verdict(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind := ON_GPU.get(choice.value):
        monkeypatch.setattr(kind, "MULTIPLES", {"cpu": (16, 16)})
    monkeypatch.setattr(products_of_few_rows, "MIN_BYTES", 1)
    is_here = "cpu" in choice.devices or choice.stage is not Stage.SETTING
    if choice.stage is not None and choice.stage not in COMPILED and is_here:
        right = verify_choice(choice)
        assert right.outcome is Outcome.PASS, right.reason
    broken = break_choice(choice, FAR_OFF if choice.numerics.is_judged_by_user else OFF)
    monkeypatch.setitem(CHOICES, choice.key, replace(choice, realized_by=broken, packages=(), builds=()))
    assert verify_choice(choice).outcome is Outcome.FAIL
