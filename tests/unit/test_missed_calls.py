"""A run by plans keeps the calls that no plan was tuned for, and the next search tunes for them, too."""

from __future__ import annotations

import math
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from test_program import Searches, decide_at_once
from test_run_command import invoke, printed_command

from live_decisions import make_decision
from torchwise.cli.run_report import _choose_decision, _repeat_options
from torchwise.errors import InputError, StorageError
from torchwise.plan import EAGER, Numerics, Plan
from torchwise.records.missed_calls import MissedKind
from torchwise.runtime.api import Study
from torchwise.runtime.bucketing.bucketed import DYNAMIC
from torchwise.runtime.program import missed_calls, missed_files, missed_recorder, recorder, start_costs
from torchwise.runtime.program.calls import Calls, Kind
from torchwise.runtime.program.missed_calls import PlacedPlans, add_missed, add_run, list_missed, merge_run
from torchwise.runtime.program.missed_files import Missed, Stored, StoredCalls, path_of, read_missed, write_missed
from torchwise.runtime.program.missed_recorder import MissedCallRecorder
from torchwise.runtime.program.stored import StoredPlans
from torchwise.store import open_storage
from torchwise.store.location import make_absolute
from torchwise.workload import Example
from torchwise.workload.identity import describe_example
from torchwise.workload.plain_inputs import from_plain, to_plain
from torchwise.workload.stand_in import read_statistics, without_values, write_statistics

PROGRAM = """
import os, sys, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return self.linear(getattr(x, "rows", x).to(self.linear.weight.dtype)).relu()

class Rows:
    def __init__(self, rows):
        self.rows = rows

torch.manual_seed(0)
net = Net().eval()
with torch.no_grad():
    for word in sys.argv[1:]:
        x = torch.full((int(word.strip("foa")), 4), 0.5)
        given = x.double() if "f" in word else Rows(x) if "o" in word else x
        with torch.autocast("cpu", torch.bfloat16, enabled="a" in word):
            for _ in range(5):
                out = net(given)
        print(round(float(out.sum()), 3))
"""


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Searches:
    """Decide at once, and let the command run programs in this process."""
    monkeypatch.setattr(start_costs, "MIN_TOLD_S", math.inf)
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return decide_at_once(monkeypatch)


@pytest.fixture
def run(tmp_path: Path, searches: Searches, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run the program with options of the command and words of its own, and return the report."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(PROGRAM)

    def run(option: str, *words: str) -> str:
        return invoke(*option.split(), "--store", "s.db", "net.py", *words)

    return run


def weights_of(searches: Searches) -> dict[int, float]:
    """Return the rows of each example of the last search, with its weight."""
    _, workload = searches.asked[-1]
    return {len(example.args[0]): example.weight for example in workload.examples}


def only_kinds() -> list[MissedKind]:
    ((_, calls),) = read_missed("net.py", "s.db").items()
    return [missed.kind for missed in calls.kinds]


def test_calls_of_other_sizes_are_told_and_tuned_for_by_the_printed_command(
    run: Callable[..., str], searches: Searches
) -> None:
    run("--tune", "3")
    report = run("--apply", "3", "7", "7")
    row = next(line.split() for line in report.splitlines() if "float32[7," in line)
    assert row == ["Net", "float32[7,", "4]", "10", row[4], "%", "as", "they", "were"]
    assert "the next --tune tunes for these inputs, too, whichever inputs it sees" in report
    assert printed_command(report) == ["--tune", "--store", "s.db", "net.py", "3", "7", "7"]
    again = " ".join(run("--tune", "3").split())
    assert weights_of(searches) == {3: 5, 7: 10}
    assert "1 more kind of calls came in runs by plans, 10 a run: they count here, too" in again
    assert "float32[7" not in run("--apply", "3", "7"), "its plan answers it"


def test_a_run_without_such_calls_keeps_nothing(run: Callable[..., str], searches: Searches) -> None:
    run("--tune", "3")
    report = run("--apply", "3")
    assert "Next" not in report
    assert not path_of("net.py", "s.db").parent.exists()


def test_calls_count_as_often_as_in_a_mean_run_until_a_plan_answers_them(
    run: Callable[..., str], searches: Searches
) -> None:
    run("--tune", "3")
    for words in (["7", "7"], ["3"], ["7", "9"]):
        run("--apply", *words)
    assert {(kind.inputs, kind.calls, kind.runs) for kind in only_kinds()} == {
        ("float32[7, 4]", 15, 3),
        ("float32[9, 4]", 5, 3),
    }
    run("--tune", "3", "9")
    assert weights_of(searches) == {3: 5, 7: 5, 9: 5}, "the recording's own count holds for a size that it has"
    run("--apply", "3", "8")
    assert {kind.inputs: kind.runs for kind in only_kinds()}["float32[7, 4]"] == 3, "the plan answers it by now"
    run("--tune", "3")
    assert weights_of(searches)[7] == 5, "nothing is forgotten by a search"


def test_a_recording_without_a_search_counts_them_too(run: Callable[..., str], searches: Searches) -> None:
    run("--tune", "3")
    run("--apply", "7")
    report = " ".join(run("", "3").split())
    assert "1 more kind of calls came in runs by plans, 5 a run: they count here, too; 2 sizes" in report


def test_fixed_sizes_are_those_of_the_recording(run: Callable[..., str], searches: Searches) -> None:
    run("--tune", "3")
    run("--apply", "7")
    run("--tune --sizes fixed", "3")
    assert weights_of(searches) == {3: 5}


def test_a_call_that_a_plan_answers_is_not_recorded(
    run: Callable[..., str], searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("--tune --calls 1e6", "3", "5")
    monkeypatch.setattr(MissedCallRecorder, "_answer", lambda *_: pytest.fail("it looks at the call"))
    run("--apply", "3", "7")  # by the second plan, for other sizes


def test_where_two_plans_answer_other_dtypes_are_missed(run: Callable[..., str], searches: Searches) -> None:
    run("--tune --calls 1e6", "3", "5")
    assert searches.asked[-1][0].plans == (replace(*DYNAMIC, threads=searches.plan.threads),)
    report = run("--apply", "7", "7f")
    assert "float64[7, 4]" in report
    assert [kind.inputs for kind in only_kinds()] == ["float64[7, 4]"]


def test_inputs_above_the_limit_are_kept_as_stand_ins(
    run: Callable[..., str], searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missed_recorder, "KEPT_BYTES", 0)
    run("--tune", "3")
    assert "their statistics" in run("--apply", "7")
    run("--tune", "3")
    drawn = next(example.args[0] for example in searches.asked[-1][1].examples if len(example.args[0]) == 7)
    assert torch.equal(drawn, torch.full((7, 4), 0.5))


def test_a_file_has_a_limit_over_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_files, "KEPT_BYTES", 100)
    store, kinds = str(tmp_path / "s.db"), [make_missed(rows) for rows in (2, 4, 8)]  # of 32, 64 and 128 bytes
    write_missed("p", store, {("Net", "s"): StoredCalls(1, kinds)})
    (calls,) = read_missed("p", store).values()
    assert [missed.kind.kept for missed in calls.kinds] == ["real", "real", "stand-in"]
    assert calls.kinds[2].example is not None
    assert calls.kinds[2].example.args[0].device.type == "meta"


def test_inputs_in_objects_are_counted_and_named(run: Callable[..., str], searches: Searches) -> None:
    run("--tune", "3")
    report = " ".join(run("--apply", "7o").split())
    assert "these inputs are not kept, so the next --tune tunes for them only if it sees them" in report
    report = run("--apply", "7o", "9")
    assert "too, and for those that are not kept only if it sees them" in " ".join(report.split())
    assert {(kind.inputs, kind.calls, kind.kept) for kind in only_kinds()} == {
        ("Rows", 10, "none"),
        ("float32[9, 4]", 5, "real"),
    }
    run("--tune", "3")
    assert weights_of(searches) == {3: 5, 9: 2}


def test_the_command_repeats_the_options_of_the_search(
    run: Callable[..., str], searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    def decide(request: Any, workload: Any, store: str | None, **options: Any) -> Study:
        study = searches(request, workload, None, **options).record
        study = replace(study, allow=request.allow, effort=request.effort)
        with open_storage(store) as storage:
            return Study(storage.import_study(study))

    monkeypatch.setattr("torchwise.runtime.program.tuning.search", decide)
    options = ["--restarts", "3", "--allow", "substituted", "--effort", "quick", "--calls", "1000000"]
    options += ["--tolerance", "0.1", "--require", "deterministic"]
    run(" ".join(["--tune", *options]), "3")
    report = run("--apply --keep-memory", "7")
    words = printed_command(report)
    assert words[: len(options) + 1] == ["--tune", *options]
    assert words[len(options) + 1 :] == ["--store", "s.db", "--keep-memory", "net.py", "7"]


def test_the_command_has_the_calls_of_the_search_where_it_expected_more_than_came(run: Callable[..., str]) -> None:
    run("--tune --calls 20", "3")
    assert "--calls" not in printed_command(run("--apply", "3", *["7"] * 3))
    assert printed_command(run("--apply", "3", "7"))[:3] == ["--tune", "--calls", "20"]


def test_these_calls_are_of_the_module_with_the_most_time(tmp_path: Path) -> None:
    many = make_decision(torch.sin, Plan(threads=1))
    many = replace(many, baseline_s=1e-6, workload=replace(many.workload, calls=1000))
    long = replace(many, baseline_s=1.0, workload=replace(many.workload, calls=20))
    placed = [PlacedPlans("Many", many, None), PlacedPlans("Long", long, None)]
    for seen, told in ((19, 20), (20, None)):
        options = _repeat_options(placed, "Many", {"Many": 1, "Long": seen}, str(tmp_path / "missing.db"))
        assert options["calls"] == told


def test_the_command_has_the_metric_where_the_module_draws_nothing() -> None:
    fixed = make_decision(torch.sin, Plan(threads=1), torch.ones(3, 4))
    noisy = replace(fixed, workload=replace(fixed.workload, metric="distribution"))
    placed = [PlacedPlans("Fixed", fixed, None), PlacedPlans("Noisy", noisy, None)]
    assert _choose_decision(placed, "Fixed") is noisy
    assert _choose_decision(placed[:1], "Fixed") is fixed


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_store_is_the_same_where_the_program_changes_folders(
    by: str, tmp_path: Path, searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("other").mkdir()
    Path("net.py").write_text(f"import os\nos.chdir({str(tmp_path / 'other')!r})\n{PROGRAM}")
    words = ["--store", "sqlite:///s.db"] if by == "option" else []
    if not words:
        monkeypatch.setenv("TORCHWISE_STORE", "s.db")
    for option, rows in (("--tune", "3"), ("--apply", "7")):
        monkeypatch.chdir(tmp_path)
        invoke(option, *words, "net.py", rows)
    assert not [*(tmp_path / "other").iterdir()]
    assert len([*(tmp_path / "s.db.missed-calls").glob("*.pt")]) == 1


def test_a_text_that_names_no_file_is_no_path() -> None:
    texts = ["postgresql://u@host/d", "sqlite:///:memory:", "sqlite:///", "sqlite://host/a.db", "sqlite:///a.db?b=c"]
    assert [make_absolute(text) for text in texts] == texts


def test_without_the_study_the_plan_tells_its_numerics(tmp_path: Path) -> None:
    lower = make_decision(torch.sin, Plan(backend="inductor", precision="bf16"))
    options = _repeat_options([PlacedPlans("Sine", lower, None)], "Sine", {}, str(tmp_path / "missing.db"))
    assert options["allow"] == str(Numerics.LOWER_PRECISION)
    assert options["effort"] == "standard"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no file of tensors", "cannot be read"),
        ({"inputs": []}, "this is no file of calls: it must hold a record and inputs"),
        ({"record": "{}", "inputs": []}, "this is no MissedCalls: it names no schema"),
        ("kinds", "it must hold inputs, or None, for each kind"),
        ("autocast", "autocast is 'load', but must be a dtype of PyTorch"),
        ("inputs", "stored inputs are a str, but must be arguments and named arguments"),
        (print, "cannot be read"),
    ],
)
def test_a_file_of_something_else_is_left_out_and_replaced(
    run: Callable[..., str], searches: Searches, content: Any, message: str
) -> None:
    run("--tune", "3")
    run("--apply", "7")
    file = path_of("net.py", "s.db")
    whole = torch.load(file, weights_only=True)
    if content == "kinds":
        content = {**whole, "inputs": []}
    elif content == "autocast":
        content = {**whole, "record": whole["record"].replace('"autocast":""', '"autocast":"load"')}
    elif content == "inputs":
        content = {**whole, "inputs": ["text"]}
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(InputError, match=message.replace("[", "\\[")):
        read_missed("net.py", "s.db")
    assert "calls of earlier runs are left out" in run("--tune", "3")
    assert weights_of(searches) == {3: 5}
    run("--apply", "8")
    assert [kind.inputs for kind in only_kinds()] == ["float32[8, 4]"]


def test_a_file_is_for_its_owner_alone(run: Callable[..., str], searches: Searches) -> None:
    run("--tune", "3")
    run("--apply", "7")
    assert stat.S_IMODE(path_of("net.py", "s.db").stat().st_mode) == 0o600


def test_a_folder_that_takes_no_file_is_told(run: Callable[..., str], searches: Searches) -> None:
    run("--tune", "3")
    path_of("net.py", "s.db").parent.write_text("a file in its place")
    report = " ".join(run("--apply", "7").split())
    assert "the calls on other inputs are not kept for a search" in report
    assert "these inputs are not kept, so the next --tune tunes for them only if it sees them" in report
    with pytest.raises(StorageError, match="cannot be written"):
        write_missed("net.py", "s.db", {})


def test_each_store_and_program_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    store = str(tmp_path / "s.db")
    urls = ["postgresql://user:one@host/a", "postgresql://user:two@host/a", "postgresql://user:one@host/b"]
    files = [path_of("a.py", store), path_of("b.py", store), *(path_of("a.py", url) for url in urls)]
    assert len({*files}) == len(files) - 1, "a password is no part of it"
    assert {file.parent for file in files[:2]} == {tmp_path / "s.db.missed-calls"}
    assert {file.parent for file in files[2:]} == {tmp_path / "data" / "torchwise" / "missed-calls"}


def make_missed(rows: int, calls: float = 4.0, **options: Any) -> Missed:
    example = Example((torch.ones(rows, 4),))
    kind = MissedKind(f"float32[{rows}, 4]", describe_example(example), calls, calls * 0.5, **options)
    return Missed(kind, example)


def test_kinds_beyond_the_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_calls, "MAX_KINDS", 2)
    stored: Stored = {}
    run = {("Net", "s"): StoredCalls(1, [make_missed(rows, rows) for rows in (2, 3, 4)], others=6)}
    merge_run(stored, run, [])
    (calls,) = stored.values()
    assert [missed.kind.inputs for missed in calls.kinds] == ["float32[4, 4]", "float32[3, 4]"]
    assert calls.others == 8


def test_only_the_plans_in_place_say_which_calls_they_answer() -> None:
    decision = make_decision(torch.sin, Plan(threads=1), torch.ones(3, 4))
    dynamic = make_decision(torch.sin, DYNAMIC[0], torch.ones(3, 4))
    form = describe_example(Example((torch.ones(7, 4),)))
    assert not PlacedPlans("sin", decision, None).cover(form)
    assert PlacedPlans("sin", decision, dynamic).cover(form)
    assert PlacedPlans("sin", decision, None).cover(describe_example(Example((torch.ones(3, 4),))))


def test_calls_weigh_as_much_as_all_recorded_ones_where_few_were_looked_at() -> None:
    example = Example((torch.ones(3, 4),))
    key = ("a signature", "inference", False, None)
    kind = Kind(key, "float32[3, 4]", "inference", None, example, "real", calls=10, seconds=5.0, first_s=0.5)
    net = torch.nn.ReLU()
    calls = Calls("Net", "Net", lambda: net, kinds={key: kind}, others=90, others_s=45.0)
    merged, _ = add_missed(calls, StoredCalls(2, [make_missed(7, calls=80.0, runs=2)]))
    told = {kind.text: (round(merged.count_of(kind)), merged.seconds_of(kind)) for kind in merged.kinds.values()}
    assert told == {"float32[3, 4]": (100, 50.0), "float32[7, 4]": (40, 20.0)}
    assert add_missed(calls, None) == (calls, "")
    assert add_missed(calls, StoredCalls(1, [make_missed(3)])) == (calls, ""), "the recording has it"


def test_an_autocast_is_that_around_the_programs_call() -> None:
    net, missed = torch.nn.Linear(4, 4), MissedCallRecorder()
    record = missed.watch(net, "Linear", "s", torch.bfloat16)
    record(net, (torch.ones(2, 4),), {})
    ((kind,),) = [calls.kinds for calls in list_missed(missed).values()]
    assert (kind.kind.autocast, kind.kind.calls) == ("bfloat16", 1)


def test_calls_under_an_autocast_are_tuned_for_under_it(run: Callable[..., str], searches: Searches) -> None:
    run("--tune", "3a")
    assert "float32[7, 4] (autocast bfloat16)" in " ".join(run("--apply", "7a").split())
    run("--tune", "3a")
    assert weights_of(searches) == {3: 5, 7: 5}


def test_inputs_that_cannot_be_copied_are_counted_as_those_of_the_module_itself() -> None:
    net, missed = torch.nn.Sequential(torch.nn.Linear(4, 4)), MissedCallRecorder()
    record = missed.watch(net, "Sequential", "s", None)
    record(lambda x, items: net(x), (torch.ones(2, 4), (n for n in range(3))), {})
    ((kind,),) = [calls.kinds for calls in list_missed(missed).values()]
    assert (kind.kind.inputs, kind.kind.kept) == ("float32[2, 4], generator", "none")


def test_a_module_that_is_gone_or_a_forked_process_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, missed = torch.nn.Linear(4, 4), MissedCallRecorder()
    record = missed.watch(net, "Linear", "s", None)
    monkeypatch.setattr(missed, "_process", -1)
    assert record(lambda x: x + 1, (1,), {}) == 2
    monkeypatch.undo()
    del net
    assert record(lambda x: x + 1, (1,), {}) == 2
    assert list_missed(missed) == {}


def test_an_error_of_the_model_is_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    net, missed = torch.nn.Linear(4, 4), MissedCallRecorder()
    record = missed.watch(net, "Linear", "s", None)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        record(net, (torch.ones(2, 3),), {})
    monkeypatch.setattr(recorder, "signature_of", lambda *_: 1 / 0)
    assert record(net, (torch.ones(2, 4),), {}).shape == (2, 4)


def test_inputs_are_written_as_plain_values_and_read_again() -> None:
    shared = torch.arange(6.0).view(2, 3)
    whole = Example((shared, [shared, None, 3, 2.5, "text", torch.float16]), {"flags": {"deep": (True, 1j)}})
    read = from_plain(to_plain(whole))
    assert read.args[0] is read.args[1][0]
    assert (read.args[1][1:], read.kwargs) == ([None, 3, 2.5, "text", torch.float16], {"flags": {"deep": (True, 1j)}})
    stand_ins = without_values(Example((torch.arange(6), torch.randn(3).requires_grad_())))
    again = from_plain(to_plain(stand_ins))
    for before, after in zip(stand_ins.tensors(), again.tensors(), strict=True):
        assert (before.shape, before.dtype, before.stride()) == (after.shape, after.dtype, after.stride())
        assert read_statistics(before) == read_statistics(after)
    with pytest.raises(InputError, match="an input is a Example, but only tensors and plain values are stored"):
        to_plain(Example((whole,)))


@pytest.mark.parametrize(
    "data",
    [
        3,
        {"kind": "set", "items": []},
        {"kind": "tuple", "items": 3},
        {"kind": "dict", "items": [[1]]},
        {"kind": "tuple", "items": [{"kind": "tuple", "items": []}, {"kind": "dict", "items": [[1, 2]]}]},
        {"kind": "stand-in", "shape": [-1], "strides": [1], "dtype": torch.float32, "statistics": []},
        {"kind": "stand-in", "shape": [1], "strides": [1], "dtype": torch.float32, "statistics": ["cpu", 1]},
        {"kind": "stand-in", "shape": None, "strides": [1], "dtype": "float32", "statistics": []},
    ],
)
def test_other_data_are_no_inputs(data: Any) -> None:
    with pytest.raises(InputError, match="stored inputs"):
        from_plain(data)


def record_calls(*inputs: tuple[Any, ...]) -> Stored:
    net, missed = torch.nn.ReLU(), MissedCallRecorder()
    record = missed.watch(net, "ReLU", "s", None)
    for args in inputs:
        record(lambda *args: None, args, {})
    return list_missed(missed)


def kept_in(store: str) -> list[str]:
    return [missed.kind.kept for calls in read_missed("p", store).values() for missed in calls.kinds]


def test_inputs_that_no_file_holds_do_not_cost_those_of_others(tmp_path: Path) -> None:
    store, owned, marked = str(tmp_path / "s.db"), torch.ones(2, 4), torch.ones(3, 4)
    owned.owner = object()  # type: ignore[attr-defined]
    torch._dynamo.mark_dynamic(marked, 0)
    dense = torch.ones(4, 4)
    add_run("p", store, record_calls((owned,), (marked,), (dense.to_mkldnn(),), (dense.to_sparse(),)), [])
    assert sorted(kept_in(store)) == ["none", "none", "real", "real"]


def test_inputs_without_statistics_are_counted_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "s.db")
    run = record_calls((torch.ones(20), torch.ones(0, 4)), (torch.eye(5).to_sparse(),))
    monkeypatch.setattr(missed_files, "KEPT_BYTES", 0)
    add_run("p", store, run, [])
    assert kept_in(store) == ["none", "none"]


def test_the_memory_between_the_values_of_an_input_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy has it, too, and so has the file."""
    monkeypatch.setattr(missed_recorder, "KEPT_BYTES", 4000)
    (calls,) = record_calls((torch.ones(100, 100)[:, 0],), (torch.ones(1, 10).expand(500, 10),)).values()
    assert sorted(missed.kind.kept for missed in calls.kinds) == ["real", "stand-in"]


def test_inputs_of_a_gpu_that_is_gone_are_left_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, load = str(tmp_path / "s.db"), torch.load
    add_run("p", store, record_calls((torch.ones(2, 4),)), [])

    def load_without_gpu(file: Any, map_location: Any = None, **options: Any) -> Any:
        if map_location != "cpu":
            raise RuntimeError("no GPU")
        return load(file, **options)

    monkeypatch.setattr(torch, "load", load_without_gpu)
    add_run("p", store, {}, [])
    with pytest.raises(StorageError, match="has inputs on a GPU that this process has not: no GPU"):
        add_run("p", store, record_calls((torch.ones(3, 4),)), [])
    monkeypatch.undo()
    assert kept_in(store) == ["real"]


def test_inputs_on_another_device_than_all_recorded_ones_are_left_out() -> None:
    example = Example((torch.ones(3, 4),))
    kind = Kind(("a signature", "inference", False, None), "float32[3, 4]", "inference", None, example, "real", calls=1)
    calls = Calls("ReLU", "ReLU", torch.nn.ReLU, kinds={kind.key: kind})
    elsewhere = make_missed(7)
    elsewhere.example = without_values(Example((torch.ones(7, 4),)))
    (stand_in,), statistics = elsewhere.example.tensors(), read_statistics(elsewhere.example.tensors()[0])
    assert statistics is not None
    write_statistics(stand_in, replace(statistics, device=torch.device("cuda")))
    assert add_missed(calls, StoredCalls(1, [elsewhere])) == (calls, "")


def test_an_error_of_any_class_leaves_the_report_and_the_exit_code(
    run: Callable[..., str], searches: Searches, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("--tune", "3")
    monkeypatch.setattr(missed_calls, "merge_run", lambda *_: 1 / 0)
    assert "not kept for a search: division by zero" in " ".join(run("--apply", "7").split())


def test_modules_of_one_structure_count_as_one(tmp_path: Path) -> None:
    """So do the blocks of a model, of which some may be gone."""
    missed = MissedCallRecorder()
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    records = [missed.watch(net, "Linear", "s", None) for net in (first, second)]
    for net, record in zip((first, second), records, strict=True):
        record(net, (torch.ones(2, 4),), {})
    ((kind,),) = [calls.kinds for calls in list_missed(missed).values()]
    assert kind.kind.calls == 2


def test_where_eager_was_decided_nothing_is_kept(run: Callable[..., str], searches: Searches) -> None:
    searches.plan = EAGER
    run("--tune", "3")
    plans = StoredPlans("net.py", "s.db")
    assert (plans.list_placed(), list_missed(plans.missed)) == ([], {})
