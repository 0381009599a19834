"""Where a compiler refuses a graph, its largest parts are compiled, and the operators between them run in eager."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from builders import a_study, a_trial
from torchwise.compile import tell_shares
from torchwise.compile.backends import largest_parts, shares
from torchwise.compile.backends.exported import compile_exported
from torchwise.compile.backends.idle_dropout import take_out_idle_dropout
from torchwise.compile.backends.named_operators import OperatorError
from torchwise.compile.backends.pure_graph import PureGraph
from torchwise.compile.compiled_plan import compile_plan
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.plan.effort import EFFORTS
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.report.document import Entry, Section
from torchwise.report.study import study_document
from torchwise.trial import Job
from torchwise.trial.experiment import attempt
from torchwise.workload import Example, pytree

OPENVINO, ONNX = Plan(backend="openvino"), Plan(backend="onnxruntime")
i0, sinc = torch.special.i0, torch.special.sinc


@pytest.fixture(autouse=True)
def forget_shares() -> None:
    shares._ALL.clear()


class Interpreter:
    """A compiler that runs exported programs operator by operator, and may name the operator that it lacks."""

    def __init__(self, lacks: str = "aten.special_i0", *, names: bool = True) -> None:
        self.tries, self.sizes = 0, list[int]()
        self._lacks, self._names = lacks, names

    def __call__(self, program: torch.export.ExportedProgram, inputs: Any, outputs: Any) -> Any:
        self.tries += 1
        graphs = [one.graph for one in program.graph_module.modules() if isinstance(one, torch.fx.GraphModule)]
        lacking = [node for one in graphs for node in one.nodes if str(node.target).startswith(self._lacks)]
        if lacking:
            raise OperatorError(f"it has no {self._lacks}", lacking if self._names else ())
        assert all(one.is_contiguous() for one in inputs)
        self.sizes.append(sum(node.op == "call_function" for node in program.graph.nodes))
        module = program.module()
        return lambda inputs: [one.clone(memory_format=torch.contiguous_format) for one in module(*inputs)]


def compile_by(call: Callable[..., Any], compiler: Any, plan: Plan = OPENVINO) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.no_grad()(compile_exported(call, plan, compiler))


def check_same(compiled: Callable[..., Any], plain: Callable[..., Any], *args: torch.Tensor) -> None:
    with torch.no_grad():
        for _ in range(2):
            given, own = [one.clone() for one in args], [one.clone() for one in args]
            found, expected = compiled(*given), plain(*own)
            torch.testing.assert_close(pytree.tensors(found), pytree.tensors(expected), check_stride=True)
            torch.testing.assert_close(given, own)


def grow(x: torch.Tensor, times: int = 5) -> torch.Tensor:
    for number in range(times):
        x = torch.tanh(x * 0.9) + number
    return x


class Blocks(torch.nn.Module):
    """Attention layers. Each has an operator that a compiler may lack between its products."""

    def __init__(self, lacking: Callable[[torch.Tensor], torch.Tensor], layers: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lacking = lacking
        self.inner = torch.nn.ModuleList(torch.nn.Linear(8, 24) for _ in range(layers))
        self.outer = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> Any:
        for inner, outer in zip(self.inner, self.outer, strict=True):
            q, k, v = inner(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4).unbind(0)
            found = self.lacking(torch.nn.functional.scaled_dot_product_attention(q, k, v) * 0.5)
            x = x + torch.nn.functional.gelu(outer(found.transpose(1, 2).flatten(2)))
        return x


@pytest.mark.parametrize("names", [True, False])
def test_what_a_compiler_lacks_in_each_layer_is_left_to_eager(names: bool) -> None:
    model, x, compiler = Blocks(i0).eval(), torch.randn(2, 3, 8), Interpreter(names=names)
    compiled = compile_by(model, compiler)
    check_same(compiled, model, x)
    share = tell_shares()
    assert "openvino takes 12 of 21 operators, in 2 parts. Eager runs the rest: it has no aten.special_i0" in share
    if names:
        assert compiler.tries == 3, "the whole, and each part"
    else:
        assert 3 < compiler.tries <= 9, "the first one is found by halving, and the others are of its kind"
    torch.compiler.reset()


def test_an_operator_that_is_left_out_alone_is_no_kind() -> None:
    """It is refused only together with others, so that others of its kind stay in the parts."""

    def compile_few(program: torch.export.ExportedProgram, inputs: Any, outputs: Any) -> Any:
        if sum(str(node.target) == "aten.tanh.default" for node in program.graph.nodes) > 3:
            raise RuntimeError("too many")
        return Interpreter()(program, inputs, outputs)

    compiled = compile_by(grow, compile_few)
    check_same(compiled, grow, torch.randn(3))
    assert "takes 14 of 15 operators, in 2 parts. Eager runs the rest: RuntimeError: too many" in tell_shares()


def test_an_input_that_is_a_reason_names_the_operators_that_read_it() -> None:
    named = list[Any]()

    def export(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        with pytest.raises(OperatorError, match="complex numbers") as found:
            PureGraph(graph, inputs).export()
        named.append(found.value.names)
        return graph.forward

    torch.compiler.reset()
    torch.compile(lambda x, y: x.abs() * y, backend=export)(torch.ones(2, dtype=torch.complex64), torch.ones(2))
    assert named == [{"abs_1"}]


# Memory.


def keep_views(x: torch.Tensor) -> Any:
    y = grow(x)
    row, turned = y[0], y.t()
    z = i0(y)
    return y, row, turned, grow(z + row.sum() + turned.sum())


def write_between(x: torch.Tensor) -> Any:
    y = grow(x)
    row = y[0]
    i0(y, out=y)
    y.add_(1)
    return grow(row * 2), y


def write_in_part(x: torch.Tensor) -> Any:
    y = grow(x)
    y[0] = 7
    y.mul_(2).relu_()
    z = i0(y)
    return grow(z).add_(1), y


def pass_tuples(x: torch.Tensor) -> Any:
    values, places = grow(x).sort(-1)
    first, second = i0(values).chunk(2)
    low, high = first.split(1, 1)[0], second
    return grow(low) + high, places


def return_inputs(x: torch.Tensor) -> Any:
    turned = x.t()
    return grow(turned @ x), x, turned, i0(x), grow(x)[:1].expand(4, 4)


@pytest.mark.parametrize("call", [keep_views, write_in_part, pass_tuples, return_inputs, write_between])
def test_memory_is_shared_as_in_eager(call: Callable[..., Any]) -> None:
    x = torch.rand(4, 4)
    compiled = compile_by(call, Interpreter())
    check_same(compiled, call, x)
    assert "Eager runs the rest" in tell_shares()
    for found, plain in zip(pytree.tensors(compiled(x)), pytree.tensors(call(x)), strict=True):
        shares_found = [found.untyped_storage().data_ptr() == one.untyped_storage().data_ptr() for one in (x,)]
        assert shares_found == [plain.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()]
    first, *others = pytree.tensors(compiled(x))
    own, *others_own = pytree.tensors(call(x))
    first.fill_(3)
    own.fill_(3)
    torch.testing.assert_close(others, others_own)


def read_around(x: torch.Tensor) -> Any:
    y = grow(x)[:, ::2]
    z = i0(x)
    return grow(z), y.as_strided((4, 2), (4, 1)) * 2


@pytest.mark.parametrize("names", [True, False])
def test_elements_around_a_tensor_are_read_as_in_eager(names: bool) -> None:
    compiled = compile_by(read_around, Interpreter(names=names))
    check_same(compiled, read_around, torch.rand(4, 4))
    assert "Eager runs the rest" in tell_shares()


def test_a_change_of_form_in_place_leaves_its_graph_to_eager() -> None:
    """The graph records the last form alone, which is not that of the part's answer."""

    def call(x: torch.Tensor) -> Any:
        y = grow(x)
        z = i0(y)
        y.t_()
        return grow(y), z

    told = r"no part of it is compiled, as it changes the shape or strides of a tensor in place \(t_\)"
    with pytest.raises(UnsupportedError, match=told), torch.no_grad():
        compile_by(call, Interpreter())(torch.rand(4, 3))


def test_a_number_read_from_a_tensor_leaves_its_graph_to_eager() -> None:
    """A part could not compute it again, as the tensor may be written to meanwhile."""

    def call(x: torch.Tensor) -> Any:
        y = grow(x)
        number = y.sum().item()
        return i0(y.mul_(2)) * number + grow(y)

    told = r"it reads a number from a tensor \(item\)"
    with torch._dynamo.config.patch(capture_scalar_outputs=True), pytest.raises(UnsupportedError, match=told):
        compile_by(call, Interpreter())(torch.rand(4, 3))


dropout = torch.nn.functional.dropout


def write_to_dropped(x: torch.Tensor) -> Any:
    same = dropout(x, 0.5, training=False)
    same.neg_()
    return grow(x), same * 2


def write_to_its_view(x: torch.Tensor) -> Any:
    dropout(x, 0.0).t().mul_(0.5)
    return grow(x)


def return_dropped(x: torch.Tensor) -> Any:
    y = grow(x)
    return dropout(y, 0.5, training=False), y, dropout(x, training=False)


def write_across_parts(x: torch.Tensor) -> Any:
    y = grow(x)
    same = torch.nn.functional.alpha_dropout(y, 0.5, training=False)
    y.add_(i0(torch.exp(same * 0.1).sigmoid()))
    return grow(same) + same * 2, y


def write_beside_a_view(x: torch.Tensor) -> Any:
    y = grow(x)
    seen = dropout(y, 0.5, training=False).t()
    y.add_(i0(torch.exp(x * 0.1).sigmoid()))
    return grow(seen) + seen * 2, y


def write_to_dropped_by_an_operator(x: torch.Tensor) -> Any:
    same = torch.ops.aten.dropout.default(x, 0.5, False)
    same.neg_()
    return grow(x), same * 2


DROPPED = [
    write_to_dropped_by_an_operator,
    write_to_dropped,
    write_to_its_view,
    return_dropped,
    write_across_parts,
    write_beside_a_view,
]


@pytest.mark.parametrize("call", DROPPED)
def test_dropout_that_is_off_returns_its_input(call: Callable[..., Any]) -> None:
    x = torch.linspace(-1, 1, 12).view(3, 4)
    compiled = compile_by(call, Interpreter())
    check_same(compiled, call, x)
    with torch.no_grad():
        found, expected = pytree.tensors(compiled(mine := x.clone())), pytree.tensors(call(own := x.clone()))
    assert [one is mine for one in found] == [one is own for one in expected]
    alike = [[a.data_ptr() == b.data_ptr() for b in several] for several in (found, expected) for a in several]
    assert alike[: len(found)] == alike[len(found) :]


def test_an_operator_of_another_library_is_no_dropout() -> None:
    def dropout(x: torch.Tensor, rate: float, training: bool) -> torch.Tensor:
        return x * 2

    graph = torch.fx.Graph()
    graph.output(graph.call_function(dropout, (graph.placeholder("x"), 0.5, False)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    take_out_idle_dropout(module)
    assert torch.equal(module(torch.ones(2)), torch.full((2,), 2.0))


def test_dropout_whose_memory_is_not_known_leaves_its_graph_to_eager() -> None:
    """Its answer would have no gaps in the graph's own record."""

    def call(x: torch.Tensor) -> torch.Tensor:
        rows = dropout(x[:, ::2], 0.5, training=False)
        rows.neg_()
        return grow(x)

    compiled = compile_by(call, Interpreter())
    with pytest.raises(UnsupportedError, match="dropout that is off returns a tensor with gaps"), torch.no_grad():
        compiled(torch.ones(3, 4))


def test_a_part_that_refuses_its_inputs_is_answered_by_its_operators() -> None:
    """The whole model would write to the input a second time."""
    table = torch.randn(100, 4)

    def call(x: torch.Tensor, places: torch.Tensor, table: torch.Tensor) -> Any:
        x.add_(1)
        return table[places].mul(0.5).tanh().exp().sum(-1) + i0(x), x.clone()

    refused = list[int]()

    def compile_program(program: torch.export.ExportedProgram, inputs: Any, outputs: Any) -> Any:
        run = interpret(program, inputs, outputs)

        def answer(given: Any) -> Any:
            if any(one.dtype is torch.int64 and int(one.max()) > 50 for one in given):
                refused.append(1)
                raise UnsupportedError("no such places")
            return run(given)

        return answer

    interpret = Interpreter()
    compiled = compile_by(call, compile_program)
    check_same(compiled, call, torch.ones(3), torch.tensor([1, 2, 3]), table)
    assert not refused
    check_same(compiled, call, torch.ones(3), torch.tensor([1, 2, 99]), table)
    assert refused


def test_a_graph_after_others_is_answered_by_its_operators() -> None:
    """The whole model would write to the input a second time."""

    def call(x: torch.Tensor, places: torch.Tensor) -> Any:
        x.add_(1)
        torch._dynamo.graph_break()
        return grow(x)[places]

    compiled = compile_by(call, Interpreter())
    check_same(compiled, call, torch.ones(3), torch.tensor([1, 2]))
    check_same(compiled, call, torch.ones(3), torch.tensor([1, -1]))


def test_sizes_go_into_parts_and_out_of_them() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        twice = x.shape[0] * 2
        y = grow(x) * x.shape[0] + twice
        y = i0(y.reshape(-1, y.shape[0] * 2)) * y.shape[1]
        return grow(y.reshape(x.shape[0], -1)) / x.shape[1] + twice

    compiler = Interpreter()
    compiled = compile_by(call, compiler, replace(OPENVINO, shapes="dynamic"))
    for rows, columns in ((3, 4), (5, 6), (7, 4)):
        check_same(compiled, call, torch.rand(rows, columns))
    assert len(compiler.sizes) == 2, "one compilation serves all sizes"


def test_a_graph_is_taken_whole_but_for_the_views_that_it_returns() -> None:
    compiler = Interpreter()
    check_same(compile_by(return_views, compiler), return_views, torch.rand(4, 4))
    assert len(compiler.sizes) == 1
    assert not tell_shares(), "it takes all"


def return_views(x: torch.Tensor) -> Any:
    y = grow(x)
    return y, y[0], x[1], y.t(), grow(y)[:1].expand(4, 4)


# What is refused.


def test_parts_of_few_operators_are_left_to_eager() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return i0(grow(i0(torch.tanh(x) + 1)))

    compiler = Interpreter()
    check_same(compile_by(call, compiler), call, torch.rand(3))
    assert compiler.sizes == [15]
    few = compile_by(lambda x: i0(torch.tanh(x) + 1), Interpreter())
    with pytest.raises(UnsupportedError, match=r"takes no part of the model: it has no aten.special_i0$"):
        few(torch.rand(3))


def test_a_small_share_of_the_operators_is_refused() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = i0(x) * 0.1
        return grow(x, times=2)

    compiler = Interpreter()
    told = r"it has no aten.special_i0 \(of 86 operators it could take 7, and must take 25%\)"
    with pytest.raises(UnsupportedError, match=told):
        compile_by(call, compiler)(torch.rand(3))
    assert compiler.tries == 1, "that is known before a part is compiled"


def test_a_small_share_of_several_graphs_is_refused() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        x = grow(x)
        torch._dynamo.graph_break()
        for _ in range(60):
            x = i0(x) * 0.1
        return x

    with pytest.raises(UnsupportedError, match=r"openvino takes 15 of 135 operators, .* It must take at least 25%"):
        compile_by(call, Interpreter())(torch.rand(3))


def test_a_graph_that_sets_autocast_has_no_parts() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return i0(grow(x @ x).float())

    compiler = Interpreter()
    with pytest.raises(UnsupportedError, match="and no part of it is compiled, as it does more than compute tensors"):
        compile_by(call, compiler)(torch.rand(3, 3))
    assert not compiler.sizes


def test_tries_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(largest_parts, "MAX_TRIES", 3)
    model, x = Blocks(i0, layers=6).eval(), torch.randn(2, 3, 8)
    compiler = Interpreter()
    check_same(compile_by(model, compiler), model, x)
    assert len(compiler.sizes) == 3
    assert "3 parts were tried, which is the most" in tell_shares()


def test_a_lack_of_memory_or_of_a_build_is_told_at_once() -> None:
    for error in (torch.OutOfMemoryError("full"), UnsupportedError("no such build", ("backend",))):
        tries = list[Any]()

        def fail(*_: Any, error: Exception = error, tries: list[Any] = tries) -> Any:
            tries.append(error)
            raise error

        with pytest.raises(Exception, match=r"full|no such build"):
            compile_by(grow, fail)(torch.rand(3))
        assert len(tries) == 1


# Real compilers.


def compile_whole(model: Any, plan: Plan, *args: torch.Tensor) -> Callable[..., Any]:
    torch.compiler.reset()
    return torch.no_grad()(compile_plan(model, plan, Example(args), device="cpu", mode="inference").call)


REFUSED_BY_ALL = {
    "no operation": lambda y: torch.special.gammaincc(y.abs() + 1, y.abs() + 2),
    "complex": lambda y: torch.fft.rfft(y).abs().sum(-1, keepdim=True) * y,
    "random": lambda y: y + torch.rand_like(y) * 0,
    "in place": lambda y: y.add_(torch.special.i1(y)),
}


@pytest.mark.parametrize("case", REFUSED_BY_ALL)
def test_openvino_takes_the_parts_around_it(case: str) -> None:
    model, x = Blocks(REFUSED_BY_ALL[case], layers=2).eval(), torch.randn(2, 3, 8)
    check_same(compile_whole(model, OPENVINO, x), model, x)
    assert "openvino takes " in tell_shares()


@pytest.mark.parametrize("call", DROPPED)
def test_openvino_heeds_that_dropout_that_is_off_returns_its_input(call: Callable[..., Any]) -> None:
    x = torch.linspace(-1, 1, 12).view(3, 4)
    check_same(compile_whole(call, OPENVINO, x), call, x)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["no operation", "complex"])
def test_onnx_runtime_takes_the_parts_around_it(case: str) -> None:
    model, x = Blocks(REFUSED_BY_ALL[case], layers=1).eval(), torch.randn(2, 3, 8)
    check_same(compile_whole(model, ONNX, x), model, x)
    assert "onnxruntime takes " in tell_shares()


# What is told.


def test_a_trial_tells_the_share(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    spec = WorkloadSpec(f"{__file__}:make_blocks")
    found = attempt(Job("try", spec, OPENVINO, effort=EFFORTS["quick"]), lambda _stage: None)
    assert found.share.startswith("openvino takes 11 of 16 operators, in 2 parts. Eager runs the rest: OpenVINO has")


def make_blocks() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    return Blocks(sinc_and_bessel, layers=2).eval(), (torch.randn(2, 3, 8),)


def sinc_and_bessel(y: torch.Tensor) -> torch.Tensor:
    return torch.special.bessel_j0(sinc(y))


def test_a_report_tells_the_share() -> None:
    share = "openvino takes 12 of 14 operators, in 2 parts. Eager runs the rest: no such operator"
    study = replace(a_study(), trials=(a_trial(0, OPENVINO, share=share), a_trial(1, ONNX)))
    blocks = study_document(study, plots=()).blocks
    (notes,) = [block for block in blocks if isinstance(block, Section) and block.title == "Notes"]
    assert share in str(notes)
    entries = [entry for block in blocks for entry in getattr(block, "blocks", ()) if isinstance(entry, Entry)]
    assert [share in str(entry) for entry in entries] == [False, True]
