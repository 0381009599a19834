"""Products of one input with several weights, as one product with weights that are joined once."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor

from dynamo_graphs import rewrite_and_call
from torchwise._torch.inductor import compile_fx
from torchwise.compile import compile_plan
from torchwise.compile.aot import check_possible
from torchwise.compile.backends import inductor, prepared_weights
from torchwise.compile.transforms import function_graphs
from torchwise.compile.transforms.function_graphs import joined_products
from torchwise.compile.transforms.function_graphs.nodes import VALUE
from torchwise.compile.transforms.function_graphs.record import record
from torchwise.errors import NoEffectError, PlanError, StalePlanError, UnsupportedError
from torchwise.plan import Numerics, Plan, PlanSpace, Trait
from torchwise.runtime.background.search import adapt_to_aot
from torchwise.trial.detected_traits import detect_traits
from torchwise.trial.error_origin import Instruments
from torchwise.workload import Example, pytree

PLAN = Plan(backend="inductor", transforms=("joined_products",))
PRODUCTS = {"linear", "matmul", "addmm"}
ROWS = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """Calls a function with layers `a`, `b` and `c` of several widths, and weights `m` and `n` that `matmul` reads."""

    def __init__(self, function: Callable[..., Any], biases: tuple[bool, ...] = (True, True, True)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (
            nn.Linear(8, width, bias=bias) for width, bias in zip((8, 4, 12), biases, strict=True)
        )
        self.m, self.n = (nn.Parameter(torch.randn(8, width)) for width in (6, 10))
        self.register_buffer("fixed", torch.randn(8, 6))
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def attend(model: Any, x: Tensor) -> Tensor:
    q, k, v = (layer(x).unflatten(-1, (-1, 4)).transpose(1, 2) for layer in (model.a, model.b, model.c))
    keys, values = k.expand(-1, 2, -1, -1), v[:, :2]
    return functional.scaled_dot_product_attention(q, keys, values)


def set_afterwards(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    first = model.a(x)
    first[:, 0] = 0
    return first + 1, model.b(x)


JOINED: dict[str, Callable[[Any, Tensor], Any]] = {
    "attention": attend,
    "gate": lambda model, x: functional.silu(model.a(x)) * functional.linear(x, model.c.weight[:8]) + model.b(x).sum(),
    "outputs": lambda model, x: (model.a(x), model.b(x), model.c(x)),
    "views of whole rows": lambda model, x: (model.a(x).view(2, -1) + 1, model.b(x).view(10, 4) + 1),
    "rows": lambda model, x: [layer(x.flatten(0, 1)) for layer in (model.a, model.b)],
    "one row": lambda model, x: [layer(x[0, 0]) for layer in (model.a, model.b)],
    "matmul": lambda model, x: (x @ model.m, torch.matmul(x, model.n)),
    "mm": lambda model, x: (x[0].mm(model.m), torch.mm(x[0], model.n) + 1),
    "transposed": lambda model, x: (x @ model.a.weight.t(), x @ model.b.weight.T, x @ model.c.weight.transpose(1, 0)),
    "mT": lambda model, x: (x @ model.a.weight.mT, functional.linear(x, model.c.weight)),
    "addmm": lambda model, x: [torch.addmm(one.bias, x[0], one.weight.t()) for one in (model.a, model.b)],
    "written afterwards": lambda model, x: (model.a(x).mul_(2), functional.relu(model.b(x), inplace=True)),
    "set afterwards": set_afterwards,
    "equal copies": lambda model, x: [layer(x.half().float()) for layer in (model.a, model.b)],
    "strided": lambda model, x: (model.a(x[0]).as_strided((5, 8), (8, 1)) + 1, model.b(x[0])),
    "one row, strided": lambda model, x: (model.b(x[0, 0]), model.a(x[0, 0]).view(2, 4).as_strided((2, 2), (4, 1), 0)),
    "a sum of both": lambda model, x: model.a(x).sum() + model.b(x).sum(-1, keepdim=True),
    "another product of one of them": lambda model, x: (model.a(x), model.b(x), model.a(x) * 2),
}


def run(name: str, model: nn.Module, x: Tensor) -> tuple[Any, int, list[str]]:
    with torch.no_grad():
        return rewrite_and_call(model, x, rewrite=joined_products.rewrite)


@pytest.mark.parametrize("name", JOINED)
@pytest.mark.parametrize("biases", [(True, True, True), (False, False, False), (False, True, False)])
def test_products_of_one_input_are_one_product_with_the_same_answers(name: str, biases: tuple[bool, ...]) -> None:
    if name == "addmm" and not all(biases):
        pytest.skip("it adds a bias")
    model = Model(JOINED[name], biases).eval()
    before = len([one for one in run_plainly(model) if one in PRODUCTS])
    answer, places, names = run(name, model, ROWS)
    expected = model(ROWS)
    assert places == 1
    assert len([one for one in names if one in PRODUCTS]) < before
    torch.testing.assert_close(answer, expected)
    strides = [[one.stride() for one in pytree.tensors(given)] for given in (answer, expected)]
    assert strides[0] == strides[1], "the caller sees no difference"
    with torch.no_grad():
        assert joined_products.rewrite(record(lambda: model(ROWS))) == 1, "the trait is found in eager"


def run_plainly(model: nn.Module) -> list[str]:
    with torch.no_grad():
        return rewrite_and_call(model, ROWS, rewrite=lambda _: 0)[2]


def write_between(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    first = model.a(x)
    x.add_(1)
    return first, model.b(x)


def change_weight(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    model.a.weight.view(-1).mul_(1.0)
    return model.a(x), model.b(x)


def leave_autocast(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.autocast("cpu", torch.bfloat16):
        first = model.a(x)
    return first, model.b(x)


def write_copy(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    one, other = x.half().float(), x.half().float()
    other.mul_(2)
    return model.a(one), model.b(other)


def write_view_of_copy(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    one, other = x.half().float(), x.half().float()
    one.view(-1).mul_(2)
    return model.a(one), model.b(other)


def write_index(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    rows = x.flatten(0, 1)
    index = (x[0, 0] @ model.m).to(torch.long)
    one = rows[index]
    index.zero_()
    return model.a(one), model.b(rows[index])


def write_to_rows_of_a_product(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    rows = model.a(x)
    part = rows.split([8, 0], dim=-1)[0]
    first = model.b(part)
    rows.mul_(2)
    return first, model.c(part)


OTHERS: dict[str, Callable[[Any, Tensor], Any]] = {
    "one product": lambda model, x: model.a(x),
    "other inputs": lambda model, x: (model.a(x), model.b(x + 1)),
    "one weight": lambda model, x: (model.a(x), model.a(x) + 1),
    "a computed weight": lambda model, x: (x @ (model.m * 2), x @ model.n),
    "a buffer": lambda model, x: (x @ model.fixed, x @ model.n),
    "a computed bias": lambda model, x: (model.a(x), functional.linear(x, model.b.weight, model.b.bias * 2)),
    "a computed bias of addmm": lambda model, x: (torch.addmm(x[0, 0, :6], x[0], model.m), x[0] @ model.n),
    "scales": lambda model, x: [torch.addmm(one.bias, x[0], one.weight.t(), alpha=2) for one in (model.a, model.b)],
    "a weight of both forms": lambda model, x: (model.a(x), x @ model.n),
    "a weight on the left": lambda model, x: (model.m.t() @ x[0].t(), model.n.t() @ x[0].t()),
    "written between": write_between,
    "a copy is written": write_copy,
    "a view of a copy is written": write_view_of_copy,
    "an index is written": write_index,
    "rows of a product are written": write_to_rows_of_a_product,
    "written to a view between": lambda model, x: (model.a(x), x[0].add_(1), model.b(x)),
    "a weight is written": change_weight,
    "in another dtype": leave_autocast,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_stay(name: str) -> None:
    model = Model(OTHERS[name]).eval()
    answer, places, _ = run(name, model, ROWS.clone())
    assert places == 0
    with torch.no_grad():
        torch.testing.assert_close(answer, model(ROWS.clone()))


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "detach": lambda weight: weight.detach(),
    "t": lambda weight: weight.t(),
    "T": lambda weight: weight.T,
    "mT": lambda weight: weight.mT,
    "permute": lambda weight: weight.permute(1, 0),
    "select": lambda weight: weight.select(0, 1),
    "narrow": lambda weight: weight.narrow(0, 0, 2),
    "chunk": lambda weight: weight.chunk(2)[1],
    "data": lambda weight: weight.data,
    "an operator": lambda weight: torch.ops.aten.alias.default(weight),
    "several": lambda weight: weight.detach().t()[0].unsqueeze(0),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_weight_that_is_written_through_a_view_stays(name: str) -> None:
    def write(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        VIEWS[name](model.a.weight).mul_(1.0)
        return model.a(x), model.b(x)

    _, places, _ = run("", Model(write), ROWS)
    assert places == 0


def test_a_view_of_another_dtype_is_given_whole_memory() -> None:
    model = Model(lambda model, x: (model.b(x[0, 0]), model.a(x[0, 0]).view(torch.int64)))
    model.b = nn.Linear(8, 5)  # no number of 64 bits begins behind it
    answer, places, names = run("", model, ROWS)
    assert (places, names.count("clone")) == (1, 2)
    with torch.no_grad():
        torch.testing.assert_close(answer[1].view(torch.float32), model.a(ROWS[0, 0]))


def test_a_product_with_further_arguments_stays() -> None:
    for further, places in (({}, 1), ({"out_dtype": torch.float32}, 0)):
        graph = torch.fx.Graph()
        rows, *weights = (graph.placeholder(name) for name in ("rows", "m", "n"))
        rows.meta[VALUE] = torch.empty(4, 8, device="meta")
        for weight in weights:
            weight.meta[VALUE] = nn.Parameter(torch.empty(8, 6, device="meta"))
        products = [graph.call_function(torch.mm, (rows, weight), further) for weight in weights]
        for product in products:
            product.meta[VALUE] = torch.empty(4, 6, device="meta")
        graph.output(products)
        assert joined_products.rewrite(graph) == places


def test_several_inputs_share_the_joined_weights() -> None:
    model = Model(lambda model, x: [layer(rows) for rows in (x, x + 1) for layer in (model.a, model.b)])
    answer, places, names = run("", model, ROWS)
    assert (places, names.count("linear"), names.count("cat")) == (2, 2, 2)  # one of weights, and one of biases
    with torch.no_grad():
        torch.testing.assert_close(answer, model(ROWS))


def test_products_are_joined_on_either_side_of_a_write() -> None:
    def write(model: Any, x: Tensor) -> list[Tensor]:
        found = [model.a(x), model.b(x)]
        x.add_(1)
        return [*found, model.a(x), model.c(x)]

    model = Model(write)
    answer, places, _ = run("", model, ROWS.clone())
    assert places == 2
    with torch.no_grad():
        torch.testing.assert_close(answer, model(ROWS.clone()))


def test_products_of_a_joined_product_are_joined_in_turn() -> None:
    def forward(model: Any, x: Tensor) -> tuple[Tensor, ...]:
        rows, other = model.a(x), model.b(x)
        return other + 1, rows @ model.m, rows @ model.n

    model = Model(forward)
    answer, places, names = run("", model, ROWS)
    assert (places, names.count("linear"), names.count("matmul")) == (2, 1, 1)
    with torch.no_grad():
        torch.testing.assert_close(answer, model(ROWS))


def test_gaps_between_rows_are_closed_only_where_a_reader_needs_it() -> None:
    _, _, read = run("", Model(JOINED["gate"]), ROWS)
    _, _, viewed = run("", Model(JOINED["views of whole rows"]), ROWS)
    _, _, attended = run("", Model(attend), ROWS)
    assert "contiguous" not in read
    assert "contiguous" not in attended
    assert viewed.count("contiguous") == 1, "rows alone can be viewed as they lie"


@torch._dynamo.allow_in_graph
def read_strides(x: Tensor) -> Tensor:
    return x * (2 if x.is_contiguous() else 3)


def test_functions_of_others_are_given_no_gaps() -> None:
    model = Model(lambda model, x: (read_strides(model.a(x)), model.b(x) + 1))
    answer, places, names = run("", model, ROWS)
    assert (places, names.count("contiguous")) == (1, 1)
    with torch.no_grad():
        torch.testing.assert_close(answer, model(ROWS))


def test_a_subclass_of_a_layer_and_its_hooks_are_part_of_the_graph() -> None:
    class Scaled(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) * 2

    model = Model(lambda model, x: (model.a(x), model.b(x), model.c(x)))
    model.b.__class__ = Scaled
    model.c.register_forward_hook(lambda _module, _args, output: output + 1)
    answer, places, _ = run("", model, ROWS)
    assert places == 1
    with torch.no_grad():
        torch.testing.assert_close(answer, model(ROWS))


def test_a_weight_that_a_parametrization_computes_stays() -> None:
    model = Model(lambda model, x: (model.a(x), model.b(x)))
    nn.utils.parametrizations.weight_norm(model.a)
    _, places, _ = run("", model, ROWS)
    assert places == 0


def test_weights_of_a_subclass_stay() -> None:
    model = Model(lambda model, x: (x @ model.m, x @ model.n))
    for name in ("m", "n"):
        weight = getattr(model, name).detach()
        setattr(model, name, nn.Parameter(TwoTensor(weight, weight.clone())))
    _, places, _ = run("", model, TwoTensor(ROWS, ROWS.clone()))
    assert places == 0


def test_tied_weights_are_joined_where_their_input_is_shared() -> None:
    model = Model(lambda model, x: (model.a(x), model.c(x), model.b(model.a.weight)))
    answer, places, _ = run("", model, ROWS)
    assert places == 1
    with torch.no_grad():
        torch.testing.assert_close(answer, model(ROWS))


# ---- plans


@pytest.fixture
def plainly(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Run the graphs that Inductor is given without compiling them, and list their functions."""
    found: list[list[str]] = []

    def run(module: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        named = [node.name for node in module.graph.find_nodes(op="placeholder")]
        for name, given in zip(named, inputs, strict=True):
            assert not name.startswith("prepared") or all(type(size) is int for size in given.shape)
        found.append([getattr(node.target, "__name__", str(node.target)) for node in module.graph.nodes])
        return module.forward

    monkeypatch.setattr(inductor, "_inductor", lambda _options: run)
    torch.compiler.reset()
    yield found
    torch.compiler.reset()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count how often joined weights are computed."""
    real, counts = prepared_weights._Values._compute, [0]

    def compute(self: Any, *args: Any) -> Any:
        counts[0] += 1
        return real(self, *args)

    monkeypatch.setattr(prepared_weights._Values, "_compute", compute)
    return counts


def compile_call(call: Any, plan: Plan, *args: Any) -> Any:
    return compile_plan(call, plan, Example(args), device="cpu", mode="inference").call


@torch.no_grad()
def test_weights_are_joined_once_and_a_change_of_them_is_noticed(plainly: list[Any], computed: list[int]) -> None:
    model = Model(attend).eval()
    state = {name: (id(tensor), tensor.clone()) for name, tensor in model.state_dict(keep_vars=True).items()}
    call = compile_call(model, PLAN, ROWS)
    for _ in range(3):
        torch.testing.assert_close(call(ROWS), model(ROWS))
    assert computed == [1]
    (functions,) = plainly
    assert functions.count("linear") == 1
    assert "cat" not in functions
    assert list(state) == list(model.state_dict())
    assert all(state[name][0] == id(tensor) for name, tensor in model.state_dict(keep_vars=True).items())
    model.b.bias.mul_(2)
    with pytest.raises(StalePlanError):
        call(ROWS)
    again = compile_call(model, PLAN, ROWS)
    torch.testing.assert_close(again(ROWS), model(ROWS))


@torch.no_grad()
@pytest.mark.usefixtures("plainly")
def test_a_parameter_that_takes_the_place_of_a_joined_one_is_noticed() -> None:
    model = Model(attend).eval()
    call = compile_call(model, PLAN, ROWS)
    call(ROWS)
    model.b.weight = nn.Parameter(model.b.weight + 1)
    with pytest.raises(StalePlanError):
        call(ROWS)


@torch.no_grad()
@pytest.mark.usefixtures("plainly")
def test_joined_weights_are_freed_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Tensor]] = []
    real = prepared_weights._Values._compute

    def compute(self: Any, *args: Any) -> Any:
        found = real(self, *args)
        made.extend(map(weakref.ref, found))
        return found

    monkeypatch.setattr(prepared_weights._Values, "_compute", compute)
    model = Model(attend).eval()
    call = compile_call(model, PLAN, ROWS)
    call(ROWS)
    assert made
    assert all(one() is not None for one in made)
    del call
    gc.collect()
    assert all(one() is None for one in made), "the model lives on"


class Blocks(nn.Module):
    """Blocks of one class, whose code Dynamo shares, as each breaks the graph."""

    def __init__(self, *, breaks: bool = True) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Model(self.run) for _ in range(3))
        for block in self.blocks:
            nn.init.normal_(block.a.weight, std=0.3)
        self.breaks = breaks

    def run(self, block: Any, x: Tensor) -> Tensor:
        if self.breaks:
            torch._dynamo.graph_break()
        return functional.silu(block.a(x)) * block.c(x)[..., :8]

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@torch.no_grad()
def test_layers_that_share_code_have_weights_of_their_own(plainly: list[Any], computed: list[int]) -> None:
    model = Blocks().eval()
    call = compile_call(model, PLAN, ROWS)
    for _ in range(3):
        torch.testing.assert_close(call(ROWS), model(ROWS))
    assert computed[0] == 3
    assert sum("linear" in functions for functions in plainly) in (1, 3)


@torch.no_grad()
def test_layers_and_sizes_with_the_same_weights_share_the_joined_ones(
    plainly: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Tensor] = []
    real = prepared_weights._Values._compute

    def compute(self: Any, *args: Any) -> Any:
        found = real(self, *args)
        made.extend(found)
        return found

    monkeypatch.setattr(prepared_weights._Values, "_compute", compute)
    model = Blocks().eval()
    model.blocks[2] = model.blocks[1]
    call = compile_call(model, PLAN, ROWS)
    for rows in (ROWS, ROWS[:1]):
        torch.testing.assert_close(call(rows), model(rows))
    assert len(plainly) > 1, "the other size has code of its own"
    assert len(made) > 4
    assert len({id(tensor) for tensor in made}) == 4, "two layers have weights and biases"


@torch.no_grad()
def test_a_part_of_a_model_may_have_any_name() -> None:
    model = Model(attend).eval()
    model.inside = nn.Linear(2, 2)
    rewrites = {"joined_products": joined_products.rewrite}
    backend = prepared_weights.PreparedWeights(lambda module, _: module.forward, model, rewrites)
    torch.compiler.reset()
    with backend.assert_applied():
        torch.testing.assert_close(torch.compile(model, backend=backend)(ROWS), model(ROWS))


@torch.no_grad()
def test_a_graph_that_a_rewrite_is_not_for_stays() -> None:
    def refuse(_: torch.fx.Graph) -> int:
        raise UnsupportedError("it has a reason")

    model = Model(attend).eval()
    rewrites = {"refused": refuse, "joined_products": joined_products.rewrite}
    backend = prepared_weights.PreparedWeights(lambda module, _: module.forward, model, rewrites)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(model, backend=backend)(ROWS), model(ROWS))
    with pytest.raises(NoEffectError, match="it has a reason"), backend.assert_applied():
        pass


@torch.no_grad()
@pytest.mark.usefixtures("plainly")
@pytest.mark.parametrize(
    "changed",
    [
        {"scope": "regional"},
        {"precision": "bf16"},
        {"precision": "autocast_bf16"},
        {"shapes": "dynamic"},
        {"transforms": ("joined_products", "fused_attention")},
    ],
    ids=str,
)
def test_it_goes_with_other_parts_of_a_plan(changed: dict[str, Any], plainly: list[Any], computed: list[int]) -> None:
    model = Blocks(breaks=False).eval()
    plan = Plan(**{"backend": "inductor", "transforms": ("joined_products",), **changed})
    call = compile_call(model, plan, ROWS)
    tolerance = 0.1 if "precision" in changed else 1e-5
    for rows in (ROWS, ROWS, ROWS[:1]):
        torch.testing.assert_close(call(rows), model(rows), rtol=tolerance, atol=tolerance)
    assert all(functions.count("linear") in (1, 3) for functions in plainly)
    assert computed[0] <= 3 * len(plainly)
    model.blocks[1].a.weight.mul_(2)
    with pytest.raises(StalePlanError):
        call(ROWS)


@torch.no_grad()
@pytest.mark.usefixtures("plainly")
def test_layers_of_few_bits_are_left_alone() -> None:
    model, x = Model(lambda model, x: model.c(x) + model.a(x) * model.b(x)).eval(), torch.randn(3, 16)
    model.a, model.b, model.c = (nn.Linear(16, 16) for _ in range(3))
    plan = Plan(backend="inductor", transforms=("int8_weights@skip=a,b", "joined_products"))
    torch.testing.assert_close(compile_call(model, plan, x)(x), model(x), rtol=0.05, atol=0.5)
    whole = Plan(backend="inductor", transforms=("int8_weights", "joined_products"))
    with pytest.raises(NoEffectError, match="joined_products changes nothing here: no graph has a place for it"):
        compile_call(model, whole, x)(x)


@torch.no_grad()
@pytest.mark.usefixtures("plainly")
def test_weights_that_nothing_checks_are_left_alone() -> None:
    m, n = (nn.Parameter(torch.randn(8, 4)) for _ in range(2))
    with pytest.raises(NoEffectError) as refused:
        compile_call(lambda x: (x @ m, x @ n), PLAN, ROWS)(ROWS)
    assert refused.value.part == ("transforms", "joined_products")
    given = Model(lambda _model, pair: (pair[0] @ pair[1], pair[0] @ pair[2]))
    with pytest.raises(NoEffectError):
        compile_call(given, PLAN, (ROWS, m, n))((ROWS, m, n))


@torch.no_grad()
def test_weights_whose_writes_are_not_counted_are_refused() -> None:
    with torch.inference_mode():
        model = Model(attend).eval()
    with pytest.raises(UnsupportedError, match="created in inference mode"):
        compile_call(model, PLAN, ROWS)


@pytest.mark.slow
@torch.no_grad()
def test_inductor_compiles_it_and_finds_the_code_in_its_caches() -> None:
    model, found = Model(attend).eval(), []
    for _ in range(2):
        torch.compiler.reset()
        call, before = compile_call(model, PLAN, ROWS), function_graphs._count_cached()
        for _ in range(2):
            torch.testing.assert_close(call(ROWS), model(ROWS))
        found.append(function_graphs._count_cached() - before)
        model.a.weight.mul_(0.5)
    assert found[1] > 0


@torch._inductor.config.patch(force_disable_caches=True)
@torch.no_grad()
def test_inductor_reads_joined_weights_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA graphs of Inductor copy all inputs but those that it knows as static."""
    seen: list[tuple[int, list[int]]] = []

    def compile_inner(module: Any, inputs: Any, *, static_input_idxs: Any = (), **_: Any) -> Any:
        seen.append((len(inputs), list(static_input_idxs)))
        raise UnsupportedError("it is enough")

    def compile_graph(module: Any, inputs: Any) -> Any:
        return compile_fx(module, inputs, inner_compile=compile_inner)

    monkeypatch.setattr(inductor, "_inductor", lambda _options: compile_graph)
    torch.compiler.reset()
    with pytest.raises(Exception, match="it is enough"):
        compile_call(Model(attend).eval(), PLAN, ROWS)(ROWS)
    ((inputs, static),) = seen
    assert len(static) == inputs - 1, "all but the rows"


def test_plans_that_cannot_have_it_are_refused() -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"options": (("freezing", True),)}, "on a GPU, Inductor then joins such products itself"),
        ({"scope": "rolled"}, "which rewrites functions, but scope is 'rolled'"),
        ({"backend": "eager"}, "eager compiles nothing"),
        ({"backend": "openvino"}, "which is for inductor, but backend is 'openvino'"),
        ({"optimizer": "fused"}, "frozen weights do not train"),
    ]
    for changed, message in refused:
        with pytest.raises(PlanError, match=message):
            Plan(**{"backend": "inductor", "transforms": ("joined_products",), **changed})
    with pytest.raises(UnsupportedError, match="the weights are joined in the process that compiles"):
        check_possible(PLAN)
    assert adapt_to_aot(PLAN) == Plan(backend="inductor")


def test_only_models_that_multiply_one_input_by_several_weights_have_the_choice() -> None:
    model, other = Model(attend).eval(), Model(OTHERS["one product"]).eval()
    found = [detect_traits(one, lambda one=one: one(ROWS), Instruments(lambda: None)) for one in (model, other)]
    assert [one[Trait.SHARED_INPUTS] for one in found] == [True, False]
    needed = frozenset({Trait.MODULE, Trait.GEMM, Trait.SHARED_INPUTS})
    for traits, effort, mode, is_open in (
        (needed, "standard", "inference", True),
        (needed, "quick", "inference", False),
        (needed, "standard", "training", False),
        (needed - {Trait.SHARED_INPUTS}, "standard", "inference", False),
    ):
        for device in ("cpu", "cuda"):
            space = PlanSpace(device, mode, traits, Numerics.SAME_PRECISION, effort)
            assert (PLAN in [plan for plan, _ in space.neighbours(Plan())]) is is_open
