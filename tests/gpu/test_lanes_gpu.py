"""A search that tries several plans at once on a real GPU."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torchwise import environment  # noqa: E402
from torchwise.measure.device_lock import OWN_CORES  # noqa: E402
from torchwise.plan import Plan  # noqa: E402
from torchwise.plan.workload_spec import WorkloadSpec  # noqa: E402
from torchwise.records import Outcome, Study, Trial, TrialState  # noqa: E402
from torchwise.records.listener import Listener  # noqa: E402
from torchwise.store import open_storage  # noqa: E402
from torchwise.study import Request, run_study  # noqa: E402
from torchwise.study.lanes import MIN_CORES, count_cores  # noqa: E402
from torchwise.trial import ProcessLauncher  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
]
PLANS = (
    Plan(backend="inductor"),
    Plan(backend="inductor", mode="reduce-overhead"),
    Plan(backend="inductor", capture="call"),
    Plan(capture="call"),
)


class Heard(Listener):
    """Counts the trials that run at once."""

    def __init__(self) -> None:
        self.most = self.now = 0
        self.threads: set[int] = set()
        self.notes: list[str] = []

    def start_trial(self, number: int, plan: Plan, reason: str) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        self.threads.add(threading.get_ident())

    def finish_trial(self, trial: Trial) -> None:
        self.now -= 1

    def note(self, text: str) -> None:
        self.notes.append(text)


def search(folder: Path, workers: int | None, heard: Heard) -> Study:
    spec = WorkloadSpec("zoo:tutorial.fusion_demo", device="cuda", calls=10**9)
    with open_storage(str(folder / f"{workers}.db")) as storage:
        request = Request(spec, plans=PLANS, effort="quick", workers=workers)
        return run_study(request, storage, ProcessLauncher(), heard)


def test_plans_are_tried_at_once_each_on_cores_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if count_cores() < MIN_CORES:
        pytest.skip("needs four CPU cores")
    monkeypatch.delenv(OWN_CORES, raising=False)
    several, alone = Heard(), Heard()
    study = search(tmp_path, None, several)
    assert several.most > 1, several.notes
    assert len(several.threads) > 1
    assert study.inspection.device_memory, "it decides how many fit"
    assert [trial.plan for trial in sorted(study.trials, key=lambda trial: trial.number)] == list(PLANS)
    shares = set()
    for trial in study.trials:
        assert trial.state in (TrialState.COMPLETE, TrialState.PRUNED), trial.reason
        assert trial.measurement is not None, trial.reason
        cores = trial.measurement.cores
        assert cores is not None
        assert cores.threads <= cores.cpus < environment.available_cpus()
        shares.add(cores.cpus)
        assert not any("used the GPU meanwhile" in note for note in trial.measurement.notes)
    assert len(shares) == 1, "all trials have equally many cores"
    expected = search(tmp_path, 1, alone)
    assert alone.most == 1
    passed, passed_alone = (
        {trial.plan for trial in each.trials if trial.verdict and trial.verdict.outcome is Outcome.PASS}
        for each in (study, expected)
    )
    assert passed == passed_alone == set(PLANS)
