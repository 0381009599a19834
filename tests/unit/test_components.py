"""Parts of a program: when a plan is sought, when it answers, and how failures end."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from components_finders import THREADS, Failing, Finder
from torch.fx.experimental.proxy_tensor import make_fx

import torchwise
from torchwise.errors import InputError, TorchwiseError
from torchwise.plan import CHOICES, EAGER, Choice, Numerics, Plan
from torchwise.runtime.components import CompileConfig, CompileManager, component
from torchwise.runtime.components.config import VARIABLE
from torchwise.runtime.fallback_reason import FallbackReason
from torchwise.workload import Example

X = torch.randn(3, 4)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.fixture(autouse=True)
def enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def make_manager(find: Finder, config: str = "production", **changes: Any) -> tuple[CompileManager, Callable[..., Any]]:
    manager = CompileManager(config, find=find, **changes)
    return manager, manager.register(double, "double")


def test_the_first_call_is_answered_as_written_and_later_ones_by_the_plan() -> None:
    find = Finder()
    manager, call = make_manager(find)
    assert manager.statistics()["double"].reason == "no search has run yet"
    for _ in range(3):
        assert torch.equal(call(X), X * 2)
    found = manager.statistics()["double"]
    assert (found.optimized, found.original) == (2, {FallbackReason.FIRST_CALL: 1})
    assert (found.plan, found.failures) == (str(THREADS), {})
    assert found.compile_s > 0
    assert found.speedup is not None
    assert found.speedup.mid == 2.0
    assert found.search_s > 0
    sent = found.snapshot()
    assert (sent["verified"], sent["compile_s"]) == (True, found.compile_s)
    assert len(find.asked) == 1


def test_what_was_sought_for_is_what_the_first_call_was_given_before_it_wrote_to_it() -> None:
    def fill(x: torch.Tensor) -> torch.Tensor:
        return x.fill_(7)

    find = Finder()
    call = CompileManager(find=find).register(fill)
    call(torch.zeros(2))
    (_, (example,), _) = find.asked[0]
    assert torch.equal(example.args[0], torch.zeros(2))


def test_an_error_of_the_parts_own_is_the_callers_and_costs_no_search() -> None:
    find = Finder()
    _, call = make_manager(find)
    with pytest.raises(TypeError):
        call(None)
    assert find.asked == []
    call(X)
    assert len(find.asked) == 1


@pytest.mark.parametrize(("speedup", "kept"), [(1.06, False), (1.08, True)])  # the low ends are 1.04 and 1.06
def test_a_plan_is_kept_only_where_it_is_surely_fast_enough(speedup: float, kept: bool) -> None:
    manager, call = make_manager(Finder(speedup=speedup))
    call(X), call(X)
    found = manager.statistics()["double"]
    assert (found.optimized == 1) is kept
    assert ("less than minimum_speedup 1.05" in found.reason) is not kept
    assert found.speedup is not None


def test_a_decision_for_eager_leaves_the_part_alone() -> None:
    manager, call = make_manager(Finder(EAGER), fallback=False)
    call(X), call(X)
    assert manager.statistics()["double"].original == {FallbackReason.FIRST_CALL: 1, FallbackReason.EAGER_DECISION: 1}


def test_a_search_that_failed_is_logged_once_and_not_tried_again_until_clear(caplog: pytest.LogCaptureFixture) -> None:
    find = Failing()
    manager, call = make_manager(find)
    with caplog.at_level(logging.WARNING, "torchwise"):
        for _ in range(3):
            assert torch.equal(call(X), X * 2)
    assert len(find.asked) == 1
    (said,) = [r for r in caplog.records if "runs its original code until" in r.message]
    assert vars(said)["torchwise"] == {"alert": "search_failed", "component": "double", "failure": "OSError"}
    found = manager.statistics()["double"]
    assert found.failures == {"OSError": 1}
    assert "no room for a worker" in found.reason
    manager.clear("double")
    assert manager.statistics()["double"].failures == {}
    call(X)
    assert len(find.asked) == 2


def test_without_fallback_a_failed_search_raises_now_and_later() -> None:
    find = Failing()
    _, call = make_manager(find, "research")
    for _ in range(2):
        with pytest.raises(
            TorchwiseError, match=r"component 'double': the search for a plan failed \(OSError.*clear\(\) searches"
        ):
            call(X)
    assert len(find.asked) == 1


def test_a_plan_that_fails_is_answered_by_the_original_or_raises_as_asked() -> None:
    broken = Finder(Plan(backend="nonesuch"))
    manager, call = make_manager(broken)
    call(X)
    assert torch.equal(call(X), X * 2)
    assert sum(manager.statistics()["double"].failures.values()) == 1
    manager.set_mode("research")
    with pytest.raises(TorchwiseError, match="the plan of component 'double' failed"):
        call(X)


def test_the_variable_turns_everything_off_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    find = Finder()
    manager, call = make_manager(find, "research")
    call(X), call(X)
    monkeypatch.setenv(VARIABLE, "1")
    assert torch.equal(call(X), X * 2)
    other = manager.register(torch.tanh, "tanh", lazy=False, examples=[Example((X,))])
    other(X)
    statistics = manager.statistics()
    assert statistics["double"].original[FallbackReason.DISABLED] == 1
    assert statistics["tanh"].original == {FallbackReason.DISABLED: 1}
    assert len(find.asked) == 1
    monkeypatch.delenv(VARIABLE)
    call(X)
    assert manager.statistics()["double"].optimized == 2


def test_a_part_that_is_switched_off_is_plain_and_only_counted() -> None:
    find = Finder()
    manager = CompileManager(find=find)
    call = manager.register(double, enabled=False)
    call(X)
    assert find.asked == []
    assert manager.statistics()["double"].original == {FallbackReason.SWITCHED_OFF: 1}


def test_profiles_switch_all_parts_and_keep_what_was_found() -> None:
    find = Finder()
    manager, call = make_manager(find)
    off = manager.register(torch.tanh, "off", enabled=False)
    call(X), call(X)
    manager.set_mode("development")
    call(X)
    manager.set_mode("production")
    call(X), off(X)
    statistics = manager.statistics()
    assert (statistics["double"].optimized, statistics["double"].original) == (
        2,
        {FallbackReason.FIRST_CALL: 1, FallbackReason.SWITCHED_OFF: 1},
    )
    assert statistics["off"].optimized == 0
    assert len(find.asked) == 1


@pytest.mark.parametrize(
    ("plan", "speedup", "asked"),
    [(Plan(precision="bf16"), 2.0, 2), (THREADS, 1.03, 2), (THREADS, 1.2, 1)],
    ids=["allow", "minimum_speedup", "permitted"],
)
def test_a_profile_keeps_only_the_plans_that_it_permits(plan: Plan, speedup: float, asked: int) -> None:
    find = Finder(plan, speedup=speedup)
    manager = CompileManager("research", find=find)
    call = manager.register(torch.nn.Linear(4, 4), "layer")
    with torch.no_grad():
        call(X)
        assert manager.components["layer"].plan_name == str(plan)
        manager.set_mode("production")
        find.plan, find.speedup = THREADS, 2.0
        call(X), call(X)
    assert (len(find.asked), manager.components["layer"].plan_name) == (asked, str(THREADS))


def test_a_plan_that_was_found_while_the_settings_became_stricter_is_not_kept() -> None:
    def find(*question: Any) -> Any:
        manager.set_mode("production")
        return Finder(speedup=1.03)(*question)

    manager, call = make_manager(find, "research")  # type: ignore[arg-type]
    call(X)
    assert manager.statistics()["double"].plan is None


def test_a_profile_does_not_loosen_a_config() -> None:
    manager = CompileManager(CompileConfig(allow="exact", minimum_speedup=1.5, effort="quick"), find=Finder())
    for profile in ("research", "production"):
        manager.set_mode(profile)
        own = manager.config
        assert (own.allow, own.minimum_speedup, own.effort) == ("exact", 1.5, "quick")
    manager = CompileManager(CompileConfig.of("research"), find=Finder())
    manager.set_mode("production")
    assert manager.config == CompileConfig()


def test_another_mode_is_sought_anew_but_for_parts_with_a_mode_of_their_own() -> None:
    find = Finder()
    manager, call = make_manager(find)
    own = manager.register(torch.tanh, "own", mode="max-autotune")
    call(X), own(X)
    manager.set_mode("reduce-overhead")
    call(X), own(X)
    assert [config.mode for _, _, config in find.asked] == ["auto", "max-autotune", "reduce-overhead"]
    assert manager.config.mode == "reduce-overhead"


def test_a_mode_that_one_part_may_not_have_switches_none() -> None:
    manager, _ = make_manager(Finder())
    exact = manager.register(torch.tanh, allow="exact")
    with pytest.raises(InputError, match="only up to exact"):
        manager.set_mode("default")
    assert manager.config.mode == "auto"
    assert manager.components["double"].config.mode == "auto"
    assert exact is not None


def test_a_plan_can_be_sought_before_the_first_call() -> None:
    find = Finder()
    manager = CompileManager(find=find, lazy=False)
    call = manager.register(double, examples=[Example((X,)), Example((X[:1],))])
    assert len(find.asked[0][1]) == 2
    call(X), call(X[:1])
    assert manager.statistics()["double"].optimized == 2


def test_examples_stand_in_for_the_first_call() -> None:
    find = Finder()
    call = CompileManager(find=find).register(double, examples=[Example((X[:1],))])
    call(X)
    assert find.asked[0][1][0].args[0].shape == (1, 4)


def test_a_known_decision_waits_for_no_search(caplog: pytest.LogCaptureFixture) -> None:
    find = Finder()
    one = component.Component("one", double, CompileConfig(training=False, progress=False), find)
    other = component.Component("other", double, CompileConfig(), find)
    with caplog.at_level(logging.INFO, "torchwise"), component._searching:  # another component's search
        one.take(find(double, (Example((X,)),), one.config))
        assert one.plan_name == str(THREADS)
        waits = threading.Thread(target=other.seek, args=[(Example((X,)),)])
        waits.start()
        until = time.monotonic() + 10
        while "component other waits until another component's search is over" not in caplog.text:
            assert time.monotonic() < until
        assert other.plan_name == str(EAGER)
    waits.join(10)
    assert other.plan_name == str(THREADS)


def test_a_static_method_stays_one() -> None:
    find = Finder()

    class Sums:
        @CompileManager(find=find).register
        @staticmethod
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

    assert torch.equal(Sums.double(X), X * 2)
    assert torch.equal(Sums().double(X), X * 2)
    assert len(find.asked) == 1


def test_parts_may_come_and_go_while_others_look() -> None:
    manager, stopped, failed = CompileManager("development"), threading.Event(), list[Exception]()

    def come_and_go() -> None:
        while not stopped.is_set():
            for call in [manager.register(lambda x: x, "part") for _ in range(20)]:
                assert callable(call)

    threads = [threading.Thread(target=come_and_go) for _ in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        until = time.monotonic() + 1
        while time.monotonic() < until and not failed:
            try:
                manager.statistics()
            except Exception as error:  # the error that is looked for
                failed.append(error)
    finally:
        sys.setswitchinterval(interval)
        stopped.set()
        for thread in threads:
            thread.join()
    assert not failed


def test_a_mode_by_size_counts_the_parameters_of_each_part() -> None:
    find = Finder()
    manager = CompileManager(find=find, mode={0: "default", 10: "max-autotune"})
    for part in (torch.nn.Linear(4, 1), torch.nn.Linear(4, 4), double):
        manager.register(part)(X)
    assert [config.mode for _, _, config in find.asked] == ["default", "max-autotune", "default"]


@pytest.mark.parametrize("mode", ["auto", {0: "default", 10: "max-autotune"}])
def test_parameters_without_a_shape_so_far_are_not_counted(mode: Any) -> None:
    find = Finder()
    layers = CompileManager(find=find, mode=mode).register(torch.nn.Sequential(torch.nn.LazyLinear(9)))
    assert layers(X).shape == (3, 9)
    assert find.asked[0][2].mode == ("auto" if mode == "auto" else "default")


def test_an_unverified_plan_is_used_at_once_and_says_so_everywhere(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interpret(call: Callable[..., Any], plan: Plan) -> Callable[..., Any]:
        return lambda x: call(x)

    choice = Choice("backend", "interpreted", Numerics.EXACT, complexity=1, summary="", realized_by=interpret)
    monkeypatch.setitem(CHOICES, choice.key, choice)
    find = Finder()
    manager, call = make_manager(find, verify=False, backend="interpreted")
    with caplog.at_level(logging.WARNING, "torchwise"):
        assert [torch.equal(call(X), X * 2) for _ in range(3)] == [True] * 3
    found = manager.statistics()["double"]
    assert find.asked == []
    assert (found.verified, found.optimized, found.speedup, found.failures) == (False, 2, None, {})
    assert found.reason == "interpreted is used unverified and untimed, as verify=False asks"
    assert found.reason in caplog.text
    assert torch.equal(call(torch.ones(2)), torch.full((2,), 2.0)), "other inputs are answered by the original"
    manager.components["double"].configure(CompileConfig())
    call(X), call(X)
    assert manager.statistics()["double"].verified is True
    assert len(find.asked) == 1


def test_what_the_manager_was_created_with_survives_a_change_of_profile() -> None:
    manager = CompileManager("production", find=Finder(), allow="exact")
    manager.set_mode("research")
    assert (manager.config.effort, manager.config.allow) == ("thorough", "exact")
    manager = CompileManager("research", find=Finder())
    manager.set_mode("production")
    assert manager.config == CompileConfig()


async def later(x: torch.Tensor) -> torch.Tensor:
    return x


def many(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [
        (3, {}, "the component is of type int"),
        (dict, {}, "dict is a class"),
        (double, {"lazy": False}, "lazy is False, but there are no examples"),
        (double, {"examples": [X]}, "an example is of type Tensor"),
        (double, {"modes": "auto"}, "modes is no field"),
        (later, {}, "later is a coroutine or a generator function"),
        (many, {}, "many is a coroutine or a generator function"),
    ],
)
def test_what_cannot_be_a_part_is_refused(target: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        CompileManager(find=Finder()).register(target, **options)


def test_what_runs_by_a_plan_already_is_no_part() -> None:
    fast = torchwise.apply(torch.nn.Linear(4, 4), Finder()(torch.tanh, (), CompileConfig()))
    with pytest.raises(InputError, match="runs by a plan already"):
        CompileManager(find=Finder()).register(fast)


def test_bad_arguments_of_the_manager_are_refused() -> None:
    manager, call = make_manager(Finder())
    with pytest.raises(InputError, match="there is no component 'triple', but double"):
        manager.clear("triple")
    with pytest.raises(InputError, match="mode is 'turbo', but must be one of development"):
        manager.set_mode("turbo")
    with pytest.raises(InputError, match="config is of type int"):
        CompileManager(3)  # type: ignore[arg-type]
    assert call is not None


def test_two_first_calls_seek_once_and_nobody_waits_for_the_other() -> None:
    begun, done = threading.Event(), threading.Event()

    class Slow(Finder):
        def __call__(self, *given: Any) -> Any:
            begun.set()
            assert done.wait(30)
            return super().__call__(*given)

    find = Slow()
    manager, call = make_manager(find)
    thread = threading.Thread(target=call, args=(X,))
    thread.start()
    assert begun.wait(30)
    assert torch.equal(call(X), X * 2)  # while the other one seeks
    done.set()
    thread.join(30)
    call(X)
    found = manager.statistics()["double"]
    assert len(find.asked) == 1
    assert (found.optimized, found.original) == (1, {FallbackReason.FIRST_CALL: 1, FallbackReason.SEARCH_RUNNING: 1})


def test_a_call_that_comes_too_late_to_be_the_first_seeks_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    manager, call = make_manager(find := Finder())
    lock, raced = component._searching, []

    class Race:
        """Lets another call through just before the lock is taken."""

        def acquire(self, blocking: bool) -> bool:
            if not raced:
                raced.append(1)
                call(X)
            return lock.acquire(blocking=blocking)

        def release(self) -> None:
            lock.release()

    monkeypatch.setattr(component, "_searching", Race())
    assert torch.equal(call(X), X * 2)
    assert len(find.asked) == 1
    assert manager.statistics()["double"].original == {FallbackReason.FIRST_CALL: 1, FallbackReason.SEARCH_RUNNING: 1}


@pytest.mark.timeout(60)
def test_a_part_made_in_anothers_first_call_does_not_wait_for_it() -> None:
    manager = CompileManager(find=(find := Finder()))
    made: list[Callable[..., Any]] = []

    def outer(x: torch.Tensor) -> torch.Tensor:
        made.append(manager.register(double, lazy=False, examples=[Example((X,))]))
        return made[0](x)

    manager.register(outer)(X)
    assert len(find.asked) == 1
    made[0](X)
    assert len(find.asked) == 2


def test_what_is_cleared_during_a_search_is_not_found_by_it() -> None:
    class Clearing(Finder):
        def __call__(self, *given: Any) -> Any:
            if not self.asked:
                manager.clear()
            return super().__call__(*given)

    find = Clearing()
    manager, call = make_manager(find)
    call(X), call(X), call(X)
    assert len(find.asked) == 2
    assert manager.statistics()["double"].optimized == 1


def test_parts_within_a_part_are_plain_while_that_runs_by_a_plan() -> None:
    manager = CompileManager(find=(find := Finder()))
    inner = manager.register(double, "inner")
    outer = manager.register(lambda x: inner(x) + 1, "outer")
    for _ in range(3):
        assert torch.equal(outer(X), X * 2 + 1)
    statistics = manager.statistics()
    assert statistics["outer"].optimized == 2
    assert statistics["inner"].original == {FallbackReason.SEARCH_RUNNING: 1, FallbackReason.NESTED_COMPONENT: 2}
    assert len(find.asked) == 1
    inner(X), inner(X)
    assert manager.statistics()["inner"].optimized == 1


@pytest.mark.parametrize(
    ("training", "gradients", "sought"), [(None, True, True), (None, False, False), (True, False, True)]
)
def test_a_plan_carries_gradients_where_the_first_call_needs_them(
    training: bool | None, gradients: bool, sought: bool
) -> None:
    model, find = torch.nn.Linear(4, 4), Finder()
    CompileManager(find=find, training=training).register(model)
    with torch.set_grad_enabled(gradients):
        model(X)
    assert find.asked[0][2].training is sought


def test_inputs_from_the_midst_of_a_graph_are_sought_with_as_leaves() -> None:
    find = Finder()
    _, call = make_manager(find)
    call(X.clone().requires_grad_() * 1).sum().backward()
    (_, (example,), config) = find.asked[0]
    assert config.training
    assert example.args[0].is_leaf
    assert example.args[0].requires_grad


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.parametrize(
    "transform", [torch.vmap, lambda call: lambda x: torch.jit.trace(call, x, check_trace=False), make_fx]
)
def test_no_plan_is_sought_within_a_transform(transform: Callable[[Any], Any]) -> None:
    manager, call = make_manager(find := Finder())
    transform(call)(X)
    assert find.asked == []
    assert manager.statistics()["double"].original == {FallbackReason.SEARCH_POSTPONED: 1}


@torch.no_grad()
def test_parts_disappear_into_what_is_compiled_around_them() -> None:
    manager, call = make_manager(find := Finder())
    linear = manager.register(torch.nn.Linear(4, 4))
    compiled: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., Any]:
        compiled.append(graph)
        return graph.forward

    around = torch.compile(lambda x: linear(call(x)), backend=backend, fullgraph=True)
    other = None
    for _ in range(2):
        assert torch.equal(around(X), torch.nn.functional.linear(X * 2, linear.weight, linear.bias))
        other = manager.register(torch.nn.Linear(4, 4))  # of which the code should know nothing
    assert len(compiled) == 1
    assert other is not None
    assert find.asked == []
    assert manager.statistics()["Linear"].original == {}
    assert manager.statistics()["double"].original == {}


def test_parts_run_under_the_autocast_that_is_asked_for() -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return x @ x.T

    manager = CompileManager(find=(find := Finder()), autocast="bfloat16", device="cpu")
    call = manager.register(product)
    assert call(X).dtype == torch.bfloat16  # by the original
    with manager.autocast():
        assert call(X).dtype == torch.bfloat16
    assert call(X).dtype == torch.bfloat16
    assert manager.components[product.__qualname__].statistics.optimized == 2
    assert find.asked[0][0](X).dtype == torch.bfloat16  # the tuned function
    assert product(X).dtype == torch.float32


def test_saying_where_parts_run_does_not_start_cuda(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: pytest.fail("CUDA is started"))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: pytest.fail("CUDA is started"))
    assert CompileManager().device() == "cuda"
    assert capsys.readouterr().err == "torchwise: device cuda\n"


def test_the_manager_says_where_parts_run_and_under_what(capsys: pytest.CaptureFixture[str]) -> None:
    found = "cuda" if torch.cuda.is_available() else "cpu"
    manager = CompileManager()
    assert [manager.device(), manager.device()] == [found, found]
    said = capsys.readouterr().err
    assert said.count("torchwise: device") == 1
    name = f": {torch.cuda.get_device_name()}" if torch.cuda.is_initialized() else ""
    assert said.startswith(f"torchwise: device {found}{': ' if found == 'cpu' else name}")
    assert "the config says" not in said
    assert CompileManager(CompileConfig(device="cuda")).device() == "cuda"
    assert "cuda, as the config says" in capsys.readouterr().err or found == "cuda"
    assert CompileManager(progress=False).device() == found
    assert capsys.readouterr().err == ""
    with CompileManager().autocast():
        assert not torch.is_autocast_enabled("cpu")
    with CompileManager(autocast="float16", device="cpu").autocast():
        assert torch.get_autocast_dtype("cpu") == torch.float16
    for dtype in (torch.bfloat16, "bfloat16"):
        with CompileManager(autocast="float16", device="cpu").autocast(dtype):
            assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    with pytest.raises(InputError, match="autocast is 'float64', but must be one of bfloat16, float16"):
        CompileManager(device="cpu").autocast(torch.float64)


def test_the_autocast_of_a_part_holds_in_a_call_of_its_own_as_well() -> None:
    class Net(torch.nn.Linear):
        def __call__(self, x: torch.Tensor) -> Any:
            return super().__call__(x) @ torch.ones(4, 4)

    manager = CompileManager(find=Finder(), autocast="bfloat16", device="cpu")
    net = Net(4, 4)
    manager.register(net)
    plain, planned = net(X), net(X)
    [part] = manager.components.values()
    assert part.statistics.optimized == 1
    assert planned.dtype == plain.dtype == torch.bfloat16
