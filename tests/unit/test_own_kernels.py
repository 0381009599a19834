"""Kernels of one's own: which modules they replace, how a search meets them, and the values that are refused."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import torchwise
from live_decisions import make_decision
from torchwise.compile import compile_plan
from torchwise.compile.transforms.own_kernels import has_modules
from torchwise.errors import InputError, PlanError, UnsupportedError
from torchwise.plan import CHOICES, EAGER, Choice, Numerics, Plan, PlanSpace, register_kernel
from torchwise.plan.choice import list_values, load_choices, load_code
from torchwise.runtime import stale_because
from torchwise.testing.transform import TransformContract
from torchwise.workload import Example

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_kernel.py"
X = torch.randn(6, 512)


def load_example(name: str) -> ModuleType:
    """Load the example under a name, as a target and as a plug-in have one each."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    load_choices()
    before = dict(CHOICES)
    with torch.no_grad():
        yield
    CHOICES.clear()
    CHOICES.update(before)


@pytest.fixture
def example() -> ModuleType:
    return load_example("own_kernel_example")


def find_choice() -> Choice:
    (found,) = [one for (field, value), one in CHOICES.items() if field == "transforms" and "rms_norm_k" in value]
    return found


class TestExample(TransformContract):
    """The operator of the example, with its stand-in for the CPU."""

    @pytest.fixture
    def choice(self, example: ModuleType) -> Choice:
        return find_choice()

    @pytest.fixture
    def model(self, example: ModuleType) -> nn.Module:
        model: nn.Module = example.make()[0]
        return model

    @pytest.fixture
    def inputs(self) -> tuple[Any, ...]:
        return (X,)


def run(model: nn.Module, x: torch.Tensor = X) -> torch.Tensor:
    """Answer by the plan with the kernel of the example."""
    plan = Plan(transforms=("rms_norm_kernel",))
    answer: torch.Tensor = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference").call(x)
    return answer


def test_the_kernel_answers_for_each_module_and_no_other(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Tensor] = []
    model, _ = example.make()

    def count(norm: Any, x: torch.Tensor) -> torch.Tensor:
        calls.append(norm.weight)
        return norm.weight * 0 + x

    register_kernel("rms_norm_kernel", example.RMSNorm, count)
    first = run(model[:1])
    assert [weight is model[0][0].weight for weight in calls] == [True]
    torch.testing.assert_close(first, model[0][2](model[0][1](X)))
    run(model)
    assert len(calls) == 5


def test_a_model_whose_file_was_loaded_by_another_name_has_the_modules(example: ModuleType) -> None:
    """A target and a plug-in are loaded by names of their own."""
    other = load_example("own_kernel_again")
    assert other.RMSNorm is not example.RMSNorm
    assert has_modules(example.RMSNorm, other.RMSNorm(4))
    for place, has in ((f"{EXAMPLE}:RMSNorm", True), ("own_kernel_again:RMSNorm", True), (f"{EXAMPLE}:Norm", False)):
        assert has_modules(place, other.make()[0]) is has


def test_derived_classes_and_modules_with_a_forward_of_their_own_are_left_alone(example: ModuleType) -> None:
    class Own(example.RMSNorm):  # type: ignore[misc, name-defined]
        pass

    changed = example.RMSNorm(4)
    changed.forward = lambda x: x
    for model in (Own(4), changed, nn.LayerNorm(4), torch.tanh):
        assert not has_modules(example.RMSNorm, model)
        with pytest.raises(
            UnsupportedError, match=r"transforms has 'rms_norm_kernel', but .* has no module of RMSNorm"
        ):
            run(model, X[:, :4])


def test_a_search_tries_it_early_for_models_that_have_the_module(example: ModuleType) -> None:
    choice = find_choice()
    ((trait, detect),) = choice.detectors
    assert load_code(detect)(example.make()[0])
    assert not load_code(detect)(nn.Linear(2, 2))
    space = PlanSpace("cpu", "inference", frozenset({trait}), effort="quick")
    assert Plan(transforms=("rms_norm_kernel",)) in [plan for plan, _ in space.neighbours(EAGER)]
    assert space.excludes(choice) is None
    assert PlanSpace("cpu", "inference", frozenset(), effort="quick").excludes(choice) is not None
    assert "inference" in str(PlanSpace("cpu", "training", frozenset({trait})).excludes(choice))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("two words", nn.Linear, abs), "name is 'two words', but must be a name as in Python"),
        (("norm", "Linear", abs), "module is 'Linear', but must be a class, or its place"),
        (("norm", nn.Linear(1, 1), abs), "module is Linear"),
        (("norm", nn.Linear, "kernel"), "kernel is 'kernel', but must be a function, or its place"),
        (("norm", nn.Linear, 3), "kernel is 3"),
        (("isolate_rnn", nn.LSTM, abs), "name is 'isolate_rnn', which is another rewrite's: choose another name"),
    ],
)
def test_what_is_no_kernel_is_refused(given: tuple[Any, ...], said: str) -> None:
    before = dict(CHOICES)
    with pytest.raises(InputError, match=said):
        register_kernel(*given)
    assert before == CHOICES


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"numerics": "rough"}, "numerics is 'rough', but must be one of exact, same-precision"),
        ({"devices": "cuda"}, r"devices is 'cuda', but must be a tuple of cpu and cuda, such as \('cpu',\)"),
        ({"devices": ()}, r"devices is \(\), but must be"),
        ({"devices": ("gpu",)}, r"devices is \('gpu',\), but must be"),
        ({"modes": "training"}, "modes is 'training', but must be a tuple of inference and training"),
        ({"modes": ([],)}, "modes is"),
    ],
)
def test_options_of_a_kernel_that_mean_nothing_are_refused(option: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        register_kernel("norm", nn.Linear, abs, **option)


def test_numerics_are_also_taken_by_name() -> None:
    choice = register_kernel("norm", nn.Linear, abs, numerics="lower-precision", devices=["cpu"])  # type: ignore[arg-type]
    assert (choice.numerics, choice.devices) == (Numerics.LOWER_PRECISION, ("cpu",))
    assert isinstance(choice.numerics, Numerics)


def test_a_wrong_kernel_is_found_out(example: ModuleType) -> None:
    """It is verified as every candidate is, against the model in float64."""
    from torchwise.records import Outcome
    from torchwise.verify import Subject, verify
    from torchwise.workload import Workload

    model, args = example.make()
    example_ = Example(args)
    for kernel, outcome in ((example.run_kernel, Outcome.PASS), (lambda norm, x: x * norm.weight, Outcome.FAIL)):
        register_kernel("rms_norm_kernel", example.RMSNorm, kernel)
        plan = Plan(transforms=("rms_norm_kernel",))
        call = compile_plan(model, plan, example_, device="cpu", mode="inference").call
        subject = Subject(Workload(model, (example_,)), call, model)
        assert verify(subject, extra_draws=1, noise_budget_s=1.0).outcome is outcome


def load_kernel(folder: Path, code: str) -> Choice:
    """Register a kernel of a file with this code, as a process does that starts after the file was changed."""
    file = folder / "kernels_of_mine.py"
    file.write_text(f"def kernel(norm, x):\n    return {code}\n")
    names: dict[str, Any] = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    return register_kernel("mine", nn.Linear, names["kernel"], devices=("cpu",))


def test_changed_code_is_another_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_kernel(tmp_path, "norm.weight")
    before = Plan(transforms=("mine",))
    assert before == Plan(transforms=(first.value,))
    assert str(before) == f"eager + {first.value}"
    assert load_kernel(tmp_path, "norm.weight").value == first.value
    changed = load_kernel(tmp_path, "norm.bias")
    assert changed.value.partition("@")[0] == "mine"
    assert Plan(transforms=("mine",)).transforms == (changed.value,) != before.transforms
    with pytest.raises(PlanError, match=rf"transforms has '{first.value}', but there are .*{changed.value}"):
        Plan.from_json(before.to_json())
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert register_kernel("mine", nn.Linear, "kernels_of_mine:kernel").value == changed.value
    assert "kernels_of_mine" not in sys.modules, "its place is not imported, as that may load torch"


def test_a_decision_for_the_former_code_is_stale(tmp_path: Path) -> None:
    load_kernel(tmp_path, "torch.nn.functional.linear(x, norm.weight, norm.bias)")
    model = nn.Linear(4, 4).eval()
    decision = make_decision(model, Plan(transforms=("mine",)), X[:, :4])
    assert stale_because(model, decision) is None
    changed = load_kernel(tmp_path, "x * 0")
    assert f"but there are {', '.join(list_values('transforms'))}" in str(stale_because(model, decision))
    fast = torchwise.apply(model, decision)
    assert torch.equal(fast(X[:, :4]), model(X[:, :4]))
    assert fast.statistics.optimized == 0
    assert stale_because(model, make_decision(model, Plan(transforms=(changed.value,)), X[:, :4])) is None
