"""A target string becomes a loaded workload: every form, and every way in which it can be wrong."""

from __future__ import annotations

import importlib
import importlib.metadata
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from torchwise.errors import BaselineError, TargetError, WorkloadError
from torchwise.workload import Workload
from torchwise.workload.identity import structure
from torchwise.workload.pytree import tensors
from torchwise.workload.target import FORMS, check_form, find_factory, load

MODEL = """
import torch
CONSTANT = 3
def make(): return torch.nn.Linear(4, 2), (torch.randn(3, 4),)
def scaled(): return torch.nn.Linear(4, 2), (torch.randn(3, 4),)
class Net(torch.nn.Module):
    @staticmethod
    def example(): return Net(), (torch.randn(3, 4),)
    def forward(self, x): return x
"""


@pytest.fixture(autouse=True)
def own_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a fresh folder, and forget afterwards the modules that were imported from it."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a file of the user's."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        importlib.invalidate_caches()
        return path

    return write


# ---- forms


def test_a_file_relative_and_absolute(write) -> None:
    path = write("user_model.py", MODEL)
    for target in ("user_model.py:make", "./user_model.py:make", f"{path}:make"):
        workload = load(target)
        assert isinstance(workload.call, torch.nn.Linear)
        assert workload.examples[0].args[0].shape == (3, 4)
        assert workload.name == target


def test_a_file_in_another_folder_imports_its_sibling(write) -> None:
    write("project/user_parts.py", "WIDTH = 5\n")
    write(
        "project/user_main.py", "from user_parts import WIDTH\nimport torch\ndef make(): return abs, torch.ones(WIDTH)"
    )
    assert load("project/user_main.py:make").examples[0].args[0].shape == (5,)


def test_a_file_is_found_by_its_name_afterwards_as_pickling_needs(write) -> None:
    write("user_model.py", MODEL)
    workload = load("user_model.py:Net.example")
    assert type(workload.call).__module__.startswith("torchwise_target_user_model_")
    assert type(pickle.loads(pickle.dumps(workload.call))) is type(workload.call)


@pytest.mark.parametrize("name", ["json.py", "torchwise.py", "my-model.v2.py"])
def test_a_file_takes_no_other_modules_place(write, name: str) -> None:
    before = sys.modules.get(Path(name).stem)
    write(f"user_files/{name}", MODEL)
    workload = load(f"user_files/{name}:Net.example")
    assert type(pickle.loads(pickle.dumps(workload.call))) is type(workload.call)
    assert sys.modules.get(Path(name).stem) is before


def test_files_of_one_name_in_two_folders_are_two_modules(write) -> None:
    write("one/user_model.py", MODEL)
    write("two/user_model.py", MODEL)
    first, second = (load(f"{folder}/user_model.py:Net.example") for folder in ("one", "two"))
    assert type(first.call).__module__ != type(second.call).__module__
    assert structure(first.call) == structure(second.call)  # the place of code is not its content


def test_a_file_that_does_not_import_is_forgotten(write) -> None:
    write("user_bad.py", "raise RuntimeError('no licence')\n")
    with pytest.raises(TargetError):
        load("user_bad.py:make")
    assert not [name for name in sys.modules if name.startswith("torchwise_target_user_bad")]


def test_a_module_in_the_current_folder(write) -> None:
    write("user_package/__init__.py", "")
    write("user_package/models.py", MODEL)
    assert isinstance(load("user_package.models:make").call, torch.nn.Linear)


def test_an_installed_module() -> None:
    assert find_factory("torch.nn:Linear") is torch.nn.Linear


def test_an_attribute_of_a_class(write) -> None:
    write("user_model.py", MODEL)
    assert type(load("user_model.py:Net.example").call).__name__ == "Net"


def test_a_reference_workload() -> None:
    workload = load("zoo:tutorial.fusion_demo@small")
    assert callable(workload.call)
    assert workload.examples


def test_a_scheme_is_a_plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def provide(name: str, *, device: str, seed: int, **rest: object) -> tuple[object, ...]:
        seen.update(name=name, device=device, seed=seed)
        return torch.sin, (torch.ones(2),)

    entry = SimpleNamespace(name="garden", load=lambda: provide)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [entry])
    assert load("garden:rose@large", seed=4).call is torch.sin
    assert seen == {"name": "rose@large", "device": "cpu", "seed": 4}


def test_check_form_imports_nothing(write) -> None:
    write("user_broken.py", "raise RuntimeError('imported')")
    check_form("user_broken.py:make")
    check_form("no_such_module:make")
    assert "user_broken" not in sys.modules


# ---- missing targets


@pytest.mark.parametrize("target", ["", ":", "zoo", "zoo:", ":make", "user_model.py", "user_model.py:"])
@pytest.mark.parametrize("read", [check_form, find_factory, load])
def test_a_target_without_a_factory_names_the_forms(target: str, read: Callable[[str], object]) -> None:
    with pytest.raises(TargetError) as error:
        read(target)
    assert str(error.value) == f"target is {target!r}, which names no factory: {FORMS}"


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(TargetError) as error:
        load("models/net.py:make")
    assert str(error.value) == f"target is 'models/net.py:make', but there is no file 'models/net.py' in {tmp_path}"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "odd.py").mkdir()
    with pytest.raises(TargetError, match=r"there is no file 'odd.py'"):
        load("odd.py:make")


@pytest.mark.parametrize("name", ["no_such_module", "no_such.module", "torch.no_such", "a b", "..up"])
def test_no_such_module(name: str) -> None:
    with pytest.raises(TargetError) as error:
        load(f"{name}:make")
    assert f"target is '{name}:make', but there is no module or target scheme {name!r}" in str(error.value)
    assert FORMS in str(error.value)


def test_a_misspelt_scheme_has_a_near_miss() -> None:
    with pytest.raises(TargetError, match=r"no module or target scheme 'zooo'; did you mean zoo\?"):
        load("zooo:tutorial.fusion_demo")


def test_a_misspelt_factory_has_near_misses(write) -> None:
    write("user_model.py", MODEL)
    with pytest.raises(TargetError, match=r"user_model.py has no 'maek'; did you mean make\?"):
        load("user_model.py:maek")
    with pytest.raises(TargetError, match=r"user_model.py has no 'zzz'; it has Net, make, scaled"):
        load("user_model.py:zzz")
    with pytest.raises(TargetError, match=r"has no 'Net\.exmaple'"):
        load("user_model.py:Net.exmaple")


def test_a_module_with_nothing_in_it(write) -> None:
    write("user_empty.py", "")
    with pytest.raises(TargetError, match=r"user_empty.py has no 'make'$"):
        load("user_empty.py:make")


def test_a_constant_is_no_factory(write) -> None:
    write("user_model.py", MODEL)
    with pytest.raises(TargetError, match=r"user_model.py:CONSTANT is of type int, but a factory must be callable"):
        load("user_model.py:CONSTANT")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_dependency\n", r"ModuleNotFoundError: No module named 'no_such_dependency' \(user_bad.py:1\)"),
        ("x = 1\nraise RuntimeError('no licence')\n", r"RuntimeError: no licence \(user_bad.py:2\)"),
        ("def broken(:\n", r"SyntaxError: .*user_bad.py, line 1"),
    ],
)
@pytest.mark.parametrize("form", ["user_bad.py", "user_bad"])
def test_code_that_does_not_import_says_where(write, text: str, message: str, form: str) -> None:
    write("user_bad.py", text)
    with pytest.raises(TargetError, match=rf"importing {form} raised {message}") as error:
        load(f"{form}:make")
    assert error.value.__cause__ is not None


def test_a_package_that_does_not_import_is_reported_too(write) -> None:
    write("user_package/__init__.py", "raise RuntimeError('no licence')\n")
    write("user_package/models.py", MODEL)
    with pytest.raises(TargetError, match="no licence"):
        load("user_package.models:make")


def test_a_package_that_lacks_a_dependency_is_not_called_absent(write) -> None:
    write("user_package/__init__.py", "import no_such_dependency\n")
    write("user_package/models.py", MODEL)
    with pytest.raises(TargetError, match="no_such_dependency"):
        load("user_package.models:make")


@pytest.mark.parametrize(("text", "called"), [("exit(3)", r"sys.exit\(3\)"), ("exit()", r"sys.exit\(\)")])
@pytest.mark.parametrize("form", ["user_bad.py", "user_bad"])
def test_code_that_exits_while_it_is_imported(write, text: str, called: str, form: str) -> None:
    write("user_bad.py", f"import sys\nsys.{text}\n")
    with pytest.raises(TargetError, match=rf"importing {form} called {called} \(user_bad.py:2\)"):
        load(f"{form}:make")


# ---- factories


def test_a_factory_that_exits(write) -> None:
    write("user_model.py", "import sys\ndef make():\n    sys.exit('no weights')\n")
    expected = r"the factory of user_model.py:make called sys.exit\('no weights'\) \(user_model.py:3\)"
    with pytest.raises(WorkloadError, match=expected):
        load("user_model.py:make")


def test_a_device_that_is_not_there_is_refused_before_the_factory_runs(write, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write("user_model.py", "def make(device): raise AssertionError(device)\n")
    with pytest.raises(WorkloadError, match=r"device is 'cuda', but PyTorch .*: use device 'cpu', or "):
        load("user_model.py:make", device="cuda")


def test_a_factory_that_raises_is_reported_with_its_line(write) -> None:
    write("user_model.py", "def make():\n    weights = None\n    raise ValueError('weights missing')\n")
    expected = r"the factory of user_model.py:make raised ValueError: weights missing \(user_model.py:3\)"
    with pytest.raises(WorkloadError, match=expected) as error:
        load("user_model.py:make")
    assert isinstance(error.value.__cause__, ValueError)


def test_a_factory_that_needs_more_than_is_offered(write) -> None:
    write("user_model.py", "def make(width): ...\n")
    with pytest.raises(WorkloadError, match=r"raised TypeError: make\(\) missing 1 required .* 'width'"):
        load("user_model.py:make")


def test_our_own_errors_pass_as_they_are(write) -> None:
    write("user_model.py", "from torchwise.errors import BaselineError\ndef make(): raise BaselineError('no input')\n")
    with pytest.raises(BaselineError, match=r"^no input$"):
        load("user_model.py:make")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("None", "the factory returned NoneType None, but must return (callable, example_args)"),
        ("3", "the factory returned int 3, but must return"),
        ("(abs,)", "but must return (callable, example_args)"),
        ("(abs, (), {}, 1)", "but must return (callable, example_args)"),
        ("[abs, ()]", "the factory returned list ["),
        ("torch.nn.Sequential(*[torch.nn.ReLU()] * 9)", "the factory returned an object of type Sequential, but must"),
        ("('abs', ())", "the first item returned is str 'abs', but must be callable"),
        ("(None, ())", "the first item returned is NoneType None, but must be callable"),
        ("(abs, 3)", "the example arguments are int 3, but must be a tuple such as (x,)"),
        ("(abs, None)", "the example arguments are NoneType None, but must be a tuple"),
        ("(abs, {'x': 1})", "the example arguments are dict {'x': 1}, but must be a tuple"),
        ("(abs, (), [1])", "the example keyword arguments are list [1], but must be a dict with string keys"),
        ("(abs, (), {1: 2})", "the example keyword arguments are dict {1: 2}, but must be a dict with string keys"),
        ("torchwise.Workload(3, ())", "the model is int 3, but must be callable"),
        ("torchwise.Workload(abs, ())", "the workload has no example inputs, but needs at least one"),
    ],
)
def test_a_factory_that_returns_no_workload(write, result: str, message: str) -> None:
    write("user_model.py", f"import torch, torchwise\ndef make(): return {result}\n")
    with pytest.raises(WorkloadError) as error:
        load("user_model.py:make")
    assert message in str(error.value)
    assert len(str(error.value)) < 250


OFFERED = {"device": "cpu", "dtype": torch.float32, "seed": 7}


@pytest.mark.parametrize(
    ("signature", "seen"),
    [
        ("", {}),
        ("device", {"device": "cpu"}),
        ("device='cuda'", {"device": "cpu"}),
        ("*, dtype", {"dtype": torch.float32}),
        ("seed=0, width=3", {"seed": 7, "width": 3}),
        ("seed, *, device, dtype", OFFERED),
        ("**rest", {"rest": OFFERED}),
        ("*rest", {"rest": ()}),
        ("device='mine', /, seed=0", {"device": "mine", "seed": 7}),
    ],
)
def test_a_factory_is_given_the_keywords_that_it_names(write, signature: str, seen: dict[str, object]) -> None:
    text = f"import torch\ndef make({signature}):\n    return abs, torch.ones(1), {{'given': locals()}}\n"
    write("user_model.py", text)
    assert load("user_model.py:make", seed=7).examples[0].kwargs == {"given": seen}


def test_a_callable_without_a_signature_is_given_nothing(write) -> None:
    write("user_model.py", "make = dict\n")
    with pytest.raises(WorkloadError, match=r"the factory returned dict \{\}"):
        load("user_model.py:make")


def test_a_workload_may_come_as_args_and_kwargs_or_whole(write) -> None:
    write(
        "user_model.py",
        "import torch, torchwise\n"
        "def pair(): return abs, [torch.ones(1), 2]\n"
        "def triple(): return abs, (), {'x': torch.ones(1)}\n"
        "def whole(): return torchwise.Workload(abs, (torchwise.Example((torch.ones(1),)),), name='mine')\n",
    )
    assert load("user_model.py:pair").examples[0].args[1] == 2
    assert list(load("user_model.py:triple").examples[0].kwargs) == ["x"]
    assert load("user_model.py:whole").name == "mine"


def test_the_seed_decides_weights_and_inputs(write) -> None:
    write("user_model.py", MODEL)

    def numbers(seed: int) -> list[torch.Tensor]:
        workload = load("user_model.py:make", seed=seed)
        return [*workload.call.parameters(), *workload.examples[0].args]

    assert all(torch.equal(a, b) for a, b in zip(numbers(1), numbers(1), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(numbers(1), numbers(2), strict=True))


def test_everything_is_moved_to_the_device_however_deep_it_lies(write) -> None:
    write(
        "user_model.py",
        "import torch\nfrom dataclasses import dataclass\nfrom collections import namedtuple\n"
        "Pair = namedtuple('Pair', 'a b')\n"
        "@dataclass\nclass Batch:\n    x: object\n    n: int\n"
        "def make():\n"
        "    t = lambda: torch.ones(2, requires_grad=True)\n"
        "    args = ([t(), {'k': (t(), 5)}], Pair(t(), 'text'), Batch([t()], 3))\n"
        "    return torch.nn.Linear(2, 2), args, {'mask': {'m': t()}}\n",
    )
    workload = load("user_model.py:make", device="meta")
    example = workload.examples[0]
    found = tensors((example.args, dict(example.kwargs)))
    assert len(found) == 5
    assert all(t.device.type == "meta" and t.requires_grad for t in found)
    assert all(p.device.type == "meta" for p in workload.call.parameters())
    assert (example.args[0][1]["k"][1], example.args[1].b, example.args[2].n) == (5, "text", 3)


def test_a_factorys_whole_workload_is_moved_too(write) -> None:
    write(
        "user_model.py",
        "import torch, torchwise\n"
        "def draw(seed): return (torchwise.Example((torch.ones(seed),)),)\n"
        "def make(): return torchwise.Workload(abs, draw(1), reseed=draw)\n",
    )
    workload = load("user_model.py:make", device="meta")
    assert isinstance(workload, Workload)
    assert workload.reseed is not None
    (again,) = workload.reseed(5)
    assert (again.args[0].device.type, again.args[0].shape) == ("meta", (5,))
