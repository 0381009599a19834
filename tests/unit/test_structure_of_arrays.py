"""Points that are read again and again are laid out coordinate by coordinate, for that reader alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from torchwise._torch import inductor
from torchwise._torch.private_name import PrivateName
from torchwise.compile import compile_plan
from torchwise.compile.transforms import structure_of_arrays
from torchwise.compile.transforms.structure_of_arrays import graph_pass, lay_out, reads_across
from torchwise.errors import NoEffectError, UnsupportedError
from torchwise.plan import EAGER, Plan, PlanSpace
from torchwise.plan.numerics import Numerics
from torchwise.trial.inspection import _trace_operators
from torchwise.verify import Subject, verify
from torchwise.workload import Example
from torchwise.workload.identity import describe_example
from torchwise.zoo import load

PLAN = Plan(backend="inductor", transforms=("structure_of_arrays",))
SUB = torch.ops.aten.sub.Tensor
POINTS = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
OTHERS = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))


def distances(points: Tensor, others: Tensor) -> Tensor:
    return (points[:, None] - others).square().sum(dim=-1)


def subtract_coordinates(points: Tensor, others: Tensor) -> Tensor:
    return (points[:, 0][:, None] - others[:, 0]) * (points[:, 2, None] - others[:, 2])


def subtract_in_batches(points: Tensor, others: Tensor) -> Tensor:
    return points - others.view(8, 1, 3)


def subtract_and_reuse(points: Tensor, others: Tensor) -> tuple[Tensor, ...]:
    seen = points[:, None]
    return seen - others, seen.sum(0), torch.as_strided(points, (40,), (2,)).clone()


def graph_of(call: Callable[..., Any], *inputs: Tensor, mode: str = "fake") -> torch.fx.GraphModule:
    """Trace operators with Inductor's companion for each: the fake tensor of its result."""
    traced: torch.fx.GraphModule = make_fx(call, tracing_mode=mode)(*inputs)
    return traced


def collect_forced_layouts(graph: torch.fx.GraphModule) -> list[Tensor]:
    found = [node for node in graph.graph.nodes if "force_stride_order" in str(node.target)]
    assert all(node.meta["val"].stride() == tuple(node.args[1]) for node in found)
    return [node.meta["val"] for node in found]


# ---- memory that is read across


@pytest.mark.parametrize(
    ("tensor", "times", "answer"),
    [
        (POINTS[:, None], 4, True),
        (POINTS[:, None], 3, False),
        (POINTS[:63, None], 8, False),  # no loop over them is worth vectors
        (POINTS[:64, None], 8, True),
        (POINTS[:, 1], 8, True),  # one coordinate, three apart
        (torch.randn(80, 2), 8, True),
        (torch.randn(80, 8), 8, True),
        (torch.randn(80, 9), 8, False),
        (torch.randn(80, 1), 8, False),
        (torch.randn(3, 80).T, 8, False),  # is a structure of arrays
        (POINTS[:, None].expand(80, 7, 3), 7, True),  # only elements in memory are counted
        (POINTS[:, None].expand(80, 3, 3), 3, False),
        (torch.tensor(1.0), 640, False),
        (torch.empty(80, 0, 3), 8, False),
    ],
)
def test_short_rows_that_are_read_again(tensor: Tensor, times: int, answer: bool) -> None:
    storage = tensor[:, 0] if tensor.dim() == 3 and not tensor.stride(1) else tensor
    assert reads_across(SUB, tensor, torch.empty(storage.numel() * times)) is answer


def test_what_is_no_pointwise_operator_on_strided_tensors_reads_nothing_across() -> None:
    result = torch.empty(80 * 3 * 8)
    assert reads_across(SUB, POINTS, result)
    assert not reads_across(torch.ops.aten.cumsum.default, POINTS, result)
    assert not reads_across(len, POINTS, result)
    assert not reads_across(SUB, POINTS.to_sparse(), result)
    assert not reads_across(SUB, POINTS, (result,))
    assert not reads_across(SUB, 3, result)


@pytest.mark.parametrize("call", [distances, subtract_coordinates, subtract_in_batches])
def test_it_is_a_trait_of_a_program(call: Callable[..., Any]) -> None:
    assert "short_rows" in _trace_operators(lambda: call(POINTS, OTHERS))[0]
    assert "short_rows" not in _trace_operators(lambda: call(POINTS[:40], OTHERS))[0]
    assert "short_rows" not in _trace_operators(lambda: call(POINTS.T.contiguous().T, OTHERS))[0]


# ---- the graph


@pytest.mark.parametrize("call", [distances, subtract_coordinates, subtract_in_batches, subtract_and_reuse])
def test_the_graph_reads_arrays_and_answers_the_same(call: Callable[..., Any]) -> None:
    graph = graph_of(call, POINTS, OTHERS)
    assert lay_out(graph.graph) == 1
    assert [tensor.stride() for tensor in collect_forced_layouts(graph)] == [(1, 80)], "once, however often it is read"
    graph.graph.lint()
    graph.recompile()
    torch.testing.assert_close(graph(POINTS, OTHERS), call(POINTS, OTHERS), rtol=0, atol=0)


def test_dimensions_ahead_of_the_rows_keep_their_order() -> None:
    points = POINTS.view(2, 40, 3).repeat(1, 4, 1)
    graph = graph_of(lambda x: x[:, None] - torch.zeros(9, 1, 1), points)
    assert lay_out(graph.graph) == 1
    (tensor,) = collect_forced_layouts(graph)
    assert tensor.shape == (2, 160, 3)
    assert tensor.stride() == (160, 1, 320)


def test_rows_with_something_between_them_are_laid_out_too() -> None:
    graph = graph_of(distances, torch.randn(80, 4)[:, :3], OTHERS)
    assert lay_out(graph.graph) == 1
    assert [tensor.stride() for tensor in collect_forced_layouts(graph)] == [(1, 80)]


def test_what_is_computed_inside_is_laid_out_too() -> None:
    graph = graph_of(lambda x, y: (x.tanh()[:, None] - y).sum(-1), POINTS, OTHERS)
    assert lay_out(graph.graph) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x + 1,
        lambda x: x[:, None].sum(-1),
        lambda x: x[:40, None] - x[:8],
        lambda x: x.T.contiguous()[:, :, None] - x[0, 0].expand(3, 80, 9),
        lambda x: x.view(-1)[::3][:, None] - x[0, 0].expand(80, 9),  # three apart, but no rows
        lambda x: x.view(1, 240)[:, ::3, None] - x[0, 0].expand(1, 80, 9),  # rows, but long ones
    ],
    ids=["once", "no pointwise operator", "few", "arrays already", "no rows", "long rows"],
)
def test_what_would_gain_nothing_is_left_as_it_is(call: Callable[..., Any]) -> None:
    graph = graph_of(call, POINTS)
    before = graph.code
    assert lay_out(graph.graph) == 0
    graph.recompile()
    assert graph.code == before


def test_shapes_that_are_not_known_are_left_as_they_are() -> None:
    assert lay_out(graph_of(distances, POINTS, OTHERS, mode="symbolic").graph) == 0


# ---- the door


def test_a_graph_that_is_not_changed_is_told_and_code_from_a_cache_is_not_blamed() -> None:
    door = graph_pass()
    with door.assert_applied():
        pass  # nothing was compiled: it was found compiled
    unchanged = graph_of(torch.tanh, POINTS)
    with (
        pytest.raises(
            NoEffectError, match="structure_of_arrays changes nothing here: no graph reads rows of 2 to 8"
        ) as refused,
        door.assert_applied(),
    ):
        door(unchanged.graph)
    assert refused.value.part == ("transforms", "structure_of_arrays")
    with door.assert_applied():
        door(unchanged.graph)
        door(graph_of(distances, POINTS, OTHERS).graph)


def test_compiled_code_is_kept_under_the_text_of_the_pass(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = graph_pass().uuid()
    assert before == graph_pass().uuid()
    other = tmp_path / "other.py"
    other.write_text("another text")
    monkeypatch.setattr(structure_of_arrays, "__file__", str(other))
    assert graph_pass().uuid() != before


def test_a_version_without_the_door_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    graph_pass.cache_clear()
    monkeypatch.setattr(inductor, "GRAPH_PASS", PrivateName("torch._inductor.custom_graph_pass", "Missing"))
    with pytest.raises(
        UnsupportedError, match=r"structure_of_arrays needs torch\._inductor\.custom_graph_pass\.Missing"
    ):
        graph_pass()


def test_a_pass_of_the_program_itself_is_not_pushed_aside() -> None:
    from torch._inductor import config

    theirs = config.patch(post_grad_custom_pre_pass=len)
    with theirs, pytest.raises(UnsupportedError, match="this program has set its own: <built-in function len>"):
        compile_plan(distances, PLAN, Example((POINTS, OTHERS)), device="cpu", mode="inference")


def test_it_is_for_a_cpu_and_a_compiler() -> None:
    traits = frozenset({"short_rows", "complex", "several_shapes"})
    space = PlanSpace("cpu", "inference", traits=traits, allow=Numerics.SUBSTITUTED, effort="quick")
    assert PLAN in {plan for plan, _ in space.neighbours(EAGER)}
    dynamic = Plan(backend="inductor", shapes="dynamic")
    assert any("structure_of_arrays" in plan.transforms for plan, _ in space.neighbours(dynamic))
    after = Plan(backend="inductor", transforms=("complex_to_real", "structure_of_arrays"))
    assert after in {plan for plan, _ in space.neighbours(PLAN)}, "what is complex is split first"
    gpu = PlanSpace("cuda", "inference", traits=traits, allow=Numerics.SUBSTITUTED, effort="thorough")
    assert not any("structure_of_arrays" in plan.transforms for plan, _ in gpu.neighbours(Plan(backend="inductor")))


# ---- with Inductor


@pytest.mark.slow
@torch.no_grad()
def test_inductor_reads_vectors_where_it_gathered() -> None:
    from torch._inductor.utils import run_and_get_code

    def nearness(points: Tensor, others: Tensor) -> Tensor:
        return (distances(points, others) + 1).reciprocal().sum(dim=-1)

    points, others, more = torch.randn(4099, 3), torch.randn(50, 3), torch.randn(2050, 3)
    gathers, inputs = {}, [describe_example(Example((p, others))) for p in (points, more)]
    dynamic = replace(PLAN, shapes="dynamic")
    for plan in (Plan(backend="inductor"), PLAN, dynamic):
        torch._dynamo.reset()
        options = {"device": "cpu", "mode": "inference", "inputs": inputs}
        call = compile_plan(nearness, plan, Example((points, others)), **options).call  # type: ignore[arg-type]
        answer, (code,) = run_and_get_code(call, points, others)
        torch.testing.assert_close(answer, nearness(points, others))
        gathers[plan] = re.findall(r"in_ptr0\[static_cast<int64_t>\((?:\dL \+ )?3L\*x0", code)  # element by element
    torch.testing.assert_close(call(more, others), nearness(more, others))
    assert gathers[Plan(backend="inductor")]
    assert not gathers[PLAN]
    assert not gathers[dynamic]


@pytest.mark.slow
@pytest.mark.parametrize(
    "workload",
    ["ivhl.field_superposition@small", pytest.param("ivhl.vortex_field@small", marks=pytest.mark.nightly)],
)
def test_complex_workloads_of_the_zoo_pass(workload: str) -> None:
    found = load(workload)
    plan = Plan(backend="inductor", transforms=("complex_to_real", "structure_of_arrays"))
    call = compile_plan(found.call, plan, found.examples[0], device="cpu", mode="inference").call
    with torch.no_grad():
        verdict = verify(Subject(found, call, found.call))
    assert verdict.outcome == "pass", verdict


@pytest.mark.slow
def test_gradients_come_through() -> None:
    def loss(call: Callable[..., Tensor]) -> list[Tensor]:
        points, others = POINTS.clone().requires_grad_(), OTHERS.clone().requires_grad_()
        call(points, others).sqrt().sum().backward()
        return [points.grad, others.grad]  # type: ignore[list-item]

    call = compile_plan(distances, PLAN, Example((POINTS, OTHERS)), device="cpu", mode="training").call
    torch.testing.assert_close(loss(call), loss(distances))


@pytest.mark.slow
@torch.no_grad()
def test_a_program_without_short_rows_is_refused() -> None:
    from torch._inductor import config

    call = compile_plan(torch.tanh, PLAN, Example((POINTS,)), device="cpu", mode="inference").call
    compiled_anew = config.patch(force_disable_caches=True)  # as a trial does: code from a cache is not examined again
    with compiled_anew, pytest.raises(UnsupportedError, match="structure_of_arrays changes nothing here"):
        call(POINTS)
