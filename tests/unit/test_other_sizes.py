"""Inputs of other sizes than those of the examples: found, added, and left to plans for dynamic shapes alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from brief import BRIEF
from torchwise.compile import compile_plan
from torchwise.compile.backends.graphs import marked_dims
from torchwise.errors import InputError, UnsupportedError, WorkloadError
from torchwise.plan import EAGER, Plan, PlanSpace, Trait
from torchwise.plan.choice import load_choices
from torchwise.plan.workload_spec import TuneOptions, VaryingDim, WorkloadSpec
from torchwise.study.request import Request
from torchwise.trial import Job
from torchwise.trial.inspection import inspect
from torchwise.trial.loading import load
from torchwise.trial.settling import check_that_sizes_settle
from torchwise.workload import Example, Workload
from torchwise.workload.identity import describe_example
from torchwise.workload.input_spec import find_varying_dims
from torchwise.workload.other_sizes import add_other_sizes, search_varying_dims

MLP = torch.nn.Linear(16, 4)


def superpose(points: torch.Tensor, sources: torch.Tensor) -> torch.Tensor:
    return torch.exp(-(points[:, None] - sources[None]).norm(dim=-1)).sum(1)


def embed(table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    return table[indices]


def positions(tokens: torch.Tensor) -> torch.Tensor:
    if tokens.shape[1] > 32:
        raise ValueError("the model has 32 positions")
    return tokens * torch.arange(tokens.shape[1])


def search(call: Callable[..., Any], *args: Any, more: tuple[Any, ...] | None = None, **kwargs: Any) -> dict[str, Any]:
    examples = (Example(args, kwargs), *([Example(more, kwargs)] if more else []))
    found = search_varying_dims(Workload(call, examples), lambda e: call(*e.args, **e.kwargs))
    return {f"{one.path} {one.dim}": one.lengths for one in found}


@pytest.mark.parametrize(
    ("call", "args", "varying"),
    [
        (MLP, (torch.ones(20, 16),), {"[0][0] 0"}),  # features are fixed by the weights
        (MLP, (torch.ones(16, 16),), {"[0][0] 0"}),  # also if there are as many as rows
        (MLP, (torch.ones(1, 16),), {"[0][0] 0"}),
        (superpose, (torch.ones(40, 3), torch.ones(9, 3)), {"[0][0] 0", "[0][1] 0"}),  # and coordinates are no size
        (superpose, (torch.ones(9, 3), torch.ones(9, 3)), {"[0][0] 0", "[0][1] 0"}),
        (torch.add, (torch.ones(10, 12), torch.ones(10, 12)), {f"[0][{i}] {dim}" for i in (0, 1) for dim in (0, 1)}),
        (embed, (torch.ones(10, 2), torch.tensor([9] * 12)), {"[0][0] 0", "[0][1] 0"}),  # a table may only grow
        (positions, (torch.ones(4, 32),), {"[0][0] 0", "[0][0] 1"}),  # a text may only shrink
        (lambda x: x.sum() * 2, (torch.tensor(1.0),), set()),
        (lambda x, n: x * n, (torch.ones(8), 3), {"[0][0] 0"}),
        (lambda x: x["a"][0].relu(), ({"a": [torch.ones(8, 2)]},), {"[0][0]['a'][0] 0"}),
    ],
)
def test_the_dimensions_that_the_model_takes_at_other_lengths_vary(
    call: Callable[..., Any], args: tuple[Any, ...], varying: set[str]
) -> None:
    found = search(call, *args)
    assert set(found) == varying
    assert all(len(lengths) == 2 for lengths in found.values())


def test_lengths_are_chosen_that_the_model_takes() -> None:
    assert all(length <= 32 for length in search(positions, torch.ones(4, 32))["[0][0] 1"])
    assert all(length > 10 for length in search(embed, torch.ones(10, 2), torch.tensor([9] * 12))["[0][0] 0"])
    both = search(superpose, torch.ones(40, 3), torch.ones(20, 3))
    assert both["[0][0] 0"][0] != 2 * both["[0][1] 0"][0], "code may hold for the ratio of the examples alone"


def test_examples_that_differ_show_what_varies() -> None:
    assert set(search(torch.sin, torch.ones(10, 12), more=(torch.ones(10, 24),))) == {"[0][0] 1"}


def test_marks_say_what_varies() -> None:
    x = torch.ones(10, 12)
    torch._dynamo.mark_dynamic(x, 1)
    assert set(search(torch.sin, x)) == {"[0][0] 1"}
    moved = Workload(torch.sin, (Example((x,)),)).to("cpu").examples[0]
    assert set(search(torch.sin, *moved.args)) == {"[0][0] 1"}, "a mark is kept on the way to a worker"


def test_inputs_that_share_memory_are_left_alone() -> None:
    x = torch.ones(10, 12)
    assert search(torch.add, x, x[:]) == {}


def test_examples_are_added_that_weigh_as_much_as_the_given_ones() -> None:
    varying = (VaryingDim("[0][0]", 0, (6, 10)),)
    x = torch.arange(8.0)
    workload = Workload(torch.sin, (Example((x,), weight=3.0),), reseed=lambda seed: (Example((x + seed,)),))
    larger = add_other_sizes(workload, varying)
    assert [len(example.args[0]) for example in larger.examples] == [8, 6, 10]
    assert [example.weight for example in larger.examples] == [3.0, 1.5, 1.5]
    assert larger.examples[2].args[0].tolist() == [*range(8), 0, 1], "values stay in their range"
    assert larger.reseed is not None
    assert [len(example.args[0]) for example in larger.reseed(2)] == [8, 6, 10]
    assert larger.reseed(2)[1].args[0][0] == 2
    assert add_other_sizes(workload, ()) is workload


# ---- in a search


def field_job(**changes: Any) -> Job:
    return Job("inspect", WorkloadSpec("zoo:tutorial.fusion_demo@small", **changes), effort=BRIEF)


def test_an_inspection_finds_them_and_workers_load_them() -> None:
    job = field_job(sizes="varying")
    found = inspect(job, lambda _: None)
    assert {one.dim for one in found.varying} <= {0, 1}
    assert found.varying
    assert {Trait.SIZES_VARY, Trait.SEVERAL_SHAPES} <= found.traits
    assert len(found.inputs) == 3
    assert any("sizes vary" in note for note in found.notes)
    later = replace(job, workload=replace(job.workload, varying=found.varying))
    assert [describe_example(example) for example in load(later).examples] == list(found.inputs)
    assert found.identity != inspect(field_job(), lambda _: None).identity, "another study"


@pytest.mark.parametrize(("tries", "found"), [(True, True), (False, None)])
def test_an_inspection_may_try_them_for_a_search_to_come(tries: bool, found: bool | None) -> None:
    inspection = inspect(replace(field_job(), tries_sizes=tries), lambda _: None)
    assert inspection.takes_other_sizes is found
    assert (inspection.varying, len(inspection.inputs)) == ((), 1), "this search is for the given sizes alone"
    assert Trait.SIZES_VARY not in inspection.traits


class Caching(torch.nn.Module):
    """Keeps a mask of the size of its first call, as a table of positions often is kept."""

    mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = torch.ones(len(x), 1)
        return x * self.mask


def test_a_model_that_keeps_the_size_of_its_first_call_has_no_other(tmp_path: Path) -> None:
    file = tmp_path / "caching.py"
    file.write_text(
        "from test_other_sizes import Caching, torch\ndef make():\n    return Caching(), (torch.ones(20, 3),)\n"
    )
    found = inspect(Job("inspect", WorkloadSpec(f"{file}:make", sizes="varying"), effort=BRIEF), lambda _: None)
    assert (found.varying, len(found.inputs), found.takes_other_sizes) == ((), 1, False)
    assert any("sizes do not vary: none were found" in note for note in found.notes)
    job = Job("inspect", WorkloadSpec(f"{file}:make"), effort=BRIEF, tries_sizes=True)
    assert inspect(job, lambda _: None).takes_other_sizes is False


def test_marks_reach_no_plan_for_one_size(tmp_path: Path) -> None:
    file = tmp_path / "marking.py"
    file.write_text(
        "import torch\ndef make():\n    x = torch.ones(20, 3)\n    torch._dynamo.mark_dynamic(x, 0)\n"
        "    return torch.nn.Linear(3, 3), (x,)\n"
    )
    fixed, varying = (WorkloadSpec(f"{file}:make", sizes=sizes) for sizes in ("as-given", "varying"))
    assert not vars(load(Job("try", fixed)).examples[0].args[0])
    found = inspect(Job("inspect", varying, effort=BRIEF), lambda _: None).varying
    assert [(one.path, one.dim) for one in found] == [("[0][0]", 0)]
    later = load(Job("try", replace(varying, varying=found)))
    assert not any(vars(example.args[0]) for example in later.examples)


def test_fixed_sizes_rule_out_dynamic_shapes() -> None:
    assert Trait.SIZES_FIXED in inspect(field_job(sizes="fixed"), lambda _: None).traits
    dynamic = load_choices()["shapes", "dynamic"]
    space = PlanSpace("cpu", "inference", frozenset({Trait.SEVERAL_SHAPES}))
    assert space.excludes(dynamic) is None
    assert replace(space, traits=space.traits | {Trait.SIZES_FIXED}).excludes(dynamic) == (
        "the sizes of inputs are said to be fixed"
    )


def test_other_words_are_refused() -> None:
    with pytest.raises(WorkloadError, match="sizes is 'all', but must be one of as-given, varying, fixed"):
        Request.from_options(TuneOptions(sizes="all"), "zoo:any", "cpu")


def test_a_step_is_refused() -> None:
    job = Job("inspect", WorkloadSpec("zoo:training.transformer", mode="training", sizes="varying"))
    with pytest.raises(InputError, match="sizes is 'varying', but a training step takes batches"):
        load(job)


# ---- in the code


def test_the_dimensions_in_which_examples_differ() -> None:
    lines = [describe_example(Example((torch.ones(n, 3), [torch.ones(m)], 2))) for n, m in ((4, 5), (6, 5), (4, 7))]
    assert find_varying_dims(lines) == {"[0][0]": (0,), "[0][1][0]": (0,)}
    assert find_varying_dims(lines[:1]) == {}
    other = describe_example(Example((torch.ones(3), torch.ones(2))))
    assert find_varying_dims([lines[0], other]) == {}, "another rank, and another input"


def test_one_compilation_serves_the_sizes_that_vary_and_keeps_the_others_constant() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x).sum(1) if x.shape[1] == 3 else x.sum(1)

    lines = [describe_example(Example((torch.ones(n, 3),))) for n in (8, 12)]
    plan, example = Plan(backend="inductor", shapes="dynamic"), Example((torch.ones(8, 3),))
    torch._dynamo.reset()
    compiled = compile_plan(call, plan, example, device="cpu", mode="inference", inputs=lines).call
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for rows in (8, 12, 5, 31):
        x = torch.randn(rows, 3)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), call(x))
        assert not vars(x), "no mark is left on the user's tensor"
    x = torch.randn(9, 3)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    x.note = "the user's"  # type: ignore[attr-defined]
    before = dict(vars(x))
    with torch.no_grad():
        compiled(x)
    assert vars(x) == before
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs + 1


def test_threads_that_share_an_input_leave_no_mark_on_it() -> None:
    x, varying = torch.ones(4), {"[0][0]": (0,)}
    first, second = (marked_dims((x,), {}, varying) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert vars(x), "the other one still compiles"
    second.__exit__(None, None, None)
    assert not vars(x)


def compile_with(graphs: list[torch.fx.GraphModule], call: Callable[..., Any]) -> Callable[..., Any]:
    def take(module: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
        graphs.append(module)
        return module.forward

    torch._dynamo.reset()
    return torch.compile(call, backend=take, dynamic=True)


def test_a_plan_that_compiles_for_every_size_serves_not_all() -> None:
    def by_rows(x: torch.Tensor) -> torch.Tensor:
        for row in range(1, x.shape[0]):
            x = x + row
        return x

    varying = (VaryingDim("[0][0]", 0, (6, 11)),)
    workload = Workload(by_rows, (Example((torch.ones(8, 2),)),))
    with pytest.raises(UnsupportedError, match="every size compiles again"):
        check_that_sizes_settle(compile_with([], by_rows), workload, varying)
    graphs: list[torch.fx.GraphModule] = []
    check_that_sizes_settle(compile_with(graphs, torch.sin), replace(workload, call=torch.sin), varying)
    assert len(graphs) == 1


def test_a_static_plan_is_no_option_where_sizes_vary() -> None:
    from torchwise.study.option_rules import is_for_other_shapes

    space = PlanSpace("cpu", "inference", frozenset({Trait.SIZES_VARY, Trait.SEVERAL_SHAPES}))
    inductor = Plan(backend="inductor")
    assert is_for_other_shapes(inductor, space)
    assert is_for_other_shapes(replace(EAGER, capture="call"), space)
    assert not is_for_other_shapes(replace(inductor, shapes="dynamic"), space)
    offered = [plan for plan, _ in space.neighbours(EAGER) if not is_for_other_shapes(plan, space)]
    assert replace(inductor, shapes="dynamic") in offered, "with its backend, as one choice"
