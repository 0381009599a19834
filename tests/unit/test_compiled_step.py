"""A plan for a training step: each piece against the step as written, restored state, and refused steps."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from step_samples import Blocks, Net, a_step, batch, batches, collect_step_state, same
from tape import Machine
from torch.optim import lr_scheduler

import torchwise
from torchwise.compile import CompiledPlan, compile_plan
from torchwise.compile.backends import inductor
from torchwise.compile.forward_entry import find_repeated_blocks, find_stages
from torchwise.compile.optimizer import _GIVEN, TunedOptimizer, forms_open
from torchwise.compile.train_step import CompiledStep
from torchwise.errors import PlanError, UnsupportedError
from torchwise.plan import Plan
from torchwise.records import Outcome
from torchwise.trial.step_inspection import step_traits
from torchwise.workload import Example, Workload, pytree


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def compile_step(step: torchwise.TrainStep, plan: Plan, device: str = "cpu") -> CompiledPlan:
    return compile_plan(step, plan, Example(batch()), device=device, mode="training")


def adam(parameters: Any, **rest: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, 1e-2, **rest)


def exponential(optimizer: Any) -> Any:
    return lr_scheduler.ExponentialLR(optimizer, 0.9)


def train_steps(plan: Plan | None, steps: int = 4, **how: Any) -> tuple[list[Any], torchwise.TrainStep]:
    """Return the losses of some steps, and the step."""
    step = a_step(**{"scheduler": exponential, "clip_norm": 1.0, **how})
    call = compile_step(step, plan).call if plan else step
    torch.manual_seed(1)
    return [call(*given) for given in batches(steps)], step


def check_close(ours: Any, theirs: Any, tolerance: float) -> None:
    (losses, step), (expected, written) = ours, theirs
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=tolerance, atol=tolerance)
    for one, other in zip(step.model.parameters(), written.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


# ---- each piece against the step as written


@pytest.mark.parametrize(
    ("plan", "how", "tolerance"),
    [
        (Plan(optimizer="fused"), {}, 1e-5),
        (Plan(optimizer="foreach"), {}, 1e-5),
        (Plan(microbatches=2), {}, 1e-4),
        (Plan(microbatches=4, optimizer="fused"), {"accumulate": 2}, 1e-4),
        (Plan(precision="autocast_bf16"), {}, 5e-2),
        (Plan(precision="autocast_fp16"), {}, 5e-2),
        (Plan(memory_format="channels_last"), {}, 1e-5),
        (Plan(threads=2), {}, 1e-5),
    ],
    ids=str,
)
def test_a_plan_trains_as_the_step_as_written(plan: Plan, how: dict[str, Any], tolerance: float) -> None:
    check_close(train_steps(plan, **how), train_steps(None, **how), tolerance)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_recomputing_is_exact_noise_included(dropout: float) -> None:
    ours, theirs = (
        train_steps(plan, model=Blocks(dropout=dropout)) for plan in (Plan(activation_checkpointing="blocks"), None)
    )
    assert same([*ours[0], *collect_step_state(ours[1])], [*theirs[0], *collect_step_state(theirs[1])])


class Wide(torch.nn.Module):
    """A stage of its own class."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(before, after), torch.nn.LayerNorm(after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.norm(torch.nn.functional.gelu(self.linear(x))))


class Stages(torch.nn.Module):
    """Stages of other classes, shapes and names, some of them in a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.enter = Wide(4, 64)
        self.middle = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.GELU(), torch.nn.Tanh())
        self.rest = torch.nn.ModuleList([Wide(96, 32), Wide(32, 64)])
        self.head = torch.nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.middle(self.enter(x))
        for stage in self.rest:
            x = stage(x)
        return self.head(x)


def test_stages_that_differ_in_class_shape_and_name_are_recomputed_exactly() -> None:
    stages = Stages()
    assert not find_repeated_blocks(stages)
    assert find_stages(stages) == [stages.enter, stages.middle, *stages.rest]
    ours, theirs = (train_steps(plan, model=Stages()) for plan in (Plan(activation_checkpointing="blocks"), None))
    assert same([*ours[0], *collect_step_state(ours[1])], [*theirs[0], *collect_step_state(theirs[1])])


@pytest.mark.parametrize("make", [lambda: torch.nn.Linear(4, 3), lambda: torch.nn.Sequential(*[torch.nn.Tanh()] * 5)])
def test_a_model_that_is_no_row_of_stages_has_none(make: Callable[[], torch.nn.Module]) -> None:
    assert find_stages(make()) == []


@pytest.mark.parametrize("make", [lambda: Blocks(width=64), Stages])
def test_recomputing_keeps_no_activation_of_a_block_and_counts_no_call_twice(
    make: Callable[[], torch.nn.Module],
) -> None:
    def count_saved_elements(plan: Plan | None) -> int:
        step = a_step(make())
        call = compile_step(step, plan).call if plan else step
        sizes: list[int] = []

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            call(*batch())
        return sum(sizes)

    assert count_saved_elements(Plan(activation_checkpointing="blocks")) < 0.6 * count_saved_elements(None)


def run_block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x + torch.tanh(torch.nn.functional.gelu(x @ weight).sigmoid() @ weight.T)


class FunctionBlocks(torch.nn.Module):
    """Blocks that are calls of one function, so that no part of the model shows them."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.weights = torch.nn.ParameterList([torch.randn(4, width) / width**0.5 for _ in range(5)])
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = run_block(x, weight)
        return self.head(x)


GRAPH = Plan(backend="inductor", activation_checkpointing="graph")
WIDE = 2048
"""So wide that activations of a thousand rows take more memory than anything else in the process."""


@pytest.fixture
def partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put PyTorch's partitioner without code generation in Inductor's place, which compiles in a tenth of the time."""
    backend = torch._dynamo.lookup_backend("aot_eager_decomp_partition")
    monkeypatch.setattr(inductor, "_inductor", lambda _options: backend)


@pytest.mark.usefixtures("partitioned")
def test_activations_of_functions_are_computed_again_by_the_graph() -> None:
    given = [torch.cat([part] * 64) for part in batch()]

    def run(plan: Plan | None) -> tuple[int, list[torch.Tensor]]:
        step, sizes = a_step(FunctionBlocks(), lambda own: torch.optim.SGD(own, 0.1)), list[int]()
        call = compile_step(step, plan).call if plan else step

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            call(*given)
        return sum(sizes), [p.detach() for p in step.model.parameters()]

    assert find_stages(FunctionBlocks()) == []
    kept, trained = run(GRAPH)
    expected, written = run(None)
    assert kept < 0.5 * expected
    torch.testing.assert_close(trained, written, rtol=1e-4, atol=1e-5)
    assert torch._functorch.config.activation_memory_budget == 1.0, "the setting is put back"


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.usefixtures("brief_searches")
def test_a_step_of_functions_that_passes_the_memory_limit_is_decided_for_by_its_graph(tmp_path: Path) -> None:
    step = a_step(FunctionBlocks(WIDE), lambda own: torch.optim.SGD(own, 0.1))
    given, limit = batch(1000), 90_000_000
    study = torchwise.tune(
        step,
        given,
        plans=[GRAPH],
        memory_limit=limit,
        effort="quick",
        store=str(tmp_path / "s.db"),
        progress=False,
    )
    (trial,) = study.trials
    assert trial.verdict is not None, trial.failure
    assert trial.verdict.outcome is Outcome.PASS, trial.reason
    assert trial.costs is not None
    assert trial.costs.peak_memory is not None
    assert trial.costs.baseline_peak_memory is not None
    assert trial.costs.peak_memory < limit < trial.costs.baseline_peak_memory
    assert study.decision.plan == GRAPH, "whatever its speed, as nothing else keeps the limit"
    assert "it keeps the memory limit, which eager passes" in study.decision.reason
    before = [parameter.detach().clone() for parameter in step.model.parameters()]
    torchwise.apply(step, study.decision)(*given)
    assert not any(map(torch.equal, before, step.model.parameters()))


def test_a_graph_whose_activations_are_computed_again_shares_no_code_with_another() -> None:
    plain = inductor._backend(replace(GRAPH, activation_checkpointing="none"), {})
    ours = inductor._backend(GRAPH, {})
    assert ours is not plain
    assert ours is inductor._backend(GRAPH, {}), "Dynamo recognizes its code"
    assert not hasattr(ours, "assert_applied")
    assert hasattr(inductor._backend(replace(GRAPH, scope="rolled"), {}), "assert_applied"), "a rewrite is checked"


def test_only_a_compiling_backend_picks_activations_from_a_graph() -> None:
    with pytest.raises(PlanError, match="activation_checkpointing is 'graph', but eager compiles nothing"):
        Plan(activation_checkpointing="graph")
    assert not GRAPH.of_a_step, "a model in training has a graph, too"


def test_the_threads_of_a_plan_hold_during_a_step_alone() -> None:
    seen: list[int] = []

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return torch.nn.functional.cross_entropy(outputs, y)

    compile_step(a_step(loss=loss), Plan(threads=2)).call(*batch())
    assert seen == [2]
    assert torch.get_num_threads() == 1


def test_autocast_casts_and_a_scaler_comes_with_float16_alone() -> None:
    seen: list[torch.dtype] = []

    def loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen.append(outputs.dtype)
        return torch.nn.functional.cross_entropy(outputs.float(), y)

    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        step = a_step(loss=loss)
        made = compile_step(step, Plan(precision=f"autocast_{name}"))
        made.call(*batch())
        assert seen.pop() is dtype
        assert (step.scaler is not None) is (name == "fp16")
        made.close()
        assert step.scaler is None
    own = a_step(loss=loss, autocast=torch.float16)
    compile_step(own, Plan(optimizer="fused"))
    assert own.scaler is None, "who trains in float16 without a scaler is left to it"


def test_a_scaler_that_is_off_is_no_scaler_to_a_plan_in_float16_and_comes_back() -> None:
    off = torch.amp.GradScaler("cpu", enabled=False)
    step = a_step(scaler=off)
    made = compile_step(step, Plan(precision="autocast_fp16"))
    assert step.scaler is not off
    made.call(*batch())
    made.close()
    assert step.scaler is off


def test_channels_last_lays_out_weights_state_and_inputs_and_back() -> None:
    class Images(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 4, 3)
            self.two.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            layouts.append(x.is_contiguous(memory_format=torch.channels_last))
            return self.two(self.one(x)).mean(dim=(2, 3))

    layouts: list[bool] = []
    step = a_step(Images(), lambda p: adam(p, fused=True))
    x, y = torch.randn(2, 3, 8, 8), torch.randint(0, 4, (2,))
    step(x, y)
    strides = {name: p.stride() for name, p in step.model.named_parameters()}
    before = copy.deepcopy(collect_step_state(step))
    made = compile_plan(step, Plan(memory_format="channels_last"), Example((x, y)), device="cpu", mode="training")
    assert step.model.one.weight.is_contiguous(memory_format=torch.channels_last)
    assert step.optimizer.state[step.model.one.weight]["exp_avg"].stride() == step.model.one.weight.stride()
    assert same(collect_step_state(step), before)
    made.call(x, y)
    assert layouts == [False, True]
    made.close()
    assert {name: p.stride() for name, p in step.model.named_parameters()} == strides
    for parameter, state in step.optimizer.state.items():
        assert state["exp_avg"].stride() == parameter.stride()
    step(x, y)


@pytest.mark.parametrize("name", ["channels_last", "channels_last_3d"])
def test_a_step_of_images_and_volumes_is_laid_out_rank_by_rank_with_its_buffers(name: str) -> None:
    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat, self.deep = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv3d(3, 4, 3)
            self.register_buffer("mask", torch.ones(2, 3, 8, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.flat(x * self.mask).mean(dim=(2, 3)) + self.deep(x[:, :, None].repeat(1, 1, 3, 1, 1)).mean(
                dim=(2, 3, 4)
            )

    step = a_step(Both(), adam)
    x, y = torch.randn(2, 3, 8, 8), torch.randint(0, 4, (2,))
    mask, strides = step.model.mask, {name: t.stride() for name, t in step.model.state_dict().items()}
    made = compile_plan(step, Plan(memory_format=name), Example((x, y)), device="cpu", mode="training")
    is_flat = name == "channels_last"
    assert step.model.flat.weight.is_contiguous(memory_format=torch.channels_last) is is_flat
    assert step.model.deep.weight.is_contiguous(memory_format=torch.channels_last_3d) is not is_flat
    assert step.model.mask.is_contiguous(memory_format=torch.channels_last) is is_flat
    made.call(x, y)
    made.close()
    assert step.model.mask is mask
    assert {name: t.stride() for name, t in step.model.state_dict().items()} == strides
    step(x, y)


LAID_OUT = Plan(memory_format="channels_last")


@pytest.mark.parametrize("plan", [LAID_OUT, Plan(optimizer="fused"), LAID_OUT.with_choice("optimizer", "fused")])
def test_a_fused_optimizer_goes_on_from_a_checkpoint_that_lies_otherwise(plan: Plan) -> None:
    """Its kernels on a CPU walk through weights and state alike, and ignore how the two lie in memory."""

    def start(**how: Any) -> torchwise.TrainStep:
        torch.manual_seed(0)
        return a_step(torch.nn.Conv2d(4, 4, 3), lambda p: adam(p, **how), loss=torch.nn.functional.mse_loss)

    fused = plan.optimizer != "fused"  # then it is the user's own
    given = torch.randn(2, 4, 8, 8), torch.randn(2, 4, 6, 6)
    written, step = start(fused=fused), start(fused=fused)
    written(*given)
    checkpoint = copy.deepcopy(written.state_dict())
    if plan == Plan(optimizer="fused"):  # saved where weights lay with channels last
        weight = checkpoint["optimizer"]["state"][0]
        weight.update({k: v.to(memory_format=torch.channels_last) for k, v in weight.items() if k != "step"})
    made = compile_plan(step, plan, Example(given), device="cpu", mode="training")
    made.call(*given)
    step.load_state_dict(checkpoint)
    made.call(*given)
    resumed = start(fused=fused)  # without the plan
    resumed.load_state_dict(copy.deepcopy(step.state_dict()))
    for now in (made.call, written, written, resumed):
        now(*given)
    made.close()
    for one, other, third in zip(*(s.model.parameters() for s in (step, written, resumed)), strict=True):
        torch.testing.assert_close(one, other)
        torch.testing.assert_close(one, third)


@pytest.fixture
def alone() -> Iterator[None]:
    """Be the only rank."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.nightly
def test_a_model_that_is_trained_over_ranks_is_copied_and_pickled_as_it_is_written() -> None:
    step = a_step(torch.nn.parallel.DistributedDataParallel(Blocks()))
    made = compile_step(step, Plan(backend="inductor"))
    made.call(*batch())
    model, (x, _) = step.model.module, batch()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), torch.load(file, weights_only=False)]
    right = model(x).detach()
    made.call(*batch())
    for copied in copies:
        torch.testing.assert_close(copied(x), right)
        assert copied.forward.__self__ is copied
    assert not torch.allclose(model(x), right)
    made.close()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("kind", ["hook", "__call__"])
def test_a_model_that_is_trained_over_ranks_is_called_once_with_all_that_its_call_does(kind: str) -> None:
    class Called(Blocks):
        def __call__(self, *args: Any) -> Any:
            return super().__call__(*args)

    model = Called() if kind == "__call__" else Blocks()
    if kind == "hook":
        model.register_forward_hook(lambda _module, _inputs, output: output * 2)
    with pytest.raises(UnsupportedError, match="which a plan would repeat"):
        compile_step(a_step(torch.nn.parallel.DistributedDataParallel(model)), Plan(backend="inductor"))


# ---- the state that is put back, and checkpoints meanwhile


FORMS = [Plan(optimizer="fused"), Plan(optimizer="foreach")]


@pytest.mark.parametrize(
    "plan", [*FORMS, Plan(activation_checkpointing="blocks"), Plan(precision="autocast_fp16")], ids=str
)
def test_closing_puts_back_what_a_plan_changed(plan: Plan) -> None:
    step = a_step(scheduler=exponential)
    step(*batch())
    groups = [{k: v for k, v in g.items() if k != "params"} for g in step.optimizer.param_groups]
    attributes = set(vars(step.optimizer))
    before = copy.deepcopy(collect_step_state(step))
    made = compile_step(step, plan)
    made.close()
    assert same(collect_step_state(step), before)
    assert [{k: v for k, v in g.items() if k != "params"} for g in step.optimizer.param_groups] == groups
    assert set(vars(step.optimizer)) == attributes
    assert step.scaler is None
    assert not any("forward" in vars(module) for module in step.model.modules())
    assert not step.optimizer._optimizer_state_dict_post_hooks
    assert not step.optimizer._optimizer_load_state_dict_post_hooks


def test_what_a_plan_changed_is_put_back_where_making_it_fails() -> None:
    step = a_step(Net())
    before = copy.deepcopy(collect_step_state(step))
    with pytest.raises(UnsupportedError):
        compile_step(step, Plan(optimizer="fused", capture="step"))
    assert same(collect_step_state(step), before)
    assert not step.optimizer._optimizer_state_dict_post_hooks


@pytest.mark.parametrize("plan", FORMS, ids=str)
def test_a_checkpoint_of_a_plan_looks_as_without_it_and_loads_into_a_plain_optimizer(plan: Plan) -> None:
    losses, step = train_steps(plan)
    kept = step.state_dict()
    _, written = train_steps(None)
    expected = written.state_dict()["optimizer"]
    torch.testing.assert_close(kept["optimizer"]["state"], expected["state"], rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(kept["optimizer"]["param_groups"], expected["param_groups"], strict=True):
        assert ours == theirs
        assert type(ours["lr"]) is float
    bare = Blocks()
    optimizer = adam(bare.parameters())
    optimizer.load_state_dict(kept["optimizer"])
    assert optimizer.param_groups[0]["fused"] is None
    assert optimizer.param_groups[0]["foreach"] is None
    assert len(optimizer.state) == len(list(bare.parameters()))
    assert all(state["step"].item() == len(losses) for state in optimizer.state.values())


@pytest.mark.parametrize("plan", FORMS, ids=str)
def test_a_checkpoint_is_loaded_while_a_plan_is_in_force(plan: Plan) -> None:
    _, written = train_steps(None, steps=2)
    kept = copy.deepcopy(written.state_dict())
    step = a_step(scheduler=exponential, clip_norm=1.0)
    made = compile_step(step, plan)
    made.call(*batch())
    step.load_state_dict(copy.deepcopy(kept))
    assert step.optimizer.param_groups[0][plan.optimizer] is True
    assert same(
        [leaf for _, leaf in pytree.list_named_leaves(step.state_dict())],
        [x for _, x in pytree.list_named_leaves(kept)],
    )
    for given in batches(2):
        torch.testing.assert_close(made.call(*given), written(*given))
    made.close()
    assert step.optimizer.param_groups[0][plan.optimizer] is None


def test_a_rate_that_is_a_tensor_for_a_plan_is_a_number_outside() -> None:
    step = a_step(scheduler=exponential)
    step(*batch())
    rate = step.optimizer.param_groups[0]["lr"]
    tuned = TunedOptimizer(step.optimizer, "preserve", rates=True)
    assert isinstance(step.optimizer.param_groups[0]["lr"], torch.Tensor)
    assert step.optimizer.state_dict()["param_groups"][0]["lr"] == rate, "the very same number"
    step(*batch())
    assert isinstance(step.optimizer.param_groups[0]["lr"], torch.Tensor), "written in place"
    tuned.restore()
    assert type(step.optimizer.param_groups[0]["lr"]) is float
    assert step.optimizer.param_groups[0]["lr"] == pytest.approx(0.9 * rate)


def test_a_group_that_is_added_meanwhile_breaks_nothing() -> None:
    model = Blocks()
    optimizer = adam(list(model.enter.parameters()))
    tuned = TunedOptimizer(optimizer, "fused")
    optimizer.add_param_group({"params": list(model.leave.parameters())})
    assert [group["fused"] for group in optimizer.state_dict()["param_groups"]] == [None, None]
    tuned.restore()
    assert [group["fused"] for group in optimizer.param_groups] == [None, None]


def test_a_group_that_is_added_under_a_scaler_takes_the_form_that_its_kernels_must_share() -> None:
    def train_with_added_group(plan: Plan | None) -> list[Any]:
        model = Blocks()
        rest = [p for name, p in model.named_parameters() if not name.startswith("leave")]
        optimizer = adam(list(model.leave.parameters()))
        step = torchwise.TrainStep(
            model, torch.nn.functional.cross_entropy, optimizer, scaler=torch.amp.GradScaler("cpu", init_scale=4.0)
        )
        call = compile_step(step, plan).call if plan else step
        given = batches(4)
        found = [call(*given[0])]
        optimizer.add_param_group({"params": rest, "lr": 0.1})
        return [*found, *(call(*b) for b in given[1:]), *model.parameters()]

    torch.testing.assert_close(train_with_added_group(Plan(optimizer="fused")), train_with_added_group(None))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("forms", [("fused", "fused"), ("foreach", "fused")])
def test_two_plans_may_hold_one_optimizer_whose_own_form_is_known_throughout(
    forms: tuple[str, str], first: int
) -> None:
    optimizer = adam(Blocks().parameters())
    attributes = dict(vars(optimizer))
    held = [TunedOptimizer(optimizer, form) for form in forms]
    assert optimizer.param_groups[0]["fused"] is True
    assert optimizer.state_dict()["param_groups"][0]["fused"] is None
    held.pop(first).restore()
    assert optimizer.param_groups[0][forms[1 - first]] is True, "what the other wants"
    assert optimizer.state_dict()["param_groups"][0]["fused"] is None
    held.pop().restore()
    assert [optimizer.param_groups[0][name] for name in ("fused", "foreach")] == [None, None]
    assert set(vars(optimizer)) == set(attributes)
    assert optimizer not in _GIVEN


def test_what_the_user_hung_on_an_optimizer_is_called_and_hangs_there_again() -> None:
    model, added = Blocks(), []
    optimizer = adam(model.enter.parameters())
    add = optimizer.add_param_group

    def own(group: dict[str, Any]) -> None:
        added.append(group)
        add(group)

    optimizer.add_param_group = own  # type: ignore[method-assign]
    held = TunedOptimizer(optimizer, "fused")
    optimizer.add_param_group({"params": list(model.leave.parameters())})
    held.restore()
    assert len(added) == 1
    assert vars(optimizer)["add_param_group"] is own


def test_an_optimizer_that_is_held_may_still_be_forgotten() -> None:
    optimizer = adam(Blocks().parameters())
    TunedOptimizer(optimizer, "fused")
    seen = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert seen() is None


def test_steps_are_counted_where_the_form_wants_them() -> None:
    optimizer = adam([torch.nn.Parameter(torch.ones(2, device="meta"))])
    parameter = optimizer.param_groups[0]["params"][0]
    optimizer.state[parameter]["step"] = torch.tensor(3.0)
    tuned = TunedOptimizer(optimizer, "preserve", countable=True)
    assert optimizer.state[parameter]["step"].device.type == "meta"
    assert optimizer.param_groups[0]["capturable"] is True
    _GIVEN[optimizer]._kept[0]["capturable"] = True  # as if built so: then its counts lie there in a checkpoint, too
    assert optimizer.state_dict()["state"][0]["step"].device.type == "meta"
    tuned.restore()
    assert optimizer.param_groups[0]["capturable"] is True


# ---- scaling


@pytest.mark.parametrize("plan", FORMS, ids=str)
def test_a_step_that_overflows_is_skipped_by_a_plan_too(plan: Plan) -> None:
    step = a_step(scaler=torch.amp.GradScaler("cpu", init_scale=8.0))
    made = compile_step(step, plan)
    made.call(*batch())
    assert step.scaler is not None
    weights = step.model.enter.weight.detach().clone()
    x, y = batch()
    x[0, 0] = torch.inf
    made.call(x, y)
    assert torch.equal(step.model.enter.weight, weights)
    assert step.scaler.get_scale() == 4.0
    made.close()
    step(*batch())
    assert not torch.equal(step.model.enter.weight, weights)


def test_an_optimizer_built_fused_leaves_the_skipping_to_its_kernels_in_copies_too() -> None:
    flag = "_step_supports_amp_scaling"
    optimizer = adam(Blocks().parameters(), fused=True)
    bare = copy.deepcopy(optimizer)
    assert not hasattr(bare, flag)
    tuned = TunedOptimizer(bare, "preserve", countable=True)
    assert getattr(bare, flag) is True
    tuned.restore()
    assert not hasattr(bare, flag)
    tuned = TunedOptimizer(optimizer, "foreach")
    assert not hasattr(optimizer, flag)
    tuned.restore()
    assert getattr(optimizer, flag) is True


# ---- kinds of optimizer


@pytest.mark.parametrize(
    ("make", "forms"),
    [
        (adam, {"fusable", "foreachable"}),
        (lambda p: torch.optim.SGD(p, 0.1), {"fusable", "foreachable"}),
        (lambda p: adam(p, fused=True), set()),
        (lambda p: adam(p, foreach=True), {"fusable"}),
        (lambda p: adam(p, foreach=False), {"fusable", "foreachable"}),
        (lambda p: torch.optim.RMSprop(p), {"foreachable"}),
        (lambda p: torch.optim.AdamW(p, differentiable=True), set()),
        (lambda p: torch.optim.LBFGS(p), set()),
    ],
)
def test_the_forms_that_are_open(make: Callable[[Any], Any], forms: set[str]) -> None:
    assert forms_open(make(list(Blocks().parameters()))) == forms


def with_inputs(*shapes: tuple[int, ...], accumulate: int = 1, model: torch.nn.Module | None = None) -> set[str]:
    step = a_step(model, accumulate=accumulate)
    return {t for t in step_traits(Workload(step, [Example(tuple(map(torch.ones, shapes)))])) if "divisible" in t}


def test_a_batch_is_cut_where_all_of_it_are_samples_that_can_be_parted() -> None:
    both = {"divisible_by_2", "divisible_by_4"}
    assert with_inputs((8, 4), (8,)) == both
    assert with_inputs((6, 4), (6,)) == {"divisible_by_2"}
    assert with_inputs((8, 4), (8,), accumulate=4) == {"divisible_by_2"}
    assert with_inputs((8, 4), (4, 4)) == set(), "a mask over positions"
    assert with_inputs((8, 4), ()) == set()
    assert with_inputs((8, 4), (8,), model=Net()) == set(), "batch-norm looks at the whole batch"


def add_hook(step: torchwise.TrainStep, kind: str) -> torchwise.TrainStep:
    getattr(step.model.get_parameter("enter.weight"), kind)(lambda given: None)
    return step


HOOKS = pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])


@HOOKS
def test_hooks_of_parameters_are_known_in_copies_too_and_no_batch_is_cut(kind: str) -> None:
    step = add_hook(a_step(), kind)
    buffer = io.BytesIO()
    torch.save(step, buffer)
    buffer.seek(0)
    sent = torch.load(buffer, weights_only=False)
    assert not sent.model.enter.weight._backward_hooks, "which PyTorch leaves behind"
    for known in (step, step.copy().copy(), sent):
        assert known.has_hooks
        assert not {t for t in step_traits(Workload(known, [Example(batch())])) if "divisible" in t}
    assert not a_step().copy().has_hooks


# ---- refused steps


@HOOKS
@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(microbatches=2), "microbatches is 2, but parameters have hooks, which would run once for each"),
        (Plan(capture="step"), "capture is 'step', but parameters have hooks, and a replay runs no Python"),
        (Plan(precision="autocast_fp16"), "precision is 'autocast_fp16', but parameters have hooks, which would"),
    ],
    ids=str,
)
def test_what_would_call_hooks_otherwise_is_refused(plan: Plan, message: str, kind: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        compile_step(add_hook(a_step(), kind), plan)
    with pytest.raises(UnsupportedError, match=message):
        compile_step(add_hook(a_step(), kind).copy(), plan)


def test_a_scaler_of_the_steps_own_scales_for_its_hooks_as_written() -> None:
    def clamp_gradients(plan: Plan | None) -> list[Any]:
        step = a_step(scaler=torch.amp.GradScaler("cpu", init_scale=4.0))
        for parameter in step.model.parameters():
            parameter.register_hook(lambda given: given.clamp(-1e-2, 1e-2))
        return [*(compile_step(step, plan).call if plan else step)(*batch(seed=0)).flatten(), *step.model.parameters()]

    torch.testing.assert_close(clamp_gradients(Plan(optimizer="fused")), clamp_gradients(None))
    torch.testing.assert_close(clamp_gradients(Plan(activation_checkpointing="blocks")), clamp_gradients(None))
    compile_step(add_hook(a_step(scaler=torch.amp.GradScaler("cpu")), "register_hook"), Plan(precision="autocast_fp16"))


def refusal(plan: Plan, **how: Any) -> str:
    step = a_step(**how)
    before = copy.deepcopy(collect_step_state(step))
    with pytest.raises(UnsupportedError) as error:
        compile_step(step, plan)
    assert same(collect_step_state(step), before)
    return str(error.value)


class Normed(torch.nn.Module):
    """Blocks with batch-norm in them."""

    def __init__(self) -> None:
        super().__init__()
        parts = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)) for _ in range(3)]
        self.blocks = torch.nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.blocks(x)
        return found


@pytest.mark.parametrize(
    ("plan", "how", "message"),
    [
        (
            Plan(activation_checkpointing="blocks"),
            {"model": Net()},
            "activation_checkpointing is 'blocks', but the model is no row of blocks or stages",
        ),
        (
            Plan(activation_checkpointing="blocks"),
            {"model": Normed()},
            "activation_checkpointing is 'blocks', but batch-norm in the blocks would count",
        ),
        (Plan(capture="step"), {}, "capture is 'step', but device is 'cpu': CUDA graphs need a CUDA GPU"),
        (Plan(optimizer="fused"), {"optimizer": torch.optim.Rprop}, "optimizer is 'fused', but Rprop has no such form"),
        (Plan(optimizer="foreach"), {"optimizer": torch.optim.LBFGS}, "optimizer is 'foreach', but LBFGS has no such"),
        (
            Plan(optimizer="compiled", backend="inductor"),
            {"optimizer": torch.optim.LBFGS},
            "optimizer is 'compiled', but LBFGS calls the model itself: leave optimizer out",
        ),
        (
            Plan(precision="autocast_fp16"),
            {"optimizer": torch.optim.LBFGS},
            "precision is 'autocast_fp16', but LBFGS takes no scaler: leave precision out",
        ),
        (
            Plan(optimizer="compiled", backend="inductor"),
            {"scheduler": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=9)},
            "a scheduler changes the optimizer's momentum at every step, but code that is compiled or captured",
        ),
    ],
    ids=lambda given: str(given) if isinstance(given, (str, Plan)) else "",
)
def test_what_cannot_be_is_refused_with_words(plan: Plan, how: dict[str, Any], message: str) -> None:
    assert refusal(plan, **how).startswith(message)


def test_pieces_that_do_not_divide_are_refused() -> None:
    step = a_step()
    made = compile_step(step, Plan(microbatches=3))
    with pytest.raises(torchwise.TorchwiseError, match="cannot be split into 3 equal microbatches"):
        made.call(*batch())


def test_a_plan_of_a_step_is_refused_for_a_model() -> None:
    with pytest.raises(UnsupportedError, match="is for a whole training step, but this is a model: pass a TrainStep"):
        compile_plan(Blocks(), Plan(microbatches=2), Example((batch()[0],)), device="cpu", mode="training")


# ---- the whole step captured, with graphs that need no GPU


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Return a machine on whose CPU a plan may capture."""
    from torchwise.compile.cuda_graphs.training_state import TrainingState

    monkeypatch.setattr(TrainingState, "check", lambda _: None)  # on the CPU no optimizer can be capturable
    return Machine(monkeypatch)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"scheduler": exponential, "clip_norm": 0.1},
        {"scaler": True, "clip_norm": 1.0},
        {"autocast": torch.bfloat16, "accumulate": 2, "ema": True},
        {"model": True, "clip_value": 0.1},
    ],
    ids=["plain", "schedule", "scaler", "amp", "own loss"],
)
def test_a_captured_step_is_the_fused_one_bit_by_bit(machine: Machine, how: dict[str, Any]) -> None:
    sides = []
    for plan in (Plan(optimizer="fused", capture="step"), Plan(optimizer="fused")):
        model = Net(0.3) if "model" in how else Blocks()
        given = {**how, "model": model}
        given |= {"ema": torch.optim.swa_utils.AveragedModel(model)} if "ema" in how else {}
        given |= {"scaler": torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)} if "scaler" in how else {}
        step = a_step(**given)
        made = compile_plan(
            step, plan, Example(batch()), device="cuda" if plan.capture == "step" else "cpu", mode="training"
        )
        if "scheduler" in how and plan.capture == "none":  # the same kind of number
            rate = step.optimizer.param_groups[0]
            rate["lr"] = torch.tensor(rate["lr"])
        torch.manual_seed(1)
        losses = [made.call(*found) for found in batches(6)]
        kept = [
            leaf
            for _, leaf in pytree.list_named_leaves({k: v for k, v in step.state_dict().items() if k != "schedulers"})
        ]
        sides.append([*losses, *(x for x in kept if isinstance(x, torch.Tensor))])
        made.close()
    assert same(*sides)
    assert (machine.recorded, machine.replayed) == (1, 5)


def test_a_captured_plan_sees_a_checkpoint_that_is_loaded(machine: Machine) -> None:
    _, written = train_steps(Plan(optimizer="fused"), steps=2, scheduler=None)
    kept = copy.deepcopy(written.state_dict())
    step = a_step(clip_norm=1.0)
    made = compile_plan(step, Plan(optimizer="fused", capture="step"), Example(batch()), device="cuda", mode="training")
    for given in batches(3):
        made.call(*given)
    step.load_state_dict(copy.deepcopy(kept))
    other = a_step(clip_norm=1.0)
    other.load_state_dict(copy.deepcopy(kept))
    plain = compile_step(other, Plan(optimizer="fused"))
    for given in batches(4):
        assert torch.equal(made.call(*given), plain.call(*given))
    assert machine.replayed >= 4


# ---- compiled


def make_small() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


@pytest.mark.slow
def test_model_and_loss_compiled_as_one_with_a_fused_optimizer() -> None:
    plan = Plan(backend="inductor", scope="loss", optimizer="fused")
    ours, theirs = (train_steps(one, model=make_small()) for one in (plan, None))
    check_close(ours, theirs, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("scaler", [False, True])
def test_a_compiled_optimizer_follows_its_scheduler_without_compiling_again(scaler: bool) -> None:
    from torch._dynamo.utils import counters

    def make() -> torchwise.TrainStep:
        model = torch.nn.Linear(4, 3)
        torch.nn.init.ones_(model.weight)
        torch.nn.init.zeros_(model.bias)
        scale = torch.amp.GradScaler("cpu", init_scale=4.0) if scaler else None
        return a_step(model, scheduler=exponential, scaler=scale)

    # The model runs as written: only the compilations of the optimizer by the plan are counted.
    step, written = make(), make()
    for side in (step, written):  # which makes the optimizer's state, for which it would be compiled once more
        side(*batch(seed=9))
    made = CompiledStep(
        step,
        Plan(backend="inductor", optimizer="compiled"),
        Example(batch()),
        "cpu",
        lambda call, _plan, _example: call,
    )
    graphs = []
    for given in batches(5):
        torch.testing.assert_close(made(*given), written(*given))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] > 0
    assert len(set(graphs)) == 1, graphs
    made.close()
    for one, other in zip(step.model.parameters(), written.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    assert step.optimizer.param_groups[0]["lr"] == pytest.approx(written.optimizer.param_groups[0]["lr"])
