"""Puts this folder on the path, where helpers lie that several test folders share."""

from __future__ import annotations

import functools
import gc
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

import parallel
import programs
from postgres_server import PostgresServer, find_programs, running_server

# For each instruction set of the CPU, Inductor compiles and loads a small library, in every process whose cache is
# empty: seven seconds of CPU for each candidate of a study. Compiling real code shows that the compiler works.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# Only the tests of the compiled checks use them (`checks`), so that all others do the same on every machine.
os.environ.setdefault("TORCHWISE_NATIVE", "0")

# Without a GPU, Triton's kernels run in its interpreter, which must be chosen before Triton is imported.
if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

MAIN = sys.modules["__main__"]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return parallel.workers(config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return parallel.scheduler(config, log)


def pytest_configure() -> None:
    if worker := os.environ.get("PYTEST_XDIST_WORKER"):
        parallel.use_own_folder(worker)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Leave what the import of all tests makes out of collections: each would go through a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish() -> None:
    """Have PyTorch's compiler measure and write nothing that no test reads.

    For each graph Dynamo times its guards, for which it empties the processor's caches, 30 ms, to log a figure. And
    each step of the compiler writes down its graphs, code and stacks as soon as `torch.__trace` has a handler. Pytest
    adds its own to all loggers that pass nothing on. Handlers of Torchwise and of tests are added as ever.
    """
    if guards := sys.modules.get("torch._dynamo.guards"):
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]
    trace = logging.getLogger("torch.__trace")
    trace.addHandler = functools.partial(_add_unless_pytest_s, trace.addHandler)  # type: ignore[method-assign]


def _add_unless_pytest_s(add: Callable[[logging.Handler], None], handler: logging.Handler) -> None:
    if not type(handler).__module__.startswith("_pytest."):
        add(handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line how the tests are run that were skipped for want of a program."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or hasattr(config, "workerinput"):
        return
    if said := programs.way_out(str(report.longrepr) for report in terminal.stats.get("skipped", ())):
        terminal.write_line(said, yellow=True)


@pytest.fixture(autouse=True)
def no_other_main() -> Iterator[None]:
    """Put `__main__` back. Streamlit replaces it, in threads of its own, and spawned processes would run that."""
    sys.modules["__main__"] = MAIN
    yield
    sys.modules["__main__"] = MAIN


@pytest.fixture(autouse=True)
def threads_as_they_were() -> Iterator[None]:
    """Refuse a test that changes PyTorch's number of threads: the sums of later tests would round otherwise."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    yield
    if torch and (after := torch.get_num_threads()) != before:
        torch.set_num_threads(before)
        pytest.fail(f"the test began with {before} threads and leaves {after}")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Compute on one thread: OpenMP's own threads do not survive a fork, with or without a plan."""
    yield from _compute_on(1)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Compute on two threads, for a plan that changes their number and no sum: one thread adds in another order."""
    yield from _compute_on(2)


def _compute_on(threads: int) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def native_checks() -> Any:
    """Compile the checks of each call, once for this environment, and load them."""
    from native_checks import load

    return load()


@pytest.fixture(params=["python", "native"])
def checks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test by the checks in Python, and by those in C++."""
    from torchwise._torch import native

    way: str = request.param
    compiled = request.getfixturevalue("native_checks") if way == "native" else None
    monkeypatch.setattr(native, "load_checks", lambda: compiled)
    return way


@pytest.fixture
def way(checks: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a test whose wrappers take their calls in Python, and by compiled checks."""
    from torchwise.runtime import module

    for kind in (module.OptimizedModule, module.OptimizedFunction):
        monkeypatch.setattr(kind, "__call__", kind.__call__)  # which takes the calls back
    monkeypatch.setattr(module, "_taken", set())
    module._make_forwarding_class.cache_clear()
    yield checks
    module._make_forwarding_class.cache_clear()


@pytest.fixture(scope="session", autouse=True)
def no_store_of_the_developer_s(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the developer's own store from being read or written, by a default store that does not exist."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHWISE_STORE", str(tmp_path_factory.mktemp("default-store") / "none.db"))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """Start a PostgreSQL server, one for each process of tests. A test that stops it starts it again."""
    if find_programs() is None:
        programs.skip_without("PostgreSQL server")
    with running_server() as server:
        yield server


@pytest.fixture
def brief_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have searches verify and time briefly: for tests that ask what comes of them, not how fast."""
    from brief import make_brief
    from torchwise.plan.effort import EFFORTS

    for name, profile in list(EFFORTS.items()):
        monkeypatch.setitem(EFFORTS, name, make_brief(profile))


class StandingClock:
    """Seconds that pass only if a test says so."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def spent_clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    """Have trials and searches count the seconds of a clock that stands."""
    from torchwise.trial import run_trial

    clock = StandingClock()
    monkeypatch.setattr(run_trial, "time", clock)
    return clock


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Register a backend "counting" that compiles nothing, and lists the operators of each graph it is given."""
    import torch

    from torchwise.plan import CHOICES, Choice, Numerics

    torch.compiler.reset()
    found: list[list[str]] = []

    def note(module: Any, _inputs: Any) -> Callable[..., Any]:
        calls = [node.target for node in module.graph.nodes if node.op == "call_function"]
        found.append([getattr(target, "__name__", str(target)) for target in calls])
        return module.forward

    counting = Choice(
        "backend",
        "counting",
        Numerics.EXACT,
        complexity=1,
        summary="counts",
        realized_by=lambda call, _plan: torch.compile(call, backend=note),
    )
    monkeypatch.setitem(CHOICES, counting.key, counting)
    yield found
    torch.compiler.reset()


@pytest.fixture
def plainly_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the plans' compiler do everything except generating code, which takes seconds."""
    compile_by("aot_eager", monkeypatch)


@pytest.fixture
def only_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the plans' compiler do nothing with the graphs that Dynamo captures."""
    compile_by("eager", monkeypatch)


def compile_by(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the plans' compiler pass its graphs to a backend of PyTorch's."""
    import torch

    from torchwise.compile.backends import graphs

    real, plain = graphs.compile_with, torch._dynamo.lookup_backend(name)
    ours: dict[int, Any] = {}

    def compile_with(call: Any, backend: Any, *others: Any, **options: Any) -> Any:
        stand_in = ours.setdefault(id(backend), (functools.partial(plain), backend))[0]
        return real(call, stand_in, *others, **options)

    monkeypatch.setattr(graphs, "compile_with", compile_with)


@pytest.fixture
def dynamo_afresh() -> Iterator[None]:
    """Have Dynamo forget everything that other tests compiled, and turn gradients off."""
    import torch

    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()
