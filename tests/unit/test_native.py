"""The compiled checks of calls: which library is loaded, and that they free everything and hold for every thread."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from typer.testing import CliRunner

import torchwise
from fuzz import changes
from fuzz.calls import run
from live_decisions import make_decision
from native_checks import make_library
from torchwise._torch import native
from torchwise._torch.native import library as libraries
from torchwise._torch.native.compiler import compile_checks
from torchwise._torch.native.library import Library, UnusableError
from torchwise.cli import app
from torchwise.compile import Recognizer, make_recognizer, signature_of
from torchwise.compile.guards.module_guard import make_quick_check
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.runtime import Dispatcher
from torchwise.runtime.call_guard import CallGuard, Fallback

X = torch.ones(4, 8)


@pytest.fixture
def can_compile() -> None:
    """Skip the test where this Python can have no compiled checks."""
    if obstacle := Library().find_obstacle():
        pytest.skip(f"no compiled checks: {obstacle}")


@pytest.fixture
def library(tmp_path: Path, can_compile: None) -> Library:
    """Return a library as it is after compilation, which is none, so that nothing can run it."""
    made = Library(tmp_path / "cache" / "native")
    made.folder.mkdir(parents=True)
    for folder in (made.root.parent, made.root, made.folder):
        folder.chmod(0o700)
    made.file.write_bytes(b"code")
    made.file.chmod(0o700)
    made.digest_file.write_text(hashlib.sha256(b"code").hexdigest() + "\n")
    made.digest_file.chmod(0o600)
    return made


def link(path: Path) -> None:
    path.rename(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other"))


DISTRUSTED: dict[str, tuple[Callable[[Library], object], str]] = {
    "code that others may write to": (lambda one: one.file.chmod(0o722), "others may write to"),
    "a folder that others may write to": (lambda one: one.root.parent.chmod(0o777), "others may write to"),
    "other code": (lambda one: one.file.write_bytes(b"others"), "is not the file that was compiled"),
    "another digest": (lambda one: one.digest_file.write_text("0" * 64), "is not the file that was compiled"),
    "no digest": (lambda one: one.digest_file.unlink(), "cannot be read"),
    "a link to code": (lambda one: link(one.file), "is a link"),
    "a link to a folder": (lambda one: link(one.folder), "is a link"),
}


@pytest.mark.parametrize("kind", DISTRUSTED)
def test_a_library_that_may_be_somebody_else_s_is_not_loaded(kind: str, library: Library) -> None:
    assert library.find_distrust() is None
    change, said = DISTRUSTED[kind]
    change(library)
    with pytest.raises(UnusableError, match=said):
        library.load()


def test_nothing_is_compiled_into_a_folder_that_others_may_write_to(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each search would compile it again, in vain."""
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a compiler runs"))
    library.file.unlink()
    library.root.parent.chmod(0o777)
    with pytest.raises(UnusableError, match="others may write to"):
        compile_checks(library)


def test_a_library_of_another_user_is_not_loaded(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    if library.file.stat().st_uid == 0:  # root's own is trusted by all
        monkeypatch.setattr(libraries, "ROOT", -1)
    with pytest.raises(UnusableError, match="and not to you"):
        library.load()


@pytest.mark.usefixtures("can_compile")
def test_a_program_that_serves_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a compiler runs"))
    monkeypatch.setenv("TORCHWISE_NATIVE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native._load.cache_clear()
    try:
        assert native.load_checks() is None
        assert not [*tmp_path.iterdir()]
    finally:
        native._load.cache_clear()
    with pytest.raises(UnusableError, match="torchwise doctor compiles them"):
        Library(tmp_path / "native").load()


@pytest.mark.parametrize(
    ("owner", "name", "value", "said"),
    [
        (libraries.sysconfig, "get_config_var", lambda _: 1, "free-threaded"),
        (libraries.sys, "version_info", (3, 13), r"CPython 3\.11 or 3\.12"),
        (libraries.os, "name", "nt", "Linux and macOS"),
    ],
)
def test_where_there_can_be_no_compiled_checks_python_makes_them(
    owner: Any, name: str, value: object, said: str, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value)
        obstacle = library.find_obstacle()
    assert obstacle is not None
    assert said.replace("\\", "") in obstacle
    monkeypatch.setattr(library, "find_obstacle", lambda: obstacle)
    for use in (library.load, lambda: compile_checks(library)):
        with pytest.raises(UnusableError, match=said):
            use()


@pytest.mark.usefixtures("can_compile")
def test_a_compiler_that_fails_is_told_of_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{sys.executable} -c 'raise SystemExit(1)'")
    library = Library(tmp_path / "native")
    with pytest.raises(UnusableError, match="fails"):
        compile_checks(library)
    monkeypatch.setenv("CXX", "ccache 'g++")
    with pytest.raises(UnusableError, match="which is no command: No closing quotation"):
        compile_checks(library)
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("TORCHWISE_NATIVE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told: list[str] = []
    assert "does not run" in (native.ensure_compiled(told.append) or "")
    assert told == [native.COMPILING]
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"] == []


@pytest.mark.usefixtures("can_compile")
def test_a_library_that_fails_to_load_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been compiled for a newer C++ library than the one that Python has loaded."""
    monkeypatch.setenv("CXX", f'{sys.executable} -c \'import sys; open(sys.argv[-1], "w").write("code")\'')
    library = Library(tmp_path / "native")
    with pytest.raises(UnusableError, match=r"fail to load: ImportError: .*torchwise_calls\.so"):
        compile_checks(library)
    assert not library.folder.exists()


@pytest.mark.usefixtures("can_compile")
def test_a_program_that_compiles_them_uses_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHWISE_NATIVE", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("torchwise._torch.native.compiler.compile_checks", lambda _: True)
    native._load.cache_clear()
    try:
        assert native.load_checks() is None
        assert native.ensure_compiled(lambda _: None) is None
        monkeypatch.setattr(Library, "load", lambda _: libraries)
        assert native.load_checks() is libraries
    finally:
        native._load.cache_clear()


def test_what_is_compiled_is_not_compiled_again(native_checks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a compiler runs"))
    assert compile_checks(make_library()) is False
    assert native_checks.__name__ == libraries.NAME


def test_another_interpreter_is_refused(native_checks: ModuleType) -> None:
    """In a process of its own: in one that has had two interpreters, PyTorch computes no gradients any more."""
    name = "_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters"
    pytest.importorskip(name)
    load = f"""
import importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader("{libraries.NAME}", {str(make_library().file)!r})
spec = importlib.util.spec_from_file_location("{libraries.NAME}", {str(make_library().file)!r}, loader=loader)
try:
    loader.exec_module(importlib.util.module_from_spec(spec))
except ImportError as error:
    assert "interpreter" in str(error), error
else:
    raise AssertionError("it was loaded")
"""
    code = f"import torch, {name} as other; assert not other.run_string(other.create(), {load!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.usefixtures("checks")
def test_a_model_is_freed_with_its_checks_though_it_holds_them() -> None:
    net = Net().eval()
    freed = weakref.ref(net)
    kept: list[Any] = []
    net.kept = kept  # type: ignore[assignment]
    kept += [make_quick_check(net), CallGuard(net, inference=True).make_check(), make_recognizer((X,))]
    assert kept[0]()
    del kept
    del net
    gc.collect()
    assert freed() is None


@pytest.mark.usefixtures("checks")
def test_the_check_of_a_call_holds_no_input() -> None:
    x = torch.ones(3)
    seen, recognizer = weakref.ref(x), make_recognizer((x,), {"y": [x + 1]})
    del x
    assert seen() is None
    assert recognizer((torch.ones(3),), {"y": [torch.ones(3)]})


def test_a_check_takes_and_gives_back_as_many_references(native_checks: ModuleType, monkeypatch: Any) -> None:
    monkeypatch.setattr(native, "load_checks", lambda: native_checks)
    net, y = Net().eval(), torch.ones(5)
    args, kwargs = (X, {"a": [y, 1.5, "text"]}), {"k": (y.clone(), None)}
    counted: list[Any] = [args, kwargs, X, y, args[1], kwargs["k"], net.layer.weight, net._parameters, 1.5, True, None]

    def use() -> None:
        recognizer = make_recognizer(args, kwargs)
        unchanged, find_change = make_quick_check(net), CallGuard(net, inference=True).make_check()
        for _ in range(100):
            assert recognizer(args, kwargs)
            assert not recognizer((X, {}), kwargs)
            assert not recognizer((), {})
            assert unchanged()
            assert find_change() is None
            net.training = False
        with pytest.raises(TypeError):
            recognizer()  # type: ignore[call-arg]

    use()
    gc.collect()
    before = [sys.getrefcount(one) for one in counted]
    use()
    gc.collect()
    after = [sys.getrefcount(one) for one in counted]
    assert all(abs(a - b) < 20 for a, b in zip(after, before, strict=True)), (before, after)


def test_the_classes_refuse_what_they_cannot_check(native_checks: ModuleType) -> None:
    tensor, refused = (0, torch.Tensor, None, 0), (TypeError, ValueError)
    for program, tensors, reaches in (
        ((tensor,), (), ()),
        ((tensor,), (1,), (1,)),
        (((9, int, 1, 0),), (), ()),
        (((1, int, None, 1),), (), ()),
        (((2, dict, (1,), 0),), (), ()),
        ((1,), (), ()),
    ):
        with pytest.raises(refused):
            native_checks.Recognizer(program, tensors, reaches, False, None)
    with pytest.raises(ImportError, match="at no place"):
        native_checks.configure(torch.Tensor, ((X, 1), (X + 1, 2)))
    native_checks.configure(torch.Tensor, tuple((one, one._cdata) for one in (X, X + 1)))
    watch = native_checks.Watch(lambda: "asked", True)
    assert watch() == "asked"
    for given in (
        ((), (), (1,), (), None, None),
        ((1,), (), (), (), None, None),
        ((), (1,), (), (), None, None),
        ((), (), (), (1,), None, None),
        ((), (), (), (), (1,), None),
        ((), (), (), (), None, (1,)),
    ):
        with pytest.raises(TypeError):
            watch.reset(*given)
        assert watch() == "asked", "nothing is known of it then"
    watch.reset((), (), (), (), None, None)
    assert watch() is True


@pytest.mark.usefixtures("checks")
def test_a_lazy_copy_is_no_view() -> None:
    x = torch.arange(8.0)
    recognizer = make_recognizer((x, x[:]))
    assert not recognizer((x, torch._lazy_clone(x)), {})
    assert recognizer((x, x[:]), {})


class Scaled(NamedTuple("Scaled", [("value", int)])):
    factor: ClassVar[int] = 1

    def __iter__(self) -> Iterator[int]:
        return iter([self.value * self.factor])


@pytest.mark.usefixtures("checks")
def test_a_tuple_counts_by_the_values_that_it_yields(monkeypatch: pytest.MonkeyPatch) -> None:
    given = (X, Scaled(1))
    recognizer = make_recognizer(given)
    assert recognizer(given, {})
    monkeypatch.setattr(Scaled, "factor", 2)
    assert not recognizer(given, {})


@dataclass
class Interrupted:
    value: int
    raised: ClassVar[list[BaseException]] = []

    def __getattribute__(self, name: str) -> Any:
        if name == "value" and Interrupted.raised:
            raise Interrupted.raised.pop()
        return super().__getattribute__(name)


@pytest.mark.usefixtures("checks")
def test_an_interrupt_while_a_field_is_read_ends_the_program() -> None:
    given = (X, Interrupted(1))
    recognizer = make_recognizer(given)
    Interrupted.raised.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        recognizer(given, {})
    assert recognizer(given, {})


@pytest.mark.usefixtures("checks")
def test_threads_are_told_their_calls_apart() -> None:
    recognizer, wrong = make_recognizer((X, {"a": torch.ones(3)})), []
    net = Net().eval()
    unchanged = make_quick_check(net)

    def ask(size: int) -> None:
        for _ in range(2000):
            given = (torch.ones(4, 8), {"a": torch.ones(size)})
            if recognizer(given, {}) is not (size == 3) or not unchanged():
                wrong.append(size)

    threads = [threading.Thread(target=ask, args=(size,)) for size in (3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.usefixtures("checks")
def test_each_mode_around_a_call_and_each_hook_is_seen() -> None:
    net = Net().eval()
    find_change = CallGuard(net, inference=True).make_check()
    found: list[Fallback | None] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        found.append(find_change())
        return x

    torch.vmap(note)(X)
    torch.func.jvp(note, (X,), (X,))
    with torch.utils._python_dispatch.TorchDispatchMode():
        note(X)
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    note(X)
    handle.remove()
    net.register_forward_hook(lambda *_: None)
    note(X)
    assert None not in found
    assert len({str(one) for one in found}) == 4, "the transforms have one reason"


@pytest.mark.usefixtures("checks")
def test_under_a_transform_no_model_is_certainly_unchanged() -> None:
    """Code that was compiled outside of it would run without it, and without the mode."""
    unchanged, found = make_quick_check(Net().eval()), list[bool]()

    def note(x: torch.Tensor) -> torch.Tensor:
        found.append(unchanged())
        return x.sum()

    for transform in (torch.vmap, torch.func.grad, torch.func.functionalize):
        transform(note)(X)
    with torch.utils._python_dispatch.TorchDispatchMode():
        found.append(unchanged())
    assert found == [False] * 4
    assert unchanged()


class Other(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.usefixtures("checks")
def test_a_class_that_is_put_back_is_no_change() -> None:
    net = Net().eval()
    find_change = CallGuard(net, inference=True).make_check()
    net.__class__ = Other
    assert find_change() is not None
    net.__class__ = Net
    assert find_change() is None


@pytest.mark.usefixtures("checks")
def test_the_order_of_hooks_counts() -> None:
    net = Net().eval()
    handles = [net.register_forward_hook(lambda *_: None) for _ in range(2)]
    find_change = CallGuard(net, inference=True).make_check()
    assert find_change() is None
    net._forward_hooks.move_to_end(handles[0].id)
    assert find_change() is not None
    net._forward_hooks.move_to_end(handles[1].id)
    assert find_change() is None


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later Pythons collect garbage only between their bytecodes")
def test_hooks_are_kept_while_they_are_compared(native_checks: ModuleType) -> None:
    """An allocation may collect garbage meanwhile, and so run code that takes another reference."""
    watch, hooks, alive = native_checks.Watch(lambda: None, True), OrderedDict[int, None]({1000: None}), []
    watch.reset((), (), ((hooks, (1000,)),), (), None, None)
    seen, threshold = weakref.ref(hooks), gc.get_threshold()
    del hooks

    def reset(phase: str, _: object) -> None:
        if phase == "start" and not alive:
            watch.reset((), (), (), (), None, None)
            alive.append(seen() is not None)

    gc.collect()
    gc.callbacks.append(reset)
    try:
        gc.set_threshold(1)
        watch()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(reset)
    assert alive == [True]
    assert seen() is None


def test_a_call_is_checked_by_compiled_code(native_checks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python is not asked about a usual call."""
    monkeypatch.setattr(native, "load_checks", lambda: native_checks)
    net = Net().eval()
    dispatcher = Dispatcher(net, make_decision(net, Plan(threads=torch.get_num_threads() + 1), X))
    with torch.no_grad():
        expected = [dispatcher(X) for _ in range(3)].pop()
        monkeypatch.setattr(CallGuard, "find_change", lambda _: pytest.fail("Python is asked"))
        monkeypatch.setattr("torchwise.runtime.dispatch.signature_of", lambda *_: pytest.fail("a signature is made"))
        assert torch.equal(dispatcher(X + 0), expected)
        assert dispatcher.statistics.optimized == 4


@pytest.mark.filterwarnings("ignore")
def test_random_calls_are_judged_alike(native_checks: ModuleType) -> None:
    judged, recognized = run(native_checks, 1000, seed=1)
    assert judged > 200
    assert recognized > 150


def test_random_changes_of_a_model_and_its_code_are_found_alike(native_checks: ModuleType) -> None:
    assert changes.run(native_checks, 600, seed=1) > 800


class Thing:
    def __init__(self, value: int) -> None:
        self.value = value


class OtherThing(Thing):
    pass


@pytest.mark.parametrize(("beside", "other"), [("a", "b"), (torch.float32, torch.float64)])
def test_other_objects_count_by_their_class_alone_if_asked_for(checks: str, beside: Any, other: Any) -> None:
    given = (X, {"a": Thing(1), "b": [beside, Thing(2)]})
    with pytest.raises(UnsupportedError):
        make_recognizer(given)
    recognizer = make_recognizer(given, takes_objects=True)
    assert isinstance(recognizer, Recognizer) is (checks == "python" or beside is torch.float32)
    thing = Thing(1)
    assert recognizer((X, {"a": thing, "b": [beside, thing]}), {})
    for different in (
        {"a": OtherThing(1), "b": [beside, thing]},
        {"a": thing, "b": [other, thing]},
        {"a": thing, "b": [beside, None]},
        {"a": thing, "b": [thing, beside]},
        {"a": X, "b": [beside, thing]},
    ):
        assert not recognizer((X, different), {})
        assert signature_of((X, different), {}) != signature_of(given, {})


def test_a_dict_that_holds_tensors_beside_its_items_is_left_to_python(checks: str) -> None:
    class Items(dict):  # type: ignore[type-arg]
        pass

    items = Items(a=1)
    items.extra = torch.ones(2)  # type: ignore[attr-defined]
    recognizer = make_recognizer((X, items), takes_objects=True)
    assert isinstance(recognizer, Recognizer)
    assert recognizer((X, items), {})
    assert not recognizer((X, Items(a=1)), {}), "whose items count"


def test_a_search_compiles_them_before_its_trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class BegunError(Exception):
        pass

    def begin(*_: Any, **__: Any) -> Any:
        order.append("search")
        raise BegunError

    order: list[str] = []
    for place in ("torchwise._torch.native", "torchwise.study.run"):
        monkeypatch.setattr(f"{place}.ensure_compiled", lambda _tell: order.append("checks"))
    monkeypatch.setattr("torchwise.study.run.inspect_workload", begin)
    monkeypatch.setattr("torchwise.bench.run_benchmark", begin)
    with pytest.raises(BegunError):
        torchwise.tune(torch.nn.Linear(8, 8).eval(), (X,), progress=False, store=str(tmp_path / "study.db"))
    words = [["tune", "zoo:tutorial.fusion_demo@small"], ["bench", "zoo:tutorial.fusion_demo@small"]]
    for command in words:
        assert isinstance(CliRunner().invoke(app, command).exception, BegunError)
    assert order == ["checks", "search"] * 3
