"""Complex → real and fusion: values that would be lowered over and over are written to memory, and no others are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from test_complex_to_real import FIELD, PLAN, close, graph_of, z

from torchwise._torch import inductor
from torchwise.compile import compile_plan
from torchwise.compile.transforms.complex_to_real import passes
from torchwise.compile.transforms.complex_to_real.fusion import MAX_EVALUATIONS, bound_repeated_work, patient_fusion
from torchwise.compile.transforms.complex_to_real.rewrite import rewrite
from torchwise.workload import Example
from torchwise_models.zoo.ivhl import field_superposition, gross_pitaevskii_step, vortex_field


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def chain(link: Callable[[Any, int], Any], begin: Callable[[Any], Any] = torch.abs) -> Callable[[int], Any]:
    def make_chain(links: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def call(x: torch.Tensor) -> torch.Tensor:
            y = begin(x * (1 + 2j))
            for k in range(links):
                y = link(y, k)
            return y

        return call

    return make_chain


CHAINS = {
    "sine": chain(lambda y, k: y + 0.05 * torch.sin(y + 0.1 * k)),
    "exponential": chain(lambda y, k: y + 0.01 * torch.exp(-y - k)),
    "power": chain(lambda y, k: y + 0.01 * torch.pow(y + k, 1.5)),
    "choice": chain(lambda y, k: torch.where(y > 0.1 * k, y * 1.01, y - 0.01)),
    "diamond": chain(lambda y, k: torch.sin(y + k) * torch.cos(y - k)),
    "behind an angle": chain(lambda y, k: y + 0.05 * torch.tanh(y + k), torch.angle),
    "of complex products": chain(lambda y, k: y * y + k, lambda x: x),
    "of complex sines": chain(lambda y, k: y + 0.1 * torch.sin(y), lambda x: x),
}


def rewritten(call: Callable[..., Any], *args: torch.Tensor) -> Any:
    return rewrite(graph_of(call, args), args)


@contextlib.contextmanager
def counted_evaluations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count how many operators Inductor evaluates each time that it asks how large a value is."""
    from torch._inductor.ops_handler import OpCounterCSE

    counts: list[int] = []
    made, counted = OpCounterCSE.__init__, OpCounterCSE._update_count

    def start_count(self: Any, inner: Any) -> None:
        counts.append(0)
        made(self, inner)

    def one_more(self: Any, value: Any) -> Any:
        counts[-1] += 1
        return counted(self, value)

    with monkeypatch.context() as patch:
        patch.setattr(OpCounterCSE, "__init__", start_count)
        patch.setattr(OpCounterCSE, "_update_count", one_more)
        yield counts


def lower_and_count(rewriting: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """Lower a graph as Inductor does, without code. Return the most evaluations that one value took."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    fake_mode = inductor.PROPAGATE_FAKES.get()(rewriting.module, rewriting.inputs, True)
    lowering = GraphLowering(rewriting.module, example_inputs=rewriting.inputs, shape_env=fake_mode.shape_env)
    with (
        counted_evaluations(monkeypatch) as counts,
        patient_fusion(),
        V.set_graph_handler(lowering),
        V.set_fake_mode(fake_mode),
    ):
        lowering.run(*rewriting.inputs)
    return max(counts, default=0)


@pytest.mark.parametrize("links", CHAINS.values(), ids=list(CHAINS))
def test_a_chain_is_cut_so_that_lowering_it_takes_a_time_in_proportion(
    links: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = [bound_repeated_work(rewritten(links(length), z(6, 5)).module.graph) for length in (20, 40)]
    assert 2 <= marks[0] < marks[1] <= 3 * marks[0]
    rewriting = rewritten(links(10), z(6, 5))
    assert bound_repeated_work(rewriting.module.graph) >= 1
    assert lower_and_count(rewriting, monkeypatch) <= 3 * MAX_EVALUATIONS, "of a value that is cut, or of one behind it"


def test_without_marks_the_work_doubles_with_each_link(monkeypatch: pytest.MonkeyPatch) -> None:
    most = [lower_and_count(rewritten(CHAINS["sine"](length), z(6, 5)), monkeypatch) for length in (5, 6, 7)]
    assert most[2] > 1.8 * most[1] > 3.2 * most[0], "else Inductor bounds it by itself, and marks are not needed"


def wide(points: int) -> Callable[..., Any]:
    return lambda x, w: (x[:, None] * w).exp().sum(1) * points


UNCUT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "field": (lambda *given: field_superposition(*given, 12.5, FIELD[-1]), FIELD[:-2]),
    "condensate": (gross_pitaevskii_step, (z(4, 5, 6),)),
    "vortices": (lambda a, b, c: vortex_field(a, b, c, 0.125), (torch.rand(16, 2), torch.rand(5, 2), torch.ones(5))),
    "sum": (wide(3), (z(8), z(9))),
    "short chain": (CHAINS["sine"](3), (z(6, 5),)),
}


@pytest.mark.parametrize(("call", "args"), UNCUT.values(), ids=list(UNCUT))
@pytest.mark.parametrize("large_on_a_gpu", [False, True])
def test_what_repeats_little_is_fused_as_before(
    call: Callable[..., Any], args: tuple[Any, ...], large_on_a_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large_on_a_gpu:
        for name, value in {"DEVICE": "cpu", "MIN_ELEMENTS": 1, "MIN_ANGLES": 1}.items():
            monkeypatch.setattr(passes, name, value)
    rewriting = rewritten(call, *args)
    assert bound_repeated_work(rewriting.module.graph) == 0


def steps(field: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        field = gross_pitaevskii_step(field)
    return field


def test_many_steps_are_cut_where_inductor_cuts_them_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    rewriting = rewritten(steps, z(4, 5, 6))
    assert bound_repeated_work(rewriting.module.graph) == 0
    assert lower_and_count(rewriting, monkeypatch) < MAX_EVALUATIONS


@pytest.mark.slow
def test_a_chain_that_was_cut_gives_what_eager_gives() -> None:
    call, x = CHAINS["sine"](14), z(64, 6)
    with torch.no_grad():
        made = compile_plan(call, PLAN, Example((x,)), device="cpu", mode="inference").call
        close(made(x), call(x), 64)
