"""Two ranks under torchrun: one plan, the weights that eager trains to, and no rank that waits for ever."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from builders import a_study, a_trial
from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.runtime.training.distributed import Ranks, find_rank_refusal, without_rank
from torchwise.runtime.training.step import _decide_for_ranks

SCRIPT = Path(__file__).parents[1] / "targets" / "loops_ranks.py"
TOGETHER = (
    "exact,accumulate_gradients,fuse_optimizer,stale,slow,fail_on_one_rank,different,odd_batch,wrong,"
    "shard_and_train,shard_too_early,shard_and_compile"
)
BY_NIGHT = "slow_sharded,compile_step"
LIMIT_S = 150.0

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch is built without torch.distributed")


def start(scenes: str, folder: Path) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return popen([*launcher, str(SCRIPT), scenes, str(folder)], {"OMP_NUM_THREADS": "1"})


def popen(command: list[str], variables: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **variables},
        start_new_session=True,
    )


def wait_for_end(job: subprocess.Popen[str], limit_s: float = LIMIT_S) -> str:
    try:
        return job.communicate(timeout=limit_s)[0]
    finally:
        end(job)


def end(job: subprocess.Popen[str]) -> None:
    if job.poll() is None:
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def read_results(scene: str, folder: Path) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{scene}.{rank}.json").read_text()) for rank in (0, 1)]


class Scenes:
    def __init__(self, names: str, folder: Path) -> None:
        self.folder = folder
        self.output = wait_for_end(start(names, folder))

    def __call__(self, scene: str) -> list[dict[str, Any]]:
        assert (self.folder / f"{scene}.1.json").exists(), self.output
        return read_results(scene, self.folder)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return Scenes(TOGETHER, tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def scenes_by_night(tmp_path_factory: pytest.TempPathFactory) -> Scenes:
    return Scenes(BY_NIGHT, tmp_path_factory.mktemp("ranks-by-night"))


def weights_agree(ranks: list[dict[str, Any]]) -> bool:
    first, second = (rank.get("planned", rank)["weights"] for rank in ranks)
    return first == second


@pytest.mark.parametrize("scene", ["exact", "accumulate_gradients", "shard_and_train"])
def test_an_exact_plan_trains_every_rank_to_the_weights_of_eager(scene: str, scenes: Scenes) -> None:
    for rank in scenes(scene):
        assert rank["optimized"] == 5
        assert rank["original"] == {}
        assert rank["planned"] == rank["eager"]
    assert weights_agree(scenes(scene))


def test_a_reordered_plan_trains_every_rank_to_the_loss_of_eager(scenes: Scenes) -> None:
    for rank in scenes("fuse_optimizer"):
        assert rank["optimized"] == 5
        assert rank["planned"]["losses"] == pytest.approx(rank["eager"]["losses"], rel=1e-5)
    assert weights_agree(scenes("fuse_optimizer"))


@pytest.mark.parametrize(
    ("scene", "run"),
    [("slow", "scenes"), pytest.param("slow_sharded", "scenes_by_night", marks=pytest.mark.nightly)],
)
def test_a_rank_that_takes_longer_than_collectives_may_holds_nobody_up_for_good(
    scene: str, run: str, request: pytest.FixtureRequest
) -> None:
    for rank in request.getfixturevalue(run)(scene):
        assert rank["optimized"] == 5
        assert rank["seconds"] > 4  # longer than `TIMEOUT_S` of the script
        assert rank["planned"] == rank["eager"]


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        ("stale", ["another rank cannot", "is stale"]),
        ("fail_on_one_rank", ["another rank cannot", "no such luck"]),
        ("different", ["another rank cannot", "rank 0 has another decision"]),
    ],
)
def test_what_one_rank_cannot_take_is_taken_by_none(scene: str, why: list[str], scenes: Scenes) -> None:
    for rank, reason in zip(scenes(scene), why, strict=True):
        assert rank["optimized"] == 0
        assert [reason in sentence for sentence in rank["original_sentences"].values()] == [True]
        assert rank["planned"] == rank["eager"]


def test_ranks_meet_at_the_first_batch_that_each_has_a_proof_for(scenes: Scenes) -> None:
    ranks = scenes("odd_batch")
    assert [rank["optimized"] for rank in ranks] == [3, 3]  # of five: the first and the last are of another size
    assert weights_agree(ranks)


def test_what_rank_0_cannot_do_every_rank_hears_of(scenes: Scenes) -> None:
    first, second = (rank["error"] for rank in scenes("wrong"))
    assert first.startswith("InputError: effort is 'heroic'")
    assert second.startswith("InputError: rank 0, which decides for all, failed (InputError): effort is 'heroic'")


def test_a_sharded_model_is_not_tuned(scenes: Scenes) -> None:
    assert ["tune before you shard it" in rank["error"] for rank in scenes("shard_too_early")] == [True, True]


@pytest.mark.nightly
def test_rank_0_tunes_for_all(tmp_path: Path) -> None:
    output = wait_for_end(start("tune", tmp_path))
    assert (tmp_path / "tune.1.json").exists(), output
    first, second = read_results("tune", tmp_path)
    assert first["decision"] == second["decision"]
    assert (first["rank"], second["rank"]) == ("0", "1")
    assert weights_agree([first, second])


@pytest.mark.nightly
def test_two_ranks_run_a_compiled_plan(scenes_by_night: Scenes) -> None:
    for rank in scenes_by_night("compile_step"):
        assert rank["optimized"] == 5
        assert rank["planned"]["losses"] == pytest.approx(rank["eager"]["losses"], rel=1e-4)
    assert weights_agree(scenes_by_night("compile_step"))


@pytest.mark.slow
@pytest.mark.nightly
def test_a_rank_that_is_killed_while_rank_0_tunes_takes_the_job_and_the_workers_along(tmp_path: Path) -> None:
    job = start("tune_long", tmp_path)
    try:
        worker = find_worker(tmp_path, job)
        family = psutil.Process(job.pid).children(recursive=True)
        assert worker in family
        process(tmp_path / "rank1").kill()
        wait_for_end(job, 60)
        assert job.returncode != 0
        assert psutil.wait_procs(family, timeout=20)[1] == []
    finally:
        end(job)


@pytest.mark.slow
@pytest.mark.nightly
def test_ranks_hear_that_rank_0_was_killed_while_it_tuned(tmp_path: Path) -> None:
    """They run without torchrun, which would end them itself."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), "tune_long", str(tmp_path)]
    jobs = [popen(command, {**place, "RANK": str(rank)}) for rank in (0, 1)]
    try:
        worker = find_worker(tmp_path, *jobs)
        family = psutil.Process(jobs[0].pid).children(recursive=True)
        assert worker in family
        jobs[0].kill()
        output = wait_for_end(jobs[1], 60)
        assert "TorchwiseError: a rank ended" in output
        assert jobs[1].returncode == 1
        assert psutil.wait_procs(family, timeout=20)[1] == []
    finally:
        for job in jobs:
            end(job)


def find_worker(folder: Path, *jobs: subprocess.Popen[str]) -> psutil.Process:
    """Return the worker of rank 0, once it is at work."""
    deadline = time.monotonic() + LIMIT_S
    while not (folder / "worker").exists() or not (folder / "worker").read_text():
        assert time.monotonic() < deadline
        for job in jobs:
            assert job.poll() is None, job.communicate()[0]
        time.sleep(0.2)
    return process(folder / "worker")


def process(sign: Path) -> psutil.Process:
    return psutil.Process(int(sign.read_text()))


@pytest.fixture
def alone() -> Iterator[Ranks]:
    with Ranks() as ranks:
        yield ranks


def test_a_process_alone_waits_for_nobody(alone: Ranks) -> None:
    assert not alone.are_several
    assert alone.broadcast_from_rank0(lambda: "mine") == "mine"
    assert alone.everywhere(True, False) == (True, False)


def test_no_patience_is_refused() -> None:
    with pytest.raises(InputError, match="patience is 0 s, but must be above 0"):
        Ranks(0)


def test_a_worker_does_not_take_itself_for_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK", "TORCHELASTIC_RUN_ID")
    for name in names:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("RANKING", "kept")
    with without_rank():
        assert [os.environ.get(name) for name in names] == [None] * 5
        assert os.environ["RANKING"] == "kept"
    assert [os.environ.get(name) for name in names] == ["7"] * 5


@pytest.mark.parametrize("plan", [Plan(capture="step", optimizer="fused"), Plan(backend="inductor", scope="loss")])
def test_what_is_for_one_process_alone_is_known(plan: Plan) -> None:
    assert find_rank_refusal(plan) is not None
    assert find_rank_refusal(Plan(backend="inductor")) is None
    assert torch.distributed.is_initialized() is False


def test_where_the_best_plan_is_for_one_process_the_best_of_the_others_is_decided_for() -> None:
    alone, fit = Plan(optimizer="fused", capture="step"), Plan(optimizer="fused")
    study = a_study([a_trial(0, fit, 1.5), a_trial(1, alone, 3.0)], decided=1)
    assert study.decision is not None
    assert study.decision.plan == alone
    assert _decide_for_ranks(study).plan == fit
    assert _decide_for_ranks(a_study([a_trial(0, fit, 1.5)], decided=0)).plan == fit


def test_sharded_blocks_are_compiled(scenes: Scenes) -> None:
    for rank in scenes("shard_and_compile"):
        assert rank["optimized"] == 5
        assert rank["planned"]["losses"] == pytest.approx(rank["eager"]["losses"], rel=1e-4)
