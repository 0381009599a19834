"""Fixes against recompiles: each is tried, and only one that was seen to help is recommended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from explain_samples import COMPILATION, FixedPrices, evidence, potential_saving, price
from targets import storms
from torchwise.diagnose import findings_recompiles as recompiles
from torchwise.diagnose import fix_trials
from torchwise.diagnose.evidence import Evidence, Fix, HeldNumber
from torchwise.diagnose.findings import find_slower_run
from torchwise.diagnose.fix_trials import Settled, find_varying_sizes, settle
from torchwise.diagnose.trace import Trace
from torchwise.plan import Plan
from torchwise.records import Measurement
from torchwise.records.compile_events import CompileEvents, Frame, Recompile, UncompiledKind, UncompiledPart
from torchwise.records.explanation import Basis, FixTrial
from torchwise.trial.loading import runner
from torchwise.workload import Example, Workload


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have nothing generate code: the number of Dynamo's compiles does not depend on that."""
    own = torch.compile

    def quick(model: Any, *, dynamic: bool | None = None, options: dict[str, Any] | None = None) -> Any:
        filters = {name: value for name, value in (options or {}).items() if name == "guard_filter_fn"}
        return own(model, backend=lambda graph, _: graph, dynamic=dynamic, options=filters or None)

    monkeypatch.setattr(torch, "compile", quick)
    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=4):
        yield
    torch.compiler.reset()


class Arena:
    """Provides calls, and no clock."""

    device, mode = "cpu", "inference"

    def __init__(self, model: Callable[..., Any], inputs: list[tuple[Any, ...]]) -> None:
        self.workload = Workload(model, tuple(Example(args) for args in inputs))

    def runners(self, call: Callable[..., Any], _model: Any = None) -> list[Callable[[], Any]]:
        return [runner(call, example, self.mode) for example in self.workload.examples]


def run(arena: Arena) -> tuple[list[Fix], Evidence]:
    """Run a model as it is. Return the fixes that may help the first recompiled function, and the evidence."""
    with Trace() as trace:
        calls = arena.runners(torch.compile(arena.workload.call))
        for _ in range(7):
            for call in calls:
                call()
    varying = find_varying_sizes(arena.workload.call, arena.workload.examples)
    seen = evidence(watched=trace.to_record(), varying=varying)
    again = seen.watched.recompiles
    return recompiles.fixes(Frame(again[0].file, again[0].line, again[0].function), list(again), seen), seen


def try_fixes(model: Callable[..., Any], inputs: list[tuple[Any, ...]] | None = None) -> dict[str, Settled]:
    arena = Arena(model, inputs or [(storms.X,)])
    with torch.no_grad():
        fixes, seen = run(arena)
        assert any(one.kind is UncompiledKind.RECOMPILE_LIMIT for one in seen.watched.fallbacks)
        return {fix.kind: settle(fix, arena) for fix in fixes}  # type: ignore[arg-type]


def find_helpful(found: dict[str, Settled]) -> set[str]:
    return {kind for kind, one in found.items() if one.is_steady and one.is_alike}


@pytest.mark.parametrize(
    ("kind", "works", "fails"),
    [
        (storms.Counts, {"setting", "hoist", "tensor"}, set()),
        (storms.CountsAndUses, {"setting", "tensor"}, {"hoist"}),
        (storms.Around, {"setting", "hoist", "tensor"}, set()),
        (storms.CountsInDict, {"setting", "hoist"}, set()),
        (storms.Relabels, {"hoist"}, set()),
        (storms.Remembers, {"hoist"}, set()),
        (storms.CountsGlobally, {"hoist"}, set()),
        pytest.param(
            storms.CountsOnItsClass,
            {"hoist"},
            set(),
            # torch 2.11 compiles it once, and counts one call for all.
            marks=pytest.mark.skipif(torch.__version__ < "2.12", reason="this torch misses a class that changes"),
        ),
        (storms.Grows, {"setting"}, set()),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_keeps_a_model_from_being_compiled_anew_is_told_by_trying(
    kind: Callable[[], Any], works: set[str], fails: set[str]
) -> None:
    found = try_fixes(kind())
    assert find_helpful(found) == works
    assert set(found) - works == fails


def test_a_name_that_the_answer_needs_is_not_kept_out() -> None:
    found = try_fixes(storms.takes_label, storms.label_calls(lambda number: "a" * number))
    assert "depend on the varying value" in found["hoist"].in_words
    assert not find_helpful(found)


@pytest.mark.parametrize(
    ("inputs", "works"),
    [
        (storms.one_by_one(lambda _: 4), {"mark"}),
        (storms.one_by_one(lambda place: 10 + 3 * place), {"mark", "dynamic"}),
    ],
    ids=["of one size at first", "of sizes of their own"],
)
def test_dynamic_shapes_are_recommended_where_they_help_and_there_alone(inputs: Any, works: set[str]) -> None:
    found = try_fixes(storms.OfMany(), inputs)
    assert {"mark", "dynamic"} <= set(found)
    assert find_helpful(found) == works
    if "dynamic" not in works:
        assert "then run in eager as well" in found["dynamic"].in_words


def test_the_model_itself_is_left_as_it_was() -> None:
    model = storms.Counts()
    arena = Arena(model, [(storms.X,)])
    code, number = "self.register_buffer('calls', torch.tensor(0))", HeldNumber("self", "", "calls")
    fix = Fix("tensor", code, "", number=number, of=_where(model))
    with torch.no_grad():
        settle(fix, arena)  # type: ignore[arg-type]
    assert model.calls == 0
    assert type(model) is storms.Counts


def _where(model: torch.nn.Module) -> Frame:
    code = type(model).forward.__code__
    return Frame(code.co_filename, code.co_firstlineno, code.co_name)


def test_every_line_of_code_that_is_recommended_runs_as_it_is_printed() -> None:
    """Settings, marks and buffers, each in a program of its own that has the names they use."""
    model = storms.Counts()
    arena, inputs = Arena(model, [(storms.X,)]), storms.one_by_one(lambda _: 4)
    with torch.no_grad():
        codes = {fix.kind: fix.code for fix in [*run(arena)[0], *run(Arena(storms.OfMany(), inputs))[0]]}
    config = torch._dynamo.config
    with config.patch(allow_unspec_int_on_nn_module=False):
        exec(codes["setting"], {"torch": torch})
        assert config.allow_unspec_int_on_nn_module
    exec(codes["mark"], {"torch": torch, "xs": inputs[0][0]})
    del model.calls
    exec(codes["tensor"], {"torch": torch, "self": model})
    assert model.calls.dim() == 0
    assert callable(eval(codes["dynamic"], {"torch": torch, "model": model}))


GUARD = "self.calls == 8"
COUNTER = Recompile(
    "forward", "model.py", 10, GUARD, "the value of self.calls", "self.calls", count=8, compile_ids=("0/1",)
)
AGAIN = replace(COMPILATION, compile_id="0/1", seconds=8.0)
LIMIT = UncompiledPart(UncompiledKind.RECOMPILE_LIMIT, "compiled too often", "forward", "model.py", 10)
GIVEN_UP = CompileEvents(5.0, recompiles=(COUNTER,), compilations=(COMPILATION, AGAIN), fallbacks=(LIMIT,))
REPEATED = replace(GIVEN_UP, fallbacks=())


def make_tried(helps: bool, saved: float, compilations: int = 1) -> FixTrial:
    return FixTrial("code", helps, "compiled", price(saved), compilations)


def test_what_is_given_up_has_the_price_of_its_best_fix_on_every_call() -> None:
    prices = FixedPrices(
        fixes={
            "setting": make_tried(True, 40e-6, 2),
            "hoist": make_tried(True, 80e-6),
            "tensor": make_tried(True, 90e-6),
        }
    )
    (found,) = recompiles.find_recompile_limits(evidence(watched=GIVEN_UP), prices)
    assert prices.asked == ["setting", "hoist"], "what changes more is not tried where less helps"
    assert potential_saving(found).per_call_s.mid == 80e-6
    assert (potential_saving(found).basis, potential_saving(found).once_s) == (Basis.MEASURED, 8.0)
    assert found.fix.startswith("Keep self.calls")
    assert "allow_unspec_int_on_nn_module" in found.fix
    assert [one.helps for one in found.tried] == [True, True]


def test_of_fixes_that_cannot_be_told_apart_the_one_that_changes_least_is_first() -> None:
    prices = FixedPrices(fixes={"setting": make_tried(True, 78e-6, 2), "hoist": make_tried(True, 80e-6)})
    (found,) = recompiles.find_recompile_limits(evidence(watched=GIVEN_UP), prices)
    assert found.fix.startswith("Set `torch._dynamo.config.allow_unspec_int_on_nn_module = True`")


@pytest.mark.parametrize(
    "useless", [make_tried(False, 60e-6), make_tried(True, -60e-6)], ids=["does not work", "is slower"]
)
def test_what_does_not_help_is_not_recommended(useless: FixTrial) -> None:
    prices = FixedPrices(fixes={"setting": useless, "hoist": useless, "tensor": useless})
    (found,) = recompiles.find_recompile_limits(evidence(watched=GIVEN_UP), prices)
    assert "allow_unspec" not in found.fix
    assert "register_buffer" not in found.fix
    assert found.fix.startswith("By hand (not tried)")
    assert potential_saving(found).basis is Basis.ESTIMATED
    assert not any(one.helps for one in found.tried)


def test_what_was_not_given_up_is_recommended_a_fix_that_spares_compiling() -> None:
    prices = FixedPrices(fixes={"setting": make_tried(True, 0.0, 2), "hoist": make_tried(True, -90e-6)})
    (found,) = recompiles.find_repeated(evidence(watched=REPEATED, calls=10_000_000), prices)
    assert found.fix.startswith("Set ")
    assert " Or" not in found.fix, "what costs more on ten million calls than it spares once is no fix"
    assert potential_saving(found).once_s == pytest.approx(7.0), "of eight compilations, one is left"


def test_a_plan_has_settings_of_its_own() -> None:
    prices = FixedPrices(fixes={"setting": make_tried(True, 40e-6)})
    list(recompiles.find_recompile_limits(evidence(watched=GIVEN_UP, plan=Plan(backend="inductor")), prices))
    assert prices.asked == []


def test_a_gradient_that_comes_and_goes_is_for_the_caller() -> None:
    changed = replace(COUNTER, guard="tensor 'x' requires_grad mismatch. expected requires_grad=0", source="x")
    (found,) = recompiles.find_repeated(evidence(watched=replace(REPEATED, recompiles=(changed,))), FixedPrices())
    assert "requires_grad" in found.fix
    assert "dynamic" not in found.fix


def test_what_is_slower_for_being_given_up_says_so() -> None:
    slow = Measurement((200e-6,) * 5, (100e-6,) * 5)
    (found,) = find_slower_run(evidence(watched=GIVEN_UP, measurement=slow))
    assert "too often" in found.cause


def test_a_fix_that_raises_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchwise.diagnose.savings import Savings

    def fails(*_: object) -> None:
        raise TypeError("'Tensor' object cannot be interpreted as an integer\nand more")

    monkeypatch.setattr("torchwise.diagnose.savings.settle", fails)
    arena = Arena(storms.Counts(), [(storms.X,)])
    asked = Savings(arena, [], 1e-4, 60.0, lambda _stage: None)  # type: ignore[arg-type]
    found = asked.try_fix(Fix("hoist", "code", "advice"))
    assert found is not None
    assert not found.helps
    assert found.seen == "failed with TypeError: 'Tensor' object cannot be interpreted as an integer"


def test_settings_are_put_back() -> None:
    with contextlib.suppress(ValueError), fix_trials.patched("os.environ = True"):
        raise AssertionError("that is no setting of PyTorch")
    before = torch._dynamo.config.allow_unspec_int_on_nn_module
    with fix_trials.patched(recompiles.NUMBERS):
        assert torch._dynamo.config.allow_unspec_int_on_nn_module is True
    assert torch._dynamo.config.allow_unspec_int_on_nn_module is before
