"""A recorder sees the outermost calls of a program, keeps bounded inputs, and leaves the program as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from torchwise._torch.modules import MODULE_CALL
from torchwise.compile.forward_entry import calls_forward_alone
from torchwise.runtime.program import recorder as under_test
from torchwise.runtime.program.recorder import CallRecorder, list_examples
from torchwise.workload.identity import structure

X = torch.randn(3, 4)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: Any, *_: Any, **__: Any) -> torch.Tensor:
        x = x if isinstance(x, torch.Tensor) else x.value
        return self.second(self.first(x).relu())


@dataclass
class Box:
    value: torch.Tensor
    flag: bool = True
    nothing: None = None


class Opaque:
    """As the cache of a language model: an object that PyTorch's trees do not know."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def test_only_the_outermost_call_is_recorded() -> None:
    net = Net()
    with CallRecorder() as recorder, torch.no_grad():
        for _ in range(3):
            net(X)
        net.first(X)
    record = recorder.to_record("program")
    assert [(one.name, one.calls) for one in sorted(record.modules, key=lambda one: -one.calls)] == [
        ("Net", 3),
        ("Linear", 1),
    ]
    assert 0 < sum(one.seconds for one in record.modules) <= record.seconds


def test_nothing_is_left_behind() -> None:
    compile = torch.compile
    with pytest.raises(ZeroDivisionError), CallRecorder():
        raise ZeroDivisionError
    assert torch.nn.Module.__call__ is MODULE_CALL
    assert torch.compile is compile


def test_what_a_library_put_in_the_place_of_pytorchs_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def patched(self: torch.nn.Module, *args: Any) -> Any:
        seen.append(1)
        return MODULE_CALL(self, *args)

    monkeypatch.setattr(torch.nn.Module, "__call__", patched)
    net, own_compile = torch.nn.Linear(4, 2), torch.compile
    with CallRecorder() as recorder:
        net(X)
    net(X)
    assert len(seen) == 2
    assert [one.calls for one in recorder.calls] == [1]
    assert torch.nn.Module.__call__ is patched
    monkeypatch.setattr(torch, "compile", own_compile)
    with CallRecorder():
        below = torch.nn.Module.__call__
        torch.nn.Module.__call__ = late = lambda *args: below(*args)  # type: ignore[method-assign]
        torch.compile = late
    assert torch.nn.Module.__call__ is torch.compile is late
    with CallRecorder() as recorder:
        net(X)
    assert [one.calls for one in recorder.calls] == [1]


def test_kinds_of_inputs_are_told_apart_and_weighted() -> None:
    net = Net()
    with CallRecorder() as recorder:
        with torch.no_grad():
            for rows in (3, 3, 5):
                net(X[:1].expand(rows, 4))
            with torch.autocast("cpu", torch.bfloat16):
                net(X)
        net(X)
    (record,) = recorder.to_record("program").modules
    found = {(one.inputs, one.mode, one.autocast): one.calls for one in record.inputs}
    assert found == {
        ("float32[3, 4]", "inference", ""): 2,
        ("float32[5, 4]", "inference", ""): 1,
        ("float32[3, 4]", "inference", "bfloat16"): 1,
        ("float32[3, 4]", "training", ""): 1,
    }


@pytest.mark.parametrize("given", [Box(X.clone()), Opaque(X.clone())], ids=["dataclass", "opaque"])
def test_inputs_of_any_kind_are_kept_as_they_were_before_the_call(given: Any) -> None:
    class Writes(Net):
        def forward(self, x: Any, *_: Any, **__: Any) -> torch.Tensor:
            return x.value.zero_()

    with CallRecorder() as recorder, torch.no_grad():
        Writes()(given, flag=None)
    (kind,) = recorder.ranked()[0].kinds.values()
    (example,) = list_examples([kind], [1.0])
    assert torch.equal(example.args[0].value, X)
    assert example.kwargs == {"flag": None}


def test_inputs_above_the_limit_become_stand_ins_of_equal_statistics() -> None:
    large = torch.randn(200, 100) * 3 + 5
    ids = torch.arange(400).reshape(4, 100)
    with CallRecorder(kept_bytes=100) as recorder, torch.no_grad():
        Net()(Box(torch.randn(2, 4)), large, ids=ids, mask=ids > 100, bias=None)
    (kind,) = recorder.ranked()[0].kinds.values()
    assert kind.kept == "stand-in"
    assert recorder.kept_bytes == 0
    (example,) = list_examples([kind], [1.0])
    (again,) = list_examples([kind], [1.0])
    drawn = example.args[1]
    assert drawn.mean() == pytest.approx(5, abs=0.2)
    assert drawn.std() == pytest.approx(3, abs=0.2)
    assert large.min() <= drawn.min() <= drawn.max() <= large.max()
    assert torch.equal(drawn, again.args[1])
    drawn_ids = example.kwargs["ids"]
    assert (drawn_ids.dtype, drawn_ids.shape) == (torch.int64, (4, 100))
    assert bool((drawn_ids.diff(dim=-1) >= 0).all())
    assert 0 <= int(drawn_ids.min()) <= int(drawn_ids.max()) < 400
    assert example.kwargs["mask"].float().mean() == pytest.approx(0.7475, abs=0.1)
    assert example.kwargs["bias"] is None


def test_an_input_that_cannot_be_copied_is_named_and_the_call_is_answered() -> None:
    class Refuses:
        value = X

        def __deepcopy__(self, _memo: Any) -> Any:
            raise RuntimeError("one of a kind")

    with CallRecorder() as recorder, torch.no_grad():
        assert Net()(Refuses()).shape == (3, 2)
    records = {record.name: record for record in recorder.to_record("program").modules}
    assert "Refuses as args[0], which cannot be copied" in records["Net"].notes[0]
    assert (records["Net"].calls, records["Net"].inputs) == (1, ())
    assert records["Linear"].inputs[0].kept == "real", "its parts are recorded in its place"


def test_inputs_that_cannot_be_copied_are_tried_once_and_take_no_room() -> None:
    tried = []

    class Refuses:
        value = X

        def __deepcopy__(self, _memo: Any) -> Any:
            tried.append(1)
            raise RuntimeError("one of a kind")

    net = Net()
    with CallRecorder() as recorder, torch.no_grad():
        net(Refuses(), X)
        first, kept = len(tried), recorder.kept_bytes
        for _ in range(5):
            net(Refuses(), X)
    assert first == len(tried) > 0
    assert kept == 2 * X.numel() * X.element_size(), "the inputs of its two parts"


class CountedOperators(TorchDispatchMode):
    """A mode of a program that counts the operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class CountedFunctions(TorchFunctionMode):
    """A mode of a program that counts the functions."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [CountedOperators, CountedFunctions])
def test_modes_of_the_program_see_its_own_operators_alone(mode: Any) -> None:
    def count() -> int:
        net = Net()
        with mode() as found:
            for _ in range(3):
                net(X, mask=torch.nn.Parameter(X))
        return found.count  # type: ignore[no-any-return]

    alone = count()
    with CallRecorder(holds=True) as recorder:
        assert count() == alone > 0
    (module,) = recorder.to_record("program").modules
    assert module.calls == 3


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_a_trace_holds_the_operators_of_the_program_alone() -> None:
    net = Net().eval()

    def trace() -> str:  # without the numbers of its own that each trace gives to classes
        return re.sub(r"_{3}torch_mangle_\d+\.", "", str(torch.jit.trace(net, X, check_trace=False).inlined_graph))

    alone = trace()
    with CallRecorder() as recorder:
        traced = torch.jit.trace(net, X)  # which traces once more, and compares
        again = trace()
        net(X)
    assert again == alone
    assert torch.equal(traced(X), net(X))
    counted = next(one for one in recorder.to_record("program").modules if one.name == "Net")
    assert counted.parameters == sum(parameter.numel() for parameter in net.parameters())


def test_a_module_whose_first_call_makes_its_weights_is_recorded_as_one() -> None:
    net = torch.nn.Sequential(torch.nn.LazyLinear(2))
    with CallRecorder() as recorder:
        for _ in range(3):
            net(X)
    (module,) = recorder.to_record("program").modules
    assert (module.name, module.calls) == ("Sequential", 3)


def test_an_error_of_the_program_is_its_own() -> None:
    class Raises(Net):
        def forward(self, *_: Any, **__: Any) -> torch.Tensor:
            raise KeyError("mine")

    with CallRecorder() as recorder, pytest.raises(KeyError, match="mine"):
        Raises()(X)
    assert recorder.to_record("program").modules[0].calls == 1


def test_compiled_modules_and_functions_are_recorded_without_graph_breaks() -> None:
    net = Net()
    with CallRecorder() as recorder, torch.no_grad():

        @torch.compile(backend="eager", fullgraph=True)
        def double(x: torch.Tensor) -> torch.Tensor:
            return net(x) * 2

        compiled = torch.compile(Net(), backend="eager", fullgraph=True)
        assert torch.equal(double(X), net(X) * 2)
        compiled(X)
    names = {(one.name.rpartition(".")[2], one.kind, one.calls) for one in recorder.to_record("program").modules}
    assert names == {("double", "function", 1), ("Net", "module", 1), ("Net#2", "module", 1)}


def test_threads_are_recorded_apart() -> None:
    net = Net()

    def call() -> None:
        with torch.no_grad():
            for _ in range(50):
                net(X)

    with CallRecorder() as recorder:
        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert recorder.to_record("program").modules[0].calls == 200


def test_a_forked_process_records_nothing() -> None:
    net = Net()
    with CallRecorder(), torch.no_grad():
        net(X[:1])
        if (child := os.fork()) == 0:
            os._exit(0 if torch.nn.Module.__call__ is MODULE_CALL else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("free", "kept"), [(0.5, 3), (0.05, 1)])
def test_modules_are_kept_for_a_search_unless_memory_is_short(
    free: float, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Machine:
        available, total = free * 100, 100

    monkeypatch.setattr(under_test.psutil, "virtual_memory", Machine)
    with CallRecorder(holds=True) as recorder, torch.no_grad():
        for _ in range(3):
            Net()(X)
    assert sum(one.live is not None for one in recorder.calls) == kept


def test_kinds_and_modules_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_KINDS", 3)
    monkeypatch.setattr(under_test, "MAX_MODULES", 2)
    monkeypatch.setattr(under_test, "GRACE_S", 10.0)
    net, others = Net(), [Net() for _ in range(3)]
    with CallRecorder() as recorder, torch.no_grad():
        for rows in range(1, 9):
            net(torch.randn(rows, 4))
        for other in others:
            other(X)
    record = recorder.to_record("program")
    first = next(one for one in record.modules if one.name == "Net")
    assert (len(first.inputs), first.calls, first.others) == (3, 8, 5)
    assert len(record.modules) == 2
    assert record.notes == ("2 calls of further modules were not recorded",)


@pytest.mark.parametrize("holds", [False, True])
def test_modules_that_are_thrown_away_leave_room_for_others(holds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_MODULES", 8)
    monkeypatch.setattr(under_test, "MAX_HELD", 2)
    net, late = Net(), torch.nn.Sequential(torch.nn.Linear(4, 4))
    with CallRecorder(holds=holds) as recorder, torch.no_grad():
        for _ in range(30):
            torch.nn.Softmax(dim=-1)(net(X))
        late(X)
    found = {one.name: one.calls for one in recorder.calls}
    assert (found["Net"], found["Sequential"]) == (30, 1)
    assert len(found) <= 8
    assert sum(found.values()) + recorder._lost == 61
    kept = [kind.example for one in recorder.calls for kind in one.kinds.values()]
    assert recorder.kept_bytes == sum(tensor.nbytes for each in kept for tensor in each.tensors())


def test_looking_at_calls_is_limited_to_a_part_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = under_test.signature_of

    def look(*given: Any) -> Any:
        end = time.thread_time() + 0.001  # which a sleep would not take
        while time.thread_time() < end:
            pass
        return slow(*given)

    monkeypatch.setattr(under_test, "signature_of", look)
    net = Net()
    with CallRecorder() as recorder, torch.no_grad():
        for _ in range(500):
            net(X)
    (calls,) = recorder.ranked()
    assert calls.calls == 500
    assert calls.others > 300
    assert calls.to_record().inputs[0].calls == 500


def test_modules_that_the_program_deleted_are_kept_only_for_a_search() -> None:
    for holds in (False, True):
        with CallRecorder(holds=holds) as recorder, torch.no_grad():
            Net()(X)
        assert (recorder.ranked()[0].live is not None) is holds


def test_a_recorded_module_has_the_same_structure_and_entry() -> None:
    net = Net()
    before = structure(net)
    with CallRecorder():
        assert structure(net) == before
        assert calls_forward_alone(net)


def test_dynamo_knows_the_call_of_modules_when_a_program_imports_it_first_of_all() -> None:
    code = (
        "import torch; from torchwise.runtime.program import CallRecorder; call = torch.nn.Module.__call__\n"
        "with CallRecorder(): import torch._dynamo.utils as utils\n"
        "assert utils.unpatched_nn_module_call is call"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
