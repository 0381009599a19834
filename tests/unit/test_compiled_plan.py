from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks

from torchwise.compile import compile_plan, signature_of
from torchwise.compile.backends import inductor
from torchwise.compile.backends.graphs import _outputs_owned
from torchwise.compile.forward_entry import find_repeated_blocks
from torchwise.compile.guards.module_guard import _COUNTING, ModuleGuard, ModuleState
from torchwise.compile.shared_copies import ModuleChangeGuard, share
from torchwise.compile.signature import opaque_leaves
from torchwise.compile.transforms import eager_strides
from torchwise.compile.transforms.function_graphs.record import record
from torchwise.errors import StalePlanError, UnsupportedError
from torchwise.plan import EAGER, Plan
from torchwise.workload import Example
from torchwise.workload.module_state import kept_state


def compile_call(call: object, plan: Plan, *args: torch.Tensor, device: str = "cpu", mode: str = "inference") -> object:
    return compile_plan(call, plan, Example(args), device=device, mode=mode).call  # type: ignore[arg-type]


@pytest.fixture
def conv() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()


def test_eager_is_the_original_itself(conv: torch.nn.Module) -> None:
    assert compile_call(conv, EAGER, torch.randn(1, 3, 8, 8)) is conv


@pytest.mark.parametrize(
    "plan", [Plan(precision="bf16"), Plan(memory_format="channels_last"), Plan(precision="autocast_bf16")]
)
def test_the_edge_keeps_dtype_and_strides_and_leaves_the_original_alone(conv: torch.nn.Module, plan: Plan) -> None:
    x = torch.randn(2, 3, 8, 8)
    before = {k: (v.dtype, v.stride(), v.data_ptr()) for k, v in conv.state_dict().items()}
    expected = conv(x)
    with torch.no_grad():
        answer = compile_call(conv, plan, x)(x)  # type: ignore[operator]
    assert (answer.dtype, answer.stride()) == (expected.dtype, expected.stride())
    assert torch.allclose(answer, expected, atol=0.05)
    assert {k: (v.dtype, v.stride(), v.data_ptr()) for k, v in conv.state_dict().items()} == before


LAID: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "contiguous": (lambda x: x + 1, True),
    "transposed": (lambda x: (x + 1).transpose(0, 2), True),
    "permuted": (lambda x: (x + 1).permute(1, 2, 0), True),
    "number": (lambda x: x.sum(), True),
    "with gaps": (lambda x: (x + 1)[:, ::2], False),
    "repeated": (lambda x: x.sum(0, keepdim=True).expand(2, 3, 4), False),
}
"""The memory layout of an output in eager, and whether a plan can describe it."""


def lay_out_otherwise(graph: torch.fx.Graph) -> None:
    """Have a graph lay its outputs out in the reverse of their dimensions, without telling, as Inductor may."""
    output = graph.output_node()
    for node in output.all_input_nodes:
        if isinstance(value := node.meta.get("example_value"), torch.Tensor):
            reverse = tuple(range(value.dim()))[::-1]
            with graph.inserting_before(output):
                turned = graph.call_method("contiguous", (graph.call_method("permute", (node, reverse)),))
                back = graph.call_method("permute", (turned, reverse))
            back.meta = node.meta
            output.replace_input_with(node, back)


def compile_laid_out(
    call: Callable[..., Any], *passes: Callable[[torch.fx.Graph], object], dynamic: bool = False
) -> tuple[Callable[..., Any], list[torch.fx.Graph]]:
    """Compile by a backend that changes the graphs and runs them as they are, and return the graphs that it gets."""
    graphs: list[torch.fx.Graph] = []

    def compile_graph(module: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        for change in passes:
            change(module.graph)
        module.graph.lint()
        module.recompile()
        graphs.append(module.graph)
        return module.forward

    torch.compiler.reset()
    return torch.compile(call, backend=compile_graph, dynamic=dynamic, fullgraph=True), graphs


def test_outputs_lie_as_eagers_at_sizes_that_vary_by_one_compilation() -> None:
    def grow(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cat([x, x[:, :1]], 1), x.permute(2, 0, 1) + 1, x.mT + 1, x

    traced, graphs = compile_laid_out(grow, lay_out_otherwise, eager_strides.rewrite, dynamic=True)
    for length in (5, 9, 3, 33):
        x = torch.randn(2, length, 7)
        for found, eager in zip(traced(x), grow(x), strict=True):
            assert torch.equal(found, eager)
            assert found.stride() == eager.stride()
        assert traced(x)[-1] is x
    assert len(graphs) == 1


@pytest.mark.parametrize("name", LAID)
def test_what_is_traced_says_how_each_output_lies(name: str) -> None:
    make, said = LAID[name]
    x = torch.randn(2, 3, 4)
    passes = (lay_out_otherwise, eager_strides.rewrite) if said else (eager_strides.rewrite,)
    traced, graphs = compile_laid_out(lambda x: {"answer": make(x), "more": (1, None)}, *passes)
    with torch.no_grad():
        answer = traced(x)
    assert answer["more"] == (1, None)
    assert torch.equal(answer["answer"], make(x))
    assert answer["answer"].stride() == make(x).stride()
    [graph] = graphs
    assert any(node.target == "contiguous" for node in graph.nodes) is said


@pytest.mark.parametrize(
    ("join", "begins"),
    [
        (lambda x: torch.cat([x.new_empty(0), x.mT], -1), True),
        (lambda x: torch.concat((x.mT, x.new_empty(2, 0, 3)), dim=1), True),
        (lambda x: torch.cat(tensors=[torch.tensor([]), x.mT], dim=-1), True),
        (lambda x: torch.cat([x.new_empty(0), x], -1), False),  # contiguous, as the copy
        (lambda x: torch.cat([x.new_empty(0), x.mT, x.mT], -1), False),  # joined for real
        (lambda x: torch.cat([x.new_empty(0)], -1), False),
        (lambda x: x.mT + 1, False),
    ],
)
def test_the_begin_of_a_cache_is_known_before_anything_is_compiled(
    join: Callable[[torch.Tensor], torch.Tensor], begins: bool
) -> None:
    x = torch.randn(2, 3, 4)
    assert eager_strides.joins_one_to_empty(record(lambda: join(x))) is begins


class Cache:
    """An object that no tree knows, such as the cache of a language model."""

    def __init__(self) -> None:
        self.layers: list[dict[str, torch.Tensor]] = []


class Keeps(torch.nn.Module):
    """Leaves tensors in an object that it is given, in one that it returns, and in itself."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = None

    def forward(self, x: torch.Tensor, cache: Cache) -> tuple[torch.Tensor, Cache]:
        made = Cache()
        made.layers.append({"keys": x.mT + 1})
        cache.layers.append({"keys": x.transpose(0, 1) * 3})
        self.kept = x + 2
        return x * 2, made


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("laid", [False, True])
def test_tensors_that_a_call_leaves_in_objects_lie_as_eagers(laid: bool, dynamic: bool) -> None:
    passes = (lay_out_otherwise, eager_strides.rewrite) if laid else (lay_out_otherwise,)
    seen = []
    for make_call in (lambda net: net, lambda net: compile_laid_out(net, *passes, dynamic=dynamic)[0]):
        net, cache = Keeps(), Cache()
        call = make_call(net)
        for length in (5, 6):
            with torch.no_grad():
                answer, made = call(torch.ones(2, length, 4), cache)
        seen.append([answer, made.layers[0]["keys"], net.kept, *(layer["keys"] for layer in cache.layers)])
    eager, found = seen
    assert len(eager) == len(found) == 5
    assert all(map(torch.equal, eager, found))
    assert [one.stride() == other.stride() for one, other in zip(eager, found, strict=True)] == [laid] * 5


@pytest.mark.parametrize("name", ["channels_last", "channels_last_3d"])
def test_a_memory_format_holds_for_inputs_and_weights_of_its_rank_alone(name: str) -> None:
    seen = []

    class Spy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat, self.deep = torch.nn.Conv2d(3, 3, 3), torch.nn.Conv3d(3, 3, 3)

        def forward(self, image: torch.Tensor, volume: torch.Tensor) -> torch.Tensor:
            seen.append([is_last(one) for one in (image, self.flat.weight, volume, self.deep.weight)])
            return self.deep(volume).sum(dim=2) + self.flat(image)

    def is_last(tensor: torch.Tensor) -> bool:
        form = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
        return tensor.is_contiguous(memory_format=form)

    model, inputs = Spy(), (torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8, 8))
    with torch.no_grad():
        right = model(*inputs)
        made = compile_plan(model, Plan(memory_format=name), Example(inputs), device="cpu", mode="inference")
        assert torch.allclose(made.call(*inputs), right, atol=1e-5)
    assert seen[0] == [False] * 4
    assert seen[-1] == ([True, True, False, False] if name == "channels_last" else [False, False, True, True])


@pytest.mark.parametrize("plan", [Plan(precision="bf16"), Plan(memory_format="channels_last")])
def test_derived_weights_follow_the_original(conv: torch.nn.Module, plan: Plan) -> None:
    x = torch.randn(2, 3, 8, 8)
    call = compile_call(conv, plan, x)
    with torch.no_grad():
        conv[0].weight.mul_(3.0)
        assert torch.allclose(call(x), conv(x), atol=0.1)  # type: ignore[operator]
        conv.load_state_dict({k: v * 0 for k, v in conv.state_dict().items()})
        assert torch.allclose(call(x), conv(x), atol=0.1)  # type: ignore[operator]


class Writing(torch.nn.Module):
    """Counts calls in two buffers: it writes to one, and replaces the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("written", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(()))
        self.register_buffer("constant", torch.full((4,), 1 / 3))

    def forward(self, x: torch.Tensor, fails: bool = False) -> torch.Tensor:
        self.written += 1
        self.replaced = self.replaced + 1
        if fails:
            raise ValueError("refused")
        return self.layer(x) + self.constant


@pytest.mark.parametrize("plan", [Plan(precision="bf16"), Plan(memory_format="channels_last")])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_a_copy_writes_to_buffers_reaches_the_original(plan: Plan, mode: Callable[[], Any]) -> None:
    model, x = Writing().eval(), torch.randn(2, 4)
    constant = model.constant.clone()
    with mode():
        call: Any = compile_call(model, plan, x)
        for count in range(1, 4):
            call(x)
            assert (float(model.written), float(model.replaced)) == (count, count)
            assert model.replaced.dtype is torch.float32
        model.written.fill_(10.0)
        call(x)
    assert float(model.written) == 11.0
    assert torch.equal(model.constant, constant), "what was not written keeps its precision"


@torch.no_grad()
def test_what_a_copy_writes_before_it_fails_does_not_count() -> None:
    model, x = Writing().eval(), torch.randn(2, 4)
    call: Any = compile_call(model, Plan(precision="bf16"), x)
    call(x)
    with pytest.raises(ValueError, match="refused"):
        call(x, True)
    assert (float(model.written), float(model.replaced)) == (1.0, 1.0)
    call(x)
    assert (float(model.written), float(model.replaced)) == (2.0, 2.0)


class Configured(torch.nn.Module):
    """Has plain attributes of all kinds: some hold modules or weights, some do not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.config = {"scale": 2.0}
        self.cache: list[torch.Tensor] = []
        self.lock = threading.Lock()
        self.layers = [self.layer]
        self.weights = {"first": (self.layer.weight,)}
        self.step = self.layer.forward


def test_a_copy_shares_plain_attributes_and_hooks_that_hold_no_module_and_no_weight() -> None:
    model = Configured()
    copied: Any = share(model, lambda tensor: tensor.detach().clone())
    for name in ("config", "cache", "lock"):
        assert getattr(copied, name) is getattr(model, name)
    assert copied.layers[0] is copied.layer is not model.layer
    assert copied.weights["first"][0] is copied.layer.weight is not model.layer.weight
    assert copied.step.__self__ is copied.layer
    seen: list[bool] = []
    model.layer.register_forward_hook(lambda *_: seen.append(True))
    copied.layer(torch.ones(1, 4))
    assert seen == [True]


class Remembering(torch.nn.Module):
    """Keeps its inputs in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.given: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.given.append(x)
        return self.layer(sum(self.given))


@pytest.mark.parametrize("plan", [Plan(precision="bf16"), Plan(precision="autocast_bf16")])
@torch.no_grad()
def test_a_list_that_the_model_keeps_is_the_models_own_and_grows_by_calls_alone(plan: Plan) -> None:
    model, x = Remembering().eval(), torch.randn(2, 4)
    call: Any = compile_call(model, plan, x)
    assert model.given == []
    call(x)
    assert len(model.given) == 1
    model.given.clear()
    assert torch.allclose(call(x), model.layer(x), atol=0.05)


def test_a_hook_that_holds_a_module_is_of_the_copys_in_a_copy() -> None:
    model = Configured()
    model.layer.register_forward_pre_hook(model.layer.extra_repr)  # type: ignore[arg-type]
    copied: Any = share(model)
    (hook,) = copied.layer._forward_pre_hooks.values()
    assert hook.__self__ is copied.layer


def test_tied_weights_stay_tied_in_a_copy() -> None:
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
    module["b"].weight = module["a"].weight
    copy = share(module, lambda t: torch.nn.Parameter(t.detach().clone()))
    assert copy["b"].weight is copy["a"].weight
    assert copy["a"].weight is not module["a"].weight
    assert share(module)["a"].weight is module["a"].weight


def test_a_module_that_cannot_be_copied_is_refused_with_the_reason() -> None:
    class Stubborn(torch.nn.Module):
        def __deepcopy__(self, memo: object) -> object:
            raise TypeError("I am one")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(UnsupportedError, match="I am one"):
        compile_call(Stubborn(), Plan(precision="bf16"), torch.randn(3))


def test_frozen_weights_that_changed_are_noticed() -> None:
    module = torch.nn.Linear(4, 4)
    guarded = ModuleChangeGuard(module, values=True).wrap(module)
    guarded(torch.randn(2, 4))
    with torch.no_grad():
        module.weight.add_(1.0)
    with pytest.raises(StalePlanError, match="weights changed"):
        guarded(torch.randn(2, 4))


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {}], ids=str)
def test_frozen_weights_that_an_optimizer_trained_are_noticed(options: dict[str, bool]) -> None:
    module, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    guarded = ModuleChangeGuard(module, values=True).wrap(module)

    def train(trained: torch.nn.Module) -> None:
        optimizer = torch.optim.AdamW(trained.parameters(), **options)  # a fused one's writes, PyTorch does not count
        trained(torch.randn(2, 4)).sum().backward()
        optimizer.step()

    train(other)
    guarded(torch.randn(2, 4))
    train(module)
    with pytest.raises(StalePlanError, match="weights changed"):
        guarded(torch.randn(2, 4))


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=str)
def test_a_copy_in_bf16_follows_what_an_optimizer_trains(options: dict[str, bool]) -> None:
    module, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1.0, **options)
    copied = compile_call(module, Plan(precision="bf16"), x)
    for _ in range(2):
        module(x).sum().backward()
        optimizer.step()
        with torch.no_grad():
            assert torch.allclose(copied(x), module(x), atol=0.1)  # type: ignore[operator]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(4, 4, bias=False) for _ in range(3))
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) + 2 * self.b(x) + 3 * self.c(x)


@pytest.mark.parametrize(
    "other", [lambda m: m.c.weight, lambda _: torch.nn.Parameter(torch.zeros(4, 4))], ids=["c", "own"]
)
def test_a_copy_of_weights_that_are_tied_otherwise_is_given_up(other: Callable[[Any], torch.nn.Parameter]) -> None:
    module, x = Tied().eval(), torch.randn(2, 4)
    copied = compile_call(module, Plan(precision="bf16"), x)
    with torch.no_grad():
        copied(x)  # type: ignore[operator]
        module.b.weight = other(module)
        with pytest.raises(StalePlanError, match="the model changed"):
            copied(x)  # type: ignore[operator]


def test_what_counts_the_steps_of_optimizers_goes_with_the_watch_and_takes_no_hook_along() -> None:
    """PyTorch goes through its hooks while Python may collect a watch."""
    gc.collect()  # watches of other tests
    before = len(_COUNTING)
    watch = ModuleGuard(torch.nn.Linear(4, 4))
    assert len(_COUNTING) == before, "only whoever holds copies of weights needs them counted"
    watch.versions()
    hooks = dict(_global_optimizer_post_hooks)
    assert len(_COUNTING) == before + 1
    del watch
    assert len(_COUNTING) == before
    assert dict(_global_optimizer_post_hooks) == hooks


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(3))
        )
        self.scale = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.scale


STRUCTURAL: dict[str, Callable[[Any], object]] = {
    "attribute that leads inside": lambda m: setattr(m, "parts", [m.body[0]]),
    "submodule": lambda m: m.body.__setitem__(0, torch.nn.Linear(4, 4)),
    "mode": lambda m: m.body[1].train(),
}


@pytest.mark.parametrize("change", STRUCTURAL.values(), ids=list(STRUCTURAL))
def test_a_copy_refuses_to_answer_for_an_original_that_changed_otherwise(change: Callable[[Any], object]) -> None:
    module = Scaled().eval()
    x = torch.randn(2, 4)
    call: Any = compile_call(module, Plan(precision="bf16"), x)
    with torch.no_grad():
        call(x)
        change(module)
        with pytest.raises(StalePlanError, match=r"the model changed|the plan runs a copy of the model"):
            call(x)


@pytest.mark.parametrize(
    "plan", [Plan(precision="bf16"), Plan(backend="inductor", scope="regional")], ids=["bf16", "regional"]
)
@torch.no_grad()
def test_a_copy_is_given_what_is_set_on_the_original(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "_backend", lambda _plan, _options: lambda graph, _inputs: graph.forward)
    module, x = Scaled().eval(), torch.randn(2, 4)
    call: Any = compile_call(module, plan, x)
    for number in range(3):
        module.scale = 3.0 + number
        module.last_request = number
        module.body.seen = ["request"] * number
        torch.testing.assert_close(call(x), module(x), rtol=0.05, atol=0.05)
    del module.last_request
    torch.testing.assert_close(call(x), module(x), rtol=0.05, atol=0.05)


def test_derived_weights_follow_weights_that_moved(conv: torch.nn.Module) -> None:
    x = torch.randn(2, 3, 8, 8)
    call: Any = compile_call(conv, Plan(precision="bf16"), x)
    with torch.no_grad():
        for _ in range(2):
            conv[0].weight.data = torch.randn(8, 3, 3, 3)  # type: ignore[union-attr]
            conv[0].bias = torch.nn.Parameter(torch.randn(8))
            assert torch.allclose(call(x), conv(x), atol=0.1)


def test_a_shared_structure_refuses_to_answer_once_the_original_changed() -> None:
    module = Scaled().eval()
    guarded = ModuleChangeGuard(module, values=False).wrap(share(module))
    x = torch.randn(2, 4)
    with torch.no_grad():
        module.body[0][0].weight.mul_(2.0)  # type: ignore[index,union-attr]
        assert torch.equal(guarded(x), module(x)), "weights written in place are shared"
        module.scale = 3.0
        with pytest.raises(StalePlanError, match="the model changed"):
            guarded(x)


def test_the_watch_keeps_the_memory_that_a_graph_may_read() -> None:
    module = torch.nn.Linear(4, 4)
    watch = ModuleGuard(module)
    old = module.weight.data_ptr()
    module.weight.data = torch.randn(4, 4)
    taken = [torch.randn(4, 4).data_ptr() for _ in range(50)]
    assert old not in taken
    assert watch.has_changed()


def test_writes_in_place_are_counted_and_those_of_inference_mode_unknown() -> None:
    module = torch.nn.BatchNorm1d(4)
    watch = ModuleGuard(module)
    before = watch.versions()
    module(torch.randn(3, 4))
    assert watch.versions() != before
    with torch.inference_mode():
        assert None in ModuleGuard(torch.nn.Linear(2, 2)).versions()


def test_threads_hold_only_during_the_call_and_also_when_it_raises() -> None:
    before = torch.get_num_threads()
    seen = []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        if x.numel() == 1:
            raise ValueError("too small")
        return x

    threaded = compile_call(call, Plan(threads=before + 1), torch.ones(2))
    threaded(torch.ones(2))  # type: ignore[operator]
    with pytest.raises(ValueError, match="too small"):
        threaded(torch.ones(1))  # type: ignore[operator]
    assert seen == [before + 1, before + 1]
    assert torch.get_num_threads() == before


def test_tf32_holds_only_during_the_call() -> None:
    seen = []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_float32_matmul_precision())
        return x

    compile_call(call, Plan(precision="tf32"), torch.ones(2))(torch.ones(2))  # type: ignore[operator]
    assert seen == ["high"]
    assert torch.get_float32_matmul_precision() == "highest"


def test_repeated_blocks_are_the_ones_that_dominate() -> None:
    block = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.TransformerEncoder(block, 4), torch.nn.Linear(32, 2))
    found = find_repeated_blocks(model)
    assert len(found) == 4
    assert all(isinstance(b, torch.nn.TransformerEncoderLayer) for b in found)
    assert find_repeated_blocks(torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(20)])) == []


def test_what_cannot_be_realised_is_refused_with_the_value() -> None:
    x = torch.randn(2, 4)
    with pytest.raises(UnsupportedError, match="no repeated blocks"):
        compile_call(torch.nn.Linear(4, 4), Plan(backend="inductor", scope="regional"), x)
    with pytest.raises(UnsupportedError, match="a function has no repeated blocks"):
        compile_call(torch.tanh, Plan(backend="inductor", scope="regional"), x)
    with pytest.raises(UnsupportedError, match="'nonesuch'"):
        compile_call(torch.tanh, Plan(backend="nonesuch"), x)
    with pytest.raises(UnsupportedError, match="but device is"):
        compile_call(torch.tanh, Plan(capture="call"), x)
    with pytest.raises(UnsupportedError, match="'no_such_option'"):
        compile_call(torch.tanh, Plan(backend="inductor", options=(("no_such_option", True),)), x)
    with pytest.raises(UnsupportedError, match="transforms"):
        compile_call(torch.tanh, Plan(transforms=("nothing",)), x)


def test_signatures_tell_apart_what_must_be_told_apart() -> None:
    x = torch.randn(2, 4)
    same = signature_of((torch.randn(2, 4),), {})
    assert signature_of((x,), {}) == same
    assert signature_of((x.double(),), {}) != same
    assert signature_of((x.t().contiguous().t(),), {}) != same
    assert signature_of((torch.randn(3, 4),), {}) != same
    assert signature_of((x, 1), {}) != signature_of((x, 2), {})
    assert signature_of((x,), {"flag": True}) != signature_of((x,), {"flag": False})
    assert signature_of(([x],), {}) != signature_of((x,), {})


@dataclass
class Batch:
    values: Any
    name: str = ""


def test_signatures_look_into_dataclasses() -> None:
    def sign_arguments(*args: Any, **kwargs: Any) -> object:
        return signature_of((torch.ones(1), *args), kwargs)

    x = torch.randn(2, 4)
    assert sign_arguments(Batch(x)) == sign_arguments(Batch(torch.randn(2, 4)))
    assert sign_arguments(Batch(x)) != sign_arguments(Batch(torch.randn(3, 4)))
    assert sign_arguments(Batch(x)) != sign_arguments(Batch(x, "other"))
    assert sign_arguments(Batch([x])) != sign_arguments(Batch((x,)))
    assert sign_arguments(Batch(x)) != sign_arguments(x, "")
    assert sign_arguments(batch=Batch(Batch(x))) == sign_arguments(batch=Batch(Batch(torch.randn(2, 4))))
    assert sign_arguments(batch=Batch(Batch(x))) != sign_arguments(batch=Batch(Batch(x.double())))


@dataclass
class Counted:
    values: torch.Tensor
    mask: torch.Tensor = field(init=False)
    count: int = field(init=False, default=0)


def test_signatures_look_into_fields_that_nobody_is_asked_for() -> None:
    one, longer, more, unset = (Counted(torch.ones(2)) for _ in range(4))
    one.mask, longer.mask, more.mask, more.count = torch.ones(2), torch.ones(3), torch.ones(2), 1
    assert len({signature_of((found,), {}) for found in (one, longer, more, unset)}) == 4


def test_signatures_take_plain_data_by_value_and_objects_by_type() -> None:
    class Same:
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 1

    one, other = Same(), Same()
    # The identity of an object tells nothing of its content. It would fill tables with as many entries as objects.
    assert signature_of((one,), {}) == signature_of((other,), {})
    assert signature_of((one,), {}) != signature_of((object(),), {})
    assert signature_of((torch.float32, b"x"), {}) == signature_of((torch.float32, b"x"), {})
    assert signature_of((torch.float32,), {}) != signature_of((torch.float64,), {})
    assert signature_of((True,), {"flag": 1}) != signature_of((True,), {"flag": True})


def test_a_signature_keeps_no_argument_alive() -> None:
    import weakref

    class Heavy:
        pass

    heavy = Heavy()
    seen, key = weakref.ref(heavy), signature_of((heavy,), {})
    del heavy
    gc.collect()
    assert seen() is None
    assert key


# ---- settings in several threads


def overlap_calls(first: Callable[[], object], second: Callable[[], object], between: list[threading.Event]) -> None:
    """Start `first`, and once it is inside, `second`. Each sets its event of `between` when it is inside."""
    threads = [threading.Thread(target=work) for work in (first, second)]
    for thread, inside in zip(threads, between, strict=True):
        thread.start()
        assert inside.wait(30)


@pytest.fixture
def stairs() -> Iterator[
    tuple[Callable[[Plan, int], Callable[[], None]], list[threading.Event], list[threading.Event]]
]:
    """Calls that say when they are inside, and stay there until they are told to leave."""
    inside, leave = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def make_staying_call(plan: Plan, number: int) -> Callable[[], None]:
        def call(x: torch.Tensor) -> torch.Tensor:
            inside[number].set()
            assert leave[number].wait(30)
            return x

        made_call: Any = compile_call(call, plan, torch.ones(1))
        return lambda: made_call(torch.ones(1))

    yield make_staying_call, inside, leave
    for event in leave:
        event.set()


def run_in_thread(work: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_threads_do_not_leak_where_calls_overlap(order: tuple[int, int], stairs: Any) -> None:
    staying, inside, leave = stairs
    before = torch.get_num_threads()
    after: dict[int, int] = {}
    done = [threading.Event(), threading.Event()]

    def work(number: int) -> None:
        staying(Plan(threads=before + 1 + number), number)()
        after[number] = torch.get_num_threads()
        done[number].set()

    overlap_calls(lambda: work(0), lambda: work(1), inside)
    for number in order:
        leave[number].set()
        assert done[number].wait(30)
    assert after == {0: before, 1: before}
    assert torch.get_num_threads() == before
    assert run_in_thread(torch.get_num_threads) == before


def test_threads_of_a_call_within_a_call() -> None:
    before = torch.get_num_threads()
    seen = []

    def inner(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return x

    inside: Any = compile_call(inner, Plan(threads=before + 2), torch.ones(1))

    def outer(x: torch.Tensor) -> torch.Tensor:
        x = inside(x)
        seen.append(torch.get_num_threads())
        return x

    compile_call(outer, Plan(threads=before + 1), torch.ones(1))(torch.ones(1))  # type: ignore[operator]
    assert seen == [before + 2, before + 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_tf32_holds_until_the_last_call_is_out(order: tuple[int, int], stairs: Any) -> None:
    staying, inside, leave = stairs
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    done = [threading.Event(), threading.Event()]

    def work(number: int) -> None:
        staying(Plan(precision="tf32"), number)()
        done[number].set()

    overlap_calls(lambda: work(0), lambda: work(1), inside)
    assert torch.get_float32_matmul_precision() == "high"
    leave[order[0]].set()
    assert done[order[0]].wait(30)
    assert torch.get_float32_matmul_precision() == "high", "the other is still inside"
    leave[order[1]].set()
    assert done[order[1]].wait(30)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_settings_are_put_back_after_many_calls_in_many_threads() -> None:
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    calls: list[Any] = [
        compile_call(lambda x: x, plan, torch.ones(1))
        for plan in (Plan(threads=1), Plan(threads=3), Plan(precision="tf32"), Plan(threads=2, precision="tf32"))
    ]

    def work(call: Any) -> None:
        for _ in range(500):
            call(torch.ones(1))

    threads = [threading.Thread(target=work, args=(call,)) for call in calls * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (torch.get_num_threads(), torch.get_float32_matmul_precision()) == before
    assert run_in_thread(torch.get_num_threads) == before[0]


def test_tf32_beside_pytorchs_new_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_mix_error() -> str:
        raise RuntimeError("you have used mix of the legacy and new APIs")

    call: Any = compile_call(lambda x: x, Plan(precision="tf32"), torch.ones(1))
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_float32_matmul_precision", raise_mix_error)
        with pytest.raises(UnsupportedError, match="precision is 'tf32', but this process has set fp32_precision"):
            call(torch.ones(1))
    call(torch.ones(1))
    assert torch.get_float32_matmul_precision() == "highest", "the refused call counts for nothing"


# ---- facts that two calls must share


def test_signatures_tell_apart_what_compiled_code_would_mix_up() -> None:
    x, y = torch.ones(3), torch.ones(3)
    z = torch.ones(3, dtype=torch.complex64)

    class Sub(torch.Tensor):
        pass

    def keys(*calls: Any) -> set[Any]:
        return {signature_of(args, kwargs) for args, kwargs in calls}

    assert len(keys(((x, x), {}), ((x, y), {}))) == 2, "one input, or two"
    assert len(keys(((), {"a": x, "b": x}), ((), {"a": x, "b": y}))) == 2
    assert len(keys(((x, y), {}), ((y, x), {}))) == 1
    assert len(keys(((x, 0.0), {}), ((x, -0.0), {}), ((x, 0), {}), ((x, False), {}))) == 4
    assert len(keys(((x, float("nan")), {}), ((x, float("nan")), {}))) == 1
    assert len(keys(((), {"x": x}), ((), {"x": x.as_subclass(Sub)}))) == 2
    assert len(keys(((z.imag,), {}), ((z.conj().imag,), {}))) == 2, "negated lazily"
    sparse = torch.eye(3)
    layouts = (sparse, sparse.to_sparse(), sparse.to_sparse_csr(), torch.nested.nested_tensor([x, x]))
    assert len(keys(*(((t,), {}) for t in layouts), *(((), {"x": t}) for t in layouts))) == 8


# ---- facts of a module


def a_module() -> torch.nn.Module:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.BatchNorm1d(4))
    module = torch.nn.Sequential(inner, torch.nn.Dropout(), torch.nn.Linear(4, 4)).eval()
    module.table = torch.ones(1)
    return module


CHANGES: dict[str, Callable[[Any], object]] = {
    "submodule replaced": lambda m: m[0].__setitem__(0, torch.nn.Linear(4, 4, bias=False)),
    "submodule added": lambda m: m.add_module("more", torch.nn.ReLU()),
    "submodule removed": lambda m: m.__delitem__(1),
    "submodule set to None": lambda m: setattr(m[0], "1", None),
    "submodules swapped": lambda m: m._modules.update({"1": m[2], "2": m[1]}),
    "parameter replaced": lambda m: setattr(m[2], "weight", torch.nn.Parameter(torch.randn(4, 4))),
    "parameter registered": lambda m: m[1].register_parameter("more", torch.nn.Parameter(torch.ones(1))),
    "parameter removed": lambda m: delattr(m[2], "bias"),
    "parameter set to None": lambda m: setattr(m[2], "bias", None),
    "parameter where None was": lambda m: setattr(m[0][0], "bias", torch.nn.Parameter(torch.ones(4))),
    "parameter given other data": lambda m: setattr(m[2].weight, "data", torch.randn(4, 4)),
    "parameter renamed": lambda m: m[2]._parameters.update({"other": m[2]._parameters.pop("bias")}),
    "buffer registered": lambda m: m[0].register_buffer("more", torch.ones(1)),
    "buffer removed": lambda m: delattr(m[0][1], "running_mean"),
    "buffer replaced": lambda m: setattr(m[0][1], "running_var", torch.ones(4)),
    "all to training": lambda m: m.train(),
    "one submodule to training": lambda m: m[1].train(),
    "submodules in another dict": lambda m: setattr(m[0], "_modules", dict(m[0]._modules)),
    "plain attribute rebound": lambda m: setattr(m[1], "p", 0.25),
    "plain attribute set": lambda m: setattr(m[1], "scale", 2.0),
    "number of another type": lambda m: setattr(m[1], "p", 1 if m[1].p == 1.0 else 0),
    "tensor transposed": lambda m: setattr(m[2].weight, "data", m[2].weight.data.t()),
    "tensor cut": lambda m: setattr(m[0][1], "running_mean", m[0][1].running_mean[:2]),
    "plain tensor replaced": lambda m: setattr(m, "table", torch.ones(1)),
    "forward replaced": lambda m: setattr(m[2], "forward", torch.relu),
    "hook registered": lambda m: m[2].register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_a_changed_module_is_noticed_once(change: Callable[[Any], object]) -> None:
    module = a_module()
    watch = ModuleGuard(module)
    kept = [*module.parameters(), *module.buffers()]  # so that no new tensor is given the memory of an old one
    assert not watch.has_changed()
    change(module)
    assert watch.has_changed()
    watch.take_snapshot()
    assert not watch.has_changed()
    assert kept


def test_values_written_in_place_and_calls_change_no_fingerprint() -> None:
    module = a_module()
    state = ModuleState(module)
    with torch.no_grad():
        module[2].weight.mul_(2.0)  # type: ignore[union-attr,operator,index]
        module.load_state_dict({k: v + 1 for k, v in module.state_dict().items()})
        module(torch.randn(3, 4))
    module.eval()
    assert not state.has_changed()


def test_a_function_has_nothing_to_watch() -> None:
    assert not ModuleGuard(None).has_changed()


# ---- outputs that must be copied


class Opaque:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


def test_leaves_that_nobody_can_see_into_are_named() -> None:
    x = torch.ones(2)
    plain = {"a": [x, 1, 2.0, None, "x", b"x", True], "b": (torch.float32, x.device, x.shape), "c": Batch(x, "name")}
    assert opaque_leaves(plain) == []
    assert opaque_leaves(x) == []
    assert opaque_leaves(Opaque(x)) == ["it, an object of type Opaque"]
    assert opaque_leaves({"a": [x, Opaque(x)], "b": Batch(Opaque(x))}) == [
        "['a'][1], an object of type Opaque",
        "['b'].values, an object of type Opaque",
    ]


def test_outputs_of_a_graph_are_copied_or_refused() -> None:
    x = torch.ones(2)
    owned = _outputs_owned(lambda make: make(x))
    assert owned(lambda t: t).data_ptr() != x.data_ptr()
    answer = owned(lambda t: {"a": [t, 3], "b": Batch(t, "name"), "c": None})
    assert answer["a"][0].data_ptr() != x.data_ptr()
    assert answer["b"].values.data_ptr() != x.data_ptr()
    assert (answer["a"][1], answer["b"].name, answer["c"]) == (3, "name", None)
    for opaque in (Opaque, lambda t: [t, Opaque(t)], lambda t: Batch(Opaque(t))):
        with pytest.raises(UnsupportedError, match="an object of type Opaque"):
            owned(opaque)


# ---- the state of the original


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("written", torch.zeros(2))
        self.register_buffer("rebound", torch.zeros(2), persistent=False)
        self.register_buffer("grown", torch.zeros(1))
        self.register_buffer("idle", torch.zeros(2))

    def get_extra_state(self) -> object:
        return {"not": "a tensor"}

    def set_extra_state(self, state: object) -> None:
        pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.written += 1
        self.rebound = self.rebound + 1
        self.grown = torch.cat([self.grown, self.grown])
        return x * 2


def test_buffers_are_kept_also_when_the_call_raises() -> None:
    module = Counting()
    version = module.idle._version

    def raise_after_call() -> None:
        with kept_state(module):
            module(torch.ones(1))
            raise ValueError("after all")

    with pytest.raises(ValueError, match="after all"):
        raise_after_call()
    assert module.written.tolist() == module.rebound.tolist() == [0, 0]
    assert module.idle._version == version
    with kept_state(None):
        pass


def test_the_edge_leaves_a_model_with_extra_state_as_it_was() -> None:
    module = Counting()
    x = torch.ones(2)
    call: Any = compile_call(module, Plan(precision="autocast_bf16"), x)
    assert module.written.tolist() == module.rebound.tolist() == [0, 0]
    assert torch.equal(call(x), x * 2)


def test_batch_norm_that_counts_is_not_frozen() -> None:
    """It would be stale on the second call. Nobody could freeze the counts that it wrote on the first."""
    plan, example = Plan(backend="inductor", options=(("freezing", True),)), Example((torch.randn(2, 3, 4),))
    for model, counts in (
        (torch.nn.BatchNorm1d(3), True),
        (torch.nn.BatchNorm1d(3).eval(), False),
        (torch.nn.BatchNorm1d(3, track_running_stats=False), False),
    ):
        with (
            pytest.raises(UnsupportedError, match=r"batch-norm writes .*: call eval\(\) first")
            if counts
            else nullcontext()
        ):
            compile_plan(model, plan, example, device="cpu", mode="inference")


class Keeping(torch.nn.Module):
    """A model that keeps something of each call, in its parts as well."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList([KeepingBlock() for _ in range(3)])
        self.patches = torch.nn.Conv1d(1, 1, 2, stride=2)
        self.calls, self.seen = 0, {"any": False}
        self.gone = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        self.mine = [self.blocks[0]]
        if self.calls == 1:
            self.register_buffer("offset", x.mean(), persistent=False)
        if self.calls == 2:
            del self.gone
        x = self.patches(x.unsqueeze(1)).squeeze(1)
        for block in self.blocks:
            x = block(x)
        return x * self.calls + self.offset


class KeepingBlock(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.kept = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x).tanh()
        self.kept = x.detach().mean()
        return x


@pytest.mark.parametrize(
    "plan",
    [
        Plan(precision="bf16"),
        Plan(memory_format="channels_last"),
        Plan(backend="inductor", scope="regional"),
        Plan(backend="inductor", transforms=("patch_matmul",)),
        Plan(precision="bf16", backend="inductor", transforms=("patch_matmul",)),
    ],
    ids=str,
)
@pytest.mark.usefixtures("plainly_compiled")
@torch.no_grad()
def test_what_a_copy_sets_on_itself_reaches_the_original(plan: Plan) -> None:
    model, x = Keeping().eval(), torch.randn(4, 16)
    plain = copy.deepcopy(model)
    made = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference")
    ways = [made.call]
    for _ in range(4):
        torch.testing.assert_close(ways[-1](x), plain(x), rtol=0.05, atol=0.05)
        assert model.calls == plain.calls
        assert hasattr(model, "gone") == hasattr(plain, "gone")
        torch.testing.assert_close(model.offset, plain.offset, rtol=0.05, atol=0.05, check_dtype=False)
        assert model.state_dict().keys() == plain.state_dict().keys()
        for block, other in zip(model.blocks, plain.blocks, strict=True):
            torch.testing.assert_close(block.kept, other.kept, rtol=0.05, atol=0.05)
        assert getattr(model, "mine", [model.blocks[0]]) == [model.blocks[0]]  # and nothing of the copy's
        ways.append(made.bypass((x,), {}))
    model.calls = plain.calls = 0
    torch.testing.assert_close(made.call(x), plain(x), rtol=0.05, atol=0.05)
    assert model.calls == plain.calls, "what is set on the original is what the copy goes on from"


def test_a_copy_that_makes_a_part_of_its_own_is_refused() -> None:
    class Late(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner: torch.nn.Module | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.inner is None:
                self.inner = torch.nn.Linear(4, 4)
            return self.inner(x)

    model, x = Late(), torch.randn(2, 4)
    made = compile_plan(model, Plan(memory_format="channels_last"), Example((x,)), device="cpu", mode="inference")
    with pytest.raises(UnsupportedError, match="adds or removes 'inner' in the model"):
        made.call(x)
    assert "inner" not in model._modules
