"""Parts in their places: modules keep their type, classes register their instances, and copies are plain."""

from __future__ import annotations

import copy
import functools
import gc
import io
import logging
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
import torch
from components_finders import Finder

from torchwise.errors import InputError
from torchwise.runtime.components import CompileManager, compiled, default_manager
from torchwise.runtime.components.config import VARIABLE
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.runtime.monitored import ITSELF, find_monitored
from torchwise.workload import Example

X = torch.randn(3, 4)


class Neuron(torch.nn.Module):
    """What a neuron is."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).relu()


class Program(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.neuron, self.storage = Neuron(), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.storage(self.neuron(x))


@pytest.fixture(autouse=True)
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def manager() -> CompileManager:
    return CompileManager(find=Finder())


@torch.no_grad()
def test_a_module_is_registered_where_it_stands(manager: CompileManager) -> None:
    program = Program()
    before, state, shown = program(X), list(program.state_dict()), repr(program)
    assert manager.register(program.neuron, "neuron") is program.neuron
    manager.register(program.storage, "storage", enabled=False)
    for _ in range(3):
        assert torch.equal(program(X), before)
    assert isinstance(program.neuron, Neuron)
    assert list(program.state_dict()) == state
    assert repr(program) == shown
    assert type(program.neuron).__doc__ == "What a neuron is."
    statistics = manager.statistics()
    assert statistics["neuron"].optimized == 2
    assert statistics["storage"].original == {FallbackReason.SWITCHED_OFF: 3}


@torch.no_grad()
def test_weights_modes_and_hooks_of_the_module_are_those_of_its_plan(manager: CompileManager) -> None:
    neuron = manager.register(Neuron())
    neuron(X), neuron(X)
    neuron.load_state_dict({k: v + 1 for k, v in neuron.state_dict().items()})
    assert torch.equal(neuron(X), neuron.inner(X).relu())
    neuron.inner = torch.nn.Linear(4, 4)
    assert torch.equal(neuron(X), neuron.inner(X).relu())
    seen: list[int] = []
    neuron.register_forward_hook(lambda *_: seen.append(1))
    neuron(X)
    assert seen == [1]
    neuron.eval()
    neuron(X)
    reasons = manager.statistics()["Neuron"].original
    assert FallbackReason.TRAINING_MODE_CHANGED in reasons


def test_gradients_reach_the_weights_of_the_module(manager: CompileManager) -> None:
    neuron = manager.register(Neuron())
    for _ in range(2):
        neuron.zero_grad()
        neuron(X).sum().backward()
        assert neuron.inner.weight.grad is not None
    assert manager.statistics()["Neuron"].optimized == 1


@pytest.mark.parametrize(
    "travel",
    [
        copy.copy,
        copy.deepcopy,
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: cloudpickle.loads(cloudpickle.dumps(m)),
    ],
    ids=["copy", "deepcopy", "pickle", "cloudpickle"],
)
@torch.no_grad()
def test_copies_of_a_registered_module_are_plain(manager: CompileManager, travel: Any) -> None:
    program = Program()
    manager.register(program.neuron)
    program(X)
    other = travel(program.neuron)
    assert type(other) is Neuron
    assert torch.equal(other(X), program.neuron(X))
    assert sum(manager.statistics()["Neuron"].original.values()) == 1


@torch.no_grad()
def test_a_program_with_parts_can_be_saved_whole(manager: CompileManager) -> None:
    program, file = Program(), io.BytesIO()
    manager.register(program.neuron)
    torch.save(program, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(X), program(X))


@torch.no_grad()
def test_functions_that_call_parts_travel_with_those_switched_off(manager: CompileManager) -> None:
    part = manager.register(lambda x: x + 1, "part")
    there = cloudpickle.loads(cloudpickle.dumps(lambda x: part(x) * 2))
    for _ in range(2):
        assert torch.equal(there(X), (X + 1) * 2)
    assert manager.statistics()["part"].original == {}
    assert not pickle.loads(cloudpickle.dumps(manager.components["part"])).config.enabled


def test_a_module_is_registered_once(manager: CompileManager) -> None:
    neuron = manager.register(Neuron(), "first")
    with pytest.raises(InputError, match="this Neuron is component 'first' already"):
        manager.register(neuron)
    assert list(manager.components) == ["first"]


@torch.no_grad()
def test_a_class_that_is_put_over_the_module_later_makes_it_plain(manager: CompileManager) -> None:
    neuron = manager.register(torch.nn.Linear(4, 4))
    neuron(X), neuron(X)
    torch.nn.utils.parametrizations.weight_norm(neuron)
    neuron(X)
    assert manager.statistics()["Linear"].optimized == 1


def test_parts_go_with_what_they_stand_for(manager: CompileManager) -> None:
    function, neuron = manager.register(lambda x: x, "function"), manager.register(Neuron(), "neuron")
    assert set(manager.components) == {"function", "neuron"}
    del function, neuron
    gc.collect()
    assert manager.components == {}


def test_names_that_are_taken_are_numbered(manager: CompileManager) -> None:
    kept = [manager.register(Neuron(), "neuron") for _ in range(3)]
    assert list(manager.components) == ["neuron", "neuron#2", "neuron#3"]
    assert len(kept) == 3


@torch.no_grad()
def test_each_instance_of_a_registered_class_is_a_part(
    manager: CompileManager, caplog: pytest.LogCaptureFixture
) -> None:
    @compiled(manager=manager)
    class Scorer(torch.nn.Module):
        def __init__(self, scale: float) -> None:
            super(Scorer, self).__init__()  # noqa: UP008  # the old form names the class that was decorated
            self.scale = scale

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    @compiled(manager=manager)  # both classes would register it
    class Finer(Scorer):
        def __init__(self) -> None:
            super().__init__(3.0)
            self.late = torch.nn.Linear(4, 4)

    plain, fine = Scorer(2.0), Finer()
    assert [name.rpartition(".")[2] for name in manager.components] == ["Scorer", "Finer"]
    assert caplog.text == ""
    for _ in range(2):
        assert torch.equal(plain(X), X * 2)
        assert torch.equal(fine(X), X * 3)
    assert isinstance(plain, Scorer)
    assert isinstance(fine, Finer)
    assert [found.optimized for found in manager.statistics().values()] == [1, 1]
    assert "late.weight" in fine.state_dict()


@torch.no_grad()
def test_no_plan_is_sought_for_an_instance_that_is_half_made(manager: CompileManager) -> None:
    class Scorer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Finer(Scorer):
        def __init__(self) -> None:
            super().__init__()
            self.scale = 3.0

    manager.register(Scorer, examples=[Example((X,))], lazy=False)
    whole, fine = Scorer(), Finer()
    assert [part._found is not None for part in manager.components.values()] == [True, False]
    for _ in range(2):
        assert torch.equal(fine(X), whole(X))
    assert [found.optimized for found in manager.statistics().values()] == [2, 1]


def test_an_instance_that_cannot_be_a_part_is_made_all_the_same(
    manager: CompileManager, caplog: pytest.LogCaptureFixture
) -> None:
    cls = manager.register(type("Net", (Neuron,), {}), allow="exact")
    manager.set_mode("default")
    with caplog.at_level(logging.WARNING, "torchwise"):
        assert isinstance(cls(), Neuron)
    assert "a Net is left as it is, because mode 'default' is same-precision" in caplog.text
    assert manager.components == {}


@torch.no_grad()
def test_autocast_is_tuned_as_part_of_the_module() -> None:
    manager = CompileManager(find=(find := Finder()), autocast="bfloat16", device="cpu")
    neuron = manager.register(Neuron())
    assert neuron(X).dtype == neuron(X).dtype == torch.bfloat16
    tuned = find.asked[0][0]
    assert isinstance(tuned, Neuron)
    answer = neuron(X)
    assert manager.statistics()["Neuron"].optimized == 2
    # Loading a class that travels by value gives the class here its functions anew: then the original answers.
    assert torch.equal(cloudpickle.loads(cloudpickle.dumps(tuned))(X), answer)


def test_the_decorator_leaves_a_function_what_it_looks_like(manager: CompileManager) -> None:
    def step(x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
        """Take a step."""
        return x * scale

    part = compiled(manager=manager, name="mine")(step)
    assert (part.__name__, part.__doc__) == ("step", "Take a step.")
    assert torch.equal(part(X, scale=3.0), X * 3)
    assert list(manager.components) == ["mine"]


def test_what_is_decorated_plainly_belongs_to_the_default_manager() -> None:
    before = set(default_manager().components)
    part = compiled(lambda x: x)
    assert set(default_manager().components) - before == {part.__qualname__}
    assert default_manager() is default_manager()
    assert default_manager().config.fallback


def test_a_method_can_be_decorated(manager: CompileManager) -> None:
    class Holder:
        @compiled(manager=manager)
        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    holder = Holder()
    assert torch.equal(holder.twice(X), X * 2)
    assert torch.equal(holder.twice(X), X * 2)
    assert next(iter(manager.statistics().values())).original[FallbackReason.FIRST_CALL] == 1


def test_a_method_in_place_keeps_its_object_no_longer_than_the_program_does() -> None:
    manager = CompileManager(find=lambda *question: Finder()(*question))  # which remembers no question

    class Holder:
        def __init__(self) -> None:
            self.twice: Callable[..., Any] = manager.register(self.twice)  # type: ignore[has-type]

        def twice(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    holder = Holder()
    holder.twice(X)
    assert find_monitored(holder.twice, "counts calls")[ITSELF] is next(iter(manager.components.values()))
    with pytest.raises(InputError, match="did not make it"):
        find_monitored(functools.wraps(holder.twice)(lambda x: x), "counts calls")
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
    assert manager.components == {}


def test_a_manager_that_is_sent_elsewhere_is_switched_off_there(manager: CompileManager) -> None:
    assert not pickle.loads(pickle.dumps(manager)).config.enabled
