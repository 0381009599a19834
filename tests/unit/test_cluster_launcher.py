"""Which device of a cluster a study holds, and where a job goes whose device is lost, with a made-up Ray."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from torchwise import __version__
from torchwise.environment import Environment
from torchwise.errors import BaselineError, BudgetError, InputError, UnsupportedError
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind
from torchwise.records.listener import Listener
from torchwise.study.batch_search import SampleCheck
from torchwise.study.cluster import choice
from torchwise.study.cluster import launcher as module
from torchwise.study.cluster.device_actor import ActorInfo
from torchwise.study.cluster.launcher import RETRIES, RayLauncher, _select_portable, connect, devices_of
from torchwise.trial import Job, Limits
from torchwise.trial.full_graph import FullGraphJob

HERE = Environment("cpu", "a", "Linux", "Xeon", 8, "3.11", "2.13")
OTHER = replace(HERE, cpu="EPYC", hostname="b")
JOB = Job("inspect", WorkloadSpec("zoo:tutorial.fusion_demo"), environment={"OMP_NUM_THREADS": "2", "TOKEN": "secret"})
LIMITS = Limits(60, 2**30)


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


@dataclass
class FakeRay:
    """A cluster whose seats answer by a script: for each seat the return values of `poll`, or the errors it raises."""

    kinds: dict[str, Environment]
    scripts: list[Any] = field(default_factory=list)
    version: str = __version__
    gpus: int = 0
    refusal: str = ""
    busy: set[str] = field(default_factory=set)
    taken: list[str] = field(default_factory=list)
    killed: int = 0
    jobs: list[Job] = field(default_factory=list)
    options: list[dict[str, Any]] = field(default_factory=list)
    exceptions = types.SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)
    util = types.SimpleNamespace(
        scheduling_strategies=types.SimpleNamespace(NodeAffinitySchedulingStrategy=lambda node, soft: node)
    )

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        resources = {"CPU": 8.0, "GPU": float(self.gpus)}
        return [
            {"NodeID": name, "NodeManagerHostname": name, "Alive": True, "Resources": resources} for name in self.kinds
        ]

    def remote(self, seat: type) -> FakeRay:
        return self

    def options_(self, **options: Any) -> Any:
        self.options.append(options)
        free = [name for name in self.kinds if name not in self.busy]
        chosen = options.get("scheduling_strategy") or (free[0] if free else None)
        return types.SimpleNamespace(remote=lambda *given: FakeSeat(self, chosen))

    def get(self, ref: Callable[[], Any], timeout: float) -> Any:
        return ref()

    def kill(self, seat: Any) -> None:
        self.killed += 1


class FakeSeat:
    def __init__(self, ray: FakeRay, node: str | None) -> None:
        self._ray, self._node = ray, node

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(remote=lambda *given: lambda: getattr(self, f"do_{name}")(*given))

    def do_describe(self, device: str) -> ActorInfo:
        if self._ray.refusal:
            raise RayError(self._ray.refusal)
        if self._node not in self._ray.kinds or self._node in self._ray.busy:
            raise RayError("ActorUnschedulable: no such node, or no time")
        self._ray.taken.append(self._node)
        return ActorInfo(self._node, self._ray.version, self._ray.kinds[self._node])

    def do_begin(self, job: Job, limits: Limits) -> None:
        self._ray.jobs.append(job)

    def do_poll(self) -> list[tuple[str, Any]]:
        said = self._ray.scripts.pop(0)
        if isinstance(said, Exception):
            raise said
        if callable(said):
            return said()  # type: ignore[no-any-return]
        return said  # type: ignore[no-any-return]

    def do_close(self) -> None:
        pass


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayLauncher]:
    def make(ray: FakeRay, device: str = "cpu", **options: Any) -> RayLauncher:
        given = types.SimpleNamespace(
            **{name: getattr(ray, name) for name in ("is_initialized", "nodes", "get", "kill", "exceptions", "util")},
            remote=lambda seat: types.SimpleNamespace(options=ray.options_),
        )
        monkeypatch.setattr(module, "connect", lambda address: given)
        return RayLauncher(device, "somewhere", **options)

    return make


def run(launcher: RayLauncher, heard: list[str] | None = None) -> str | Failure:
    return launcher.run(JOB, LIMITS, (heard if heard is not None else []).append)


def test_stages_are_passed_on_and_the_answer_comes_back(held: Callable[..., RayLauncher]) -> None:
    heard: list[str] = []
    ray = FakeRay({"a": HERE}, [[("stage", "compile")], [], [("stage", "verify"), ("answer", "{}")]])
    launcher = held(ray)
    assert run(launcher, heard) == "{}"
    assert heard == ["compile", "verify"]
    assert launcher.environment == HERE
    assert ray.jobs[0].environment == {"OMP_NUM_THREADS": "2"}, "no secret leaves the user's machine"


def test_a_lost_device_is_replaced_by_one_of_the_same_kind_alone(held: Callable[..., RayLauncher]) -> None:
    ray = FakeRay({"a": HERE, "b": OTHER, "c": replace(HERE, hostname="c")})

    def loses() -> list[tuple[str, Any]]:
        del ray.kinds["a"]
        raise RayError("node a died")

    ray.scripts = [loses, [("answer", "{}")]]
    notes: list[str] = []
    listener = Listener()
    listener.note = notes.append
    assert run(held(ray, listener=listener)) == "{}"
    assert ray.taken == ["a", "b", "c"], "b is looked at, and given back"
    assert len(ray.jobs) == 2
    assert "node a died" in notes[0]


def test_a_job_that_loses_every_device_ends_as_a_failure_of_its_own(held: Callable[..., RayLauncher]) -> None:
    ray = FakeRay({"a": HERE}, [[("stage", "compile")], *[RayError("the node died")] * (1 + RETRIES)])
    answer = run(held(ray))
    assert isinstance(answer, Failure)
    assert (answer.kind, answer.stage) == (FailureKind.DIED, "compile")
    assert f"lost {1 + RETRIES} times: RayError: the node died" in answer.message
    assert len(ray.jobs) == 1 + RETRIES


def test_a_kind_that_does_not_come_back_ends_the_study_and_says_what_to_do(held: Callable[..., RayLauncher]) -> None:
    ray = FakeRay({"a": HERE, "b": OTHER})

    def loses() -> list[tuple[str, Any]]:
        del ray.kinds["a"]
        raise RayError("node a died")

    ray.scripts = [loses]
    with pytest.raises(UnsupportedError, match=r"no node like a .* the same command continues"):
        run(held(ray, patience_s=0.5))


def test_a_job_waits_for_a_device_until_its_end_and_no_longer(held: Callable[..., RayLauncher]) -> None:
    ray = FakeRay({"a": HERE})

    def loses() -> list[tuple[str, Any]]:
        ray.busy.add("a")
        raise RayError("its actor died, and another study has the device")

    ray.scripts = [loses]
    answer = held(ray).run(JOB, replace(LIMITS, end_s=0.2), lambda stage: None)
    assert isinstance(answer, Failure)
    assert answer.kind is FailureKind.INTERFERED, "by which a budget knows that it ended a wait"
    assert "for a device of the cluster" in answer.message


def test_the_first_device_is_waited_for_as_long_as_the_budget_is(held: Callable[..., RayLauncher]) -> None:
    with pytest.raises(BudgetError, match="the budget ended before a device of the cluster was free"):
        held(FakeRay({"a": HERE}, busy={"a"}), wait_s=0.1)


@pytest.mark.parametrize("error", [InputError("no such target"), BaselineError("it raises"), KeyboardInterrupt()])
def test_what_ends_the_study_gives_the_device_back(held: Callable[..., RayLauncher], error: BaseException) -> None:
    ray = FakeRay({"a": HERE}, [[("error", error)]])
    with pytest.raises(type(error)):
        run(held(ray))
    assert ray.killed == 1


def test_a_fault_of_the_seats_own_code_is_raised_and_not_retried(held: Callable[..., RayLauncher]) -> None:
    ray = FakeRay({"a": HERE}, [RayTaskError("KeyError")])
    with pytest.raises(RayTaskError):
        run(held(ray))
    assert len(ray.jobs) == 1


def test_a_cluster_without_such_a_device_is_refused_with_what_it_has(held: Callable[..., RayLauncher]) -> None:
    with pytest.raises(InputError, match=r"no node of the cluster has a GPU to reserve \(a has 8 CPUs and 0 GPUs\)"):
        held(FakeRay({"a": HERE}), "cuda")


def test_a_seat_that_cannot_be_made_ends_the_study_with_the_cause(held: Callable[..., RayLauncher]) -> None:
    died = (
        "The actor died because of an error raised in its creation task, ray::Seat.__init__()\n  File ...\nOSError: x"
    )
    with pytest.raises(UnsupportedError, match="must be installed there: OSError: x"):
        held(FakeRay({"a": HERE}, refusal=died))


def test_another_torchwise_on_the_nodes_is_refused(held: Callable[..., RayLauncher]) -> None:
    with pytest.raises(UnsupportedError, match=r"node a has Torchwise 0\.0\.9, but must have"):
        held(FakeRay({"a": HERE}, version="0.0.9"))


@pytest.mark.parametrize(("device", "reserved"), [("cuda", {"num_gpus": 1, "num_cpus": 1}), ("cpu", {"num_cpus": 5})])
def test_one_study_a_gpu_and_one_a_processor(
    held: Callable[..., RayLauncher], device: str, reserved: dict[str, float]
) -> None:
    ray = FakeRay({"a": HERE}, gpus=2)
    held(ray, device)
    assert reserved.items() <= ray.options[0].items()
    assert devices_of(ray, device) == {"cuda": 2, "cpu": 1}[device]


@pytest.mark.parametrize("order", [Job, FullGraphJob, SampleCheck], ids=["job", "one graph", "samples"])
def test_live_models_do_not_travel(held: Callable[..., RayLauncher], order: type[Any]) -> None:
    live = replace(JOB, source="/tmp/model.pt")
    with pytest.raises(UnsupportedError, match="targets only"):
        held(FakeRay({"a": HERE})).run(live if order is Job else order(live), LIMITS, lambda stage: None)


@pytest.mark.parametrize("order", [FullGraphJob(JOB), SampleCheck(JOB)], ids=["one graph", "samples"])
def test_an_order_derived_from_a_job_travels_without_secrets(held: Callable[..., RayLauncher], order: Any) -> None:
    ray = FakeRay({"a": HERE}, [[("answer", "{}")]])
    assert held(ray).run(order, LIMITS, lambda stage: None) == "{}"
    assert ray.jobs == [replace(order, job=replace(JOB, environment={"OMP_NUM_THREADS": "2"}))]


def test_only_what_pytorch_reads_and_no_place_is_taken_along() -> None:
    kept = {"TORCHINDUCTOR_FREEZING": "1", "OMP_NUM_THREADS": "4", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    left = {
        "TORCHWISE_STORE": "postgresql://u:p@h/d",
        "TORCHINDUCTOR_CACHE_DIR": "/home/u/.cache",
        "TORCHINDUCTOR_REDIS_URL": "redis://:p@h/",
        "CUDA_VISIBLE_DEVICES": "3",
        "AWS_SECRET_ACCESS_KEY": "p",
        "PATH": "/bin",
    }
    assert _select_portable(kept | left) == kept


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'ray\[client\]'"):
        connect(None)


def test_measurements_bear_the_name_of_the_machine_that_made_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        environment = OTHER
        __enter__ = lambda self: self  # noqa: E731
        __exit__ = lambda self, *given: None  # noqa: E731

    told, listener = [], Listener()
    monkeypatch.setattr(choice, "RayLauncher", lambda *given, **named: told.append(named["listener"]) or Held())
    with choice.opened("ray", "cpu", None, listener) as (_, here):
        assert here == OTHER
    assert told == [listener]
    with choice.opened("process", "cpu", None, listener) as (_, here):
        assert here is None
