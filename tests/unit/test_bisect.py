"""The search by itself: the answers of workers are made up here, so that nothing is compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from torchwise.cli.bisect import exit_code
from torchwise.diagnose.bisect import BisectRequest, run_bisection
from torchwise.diagnose.bisect.isolate import OPTIONS, first, is_plain, minimal
from torchwise.diagnose.bisect.probe_runner import Graphs, Probe, ProbeResult, Written
from torchwise.errors import BaselineError, InputError, PlanError
from torchwise.plan import Plan
from torchwise.plan.rules import iter_changes, merge_changes
from torchwise.plan.workload_spec import WorkloadSpec
from torchwise.records import Failure, FailureKind, codec
from torchwise.records.bisection import Bisection, Observation, Operation, Step, Symptom
from torchwise.records.listener import Listener
from torchwise.report.bisection import render_bisection, verdict
from torchwise.trial import Assignment, Limits
from torchwise.trial.launcher import OnStage

RIGHT, WRONG = Observation(Symptom.NONE), Observation(Symptom.WRONG, "values: off by 1")
SEGFAULT = Failure(FailureKind.DIED, "inductor", "SIGSEGV")
TIMEOUT = Failure(FailureKind.TIMED_OUT, "inductor", "passed its limit of 300 s")
NAMES = ("mul", "cos", "add", "sin", "sum")
PASSES = tuple(f"pass_{number}" for number in range(9))

Rule = Callable[[Probe], Observation | Failure]


class Rehearsed:
    """A launcher whose workers answer by a rule."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.orders: list[Probe] = []
        self.limits: list[float] = []

    def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
        assert isinstance(job, Probe)
        on_stage(job.stage)
        if job.to == "probe:list_graphs":
            quiet = tuple(Operation(name, f"torch.{name}", name) for name in ("exp", "log"))
            return codec.to_json(Graphs((quiet, tuple(Operation(n, f"torch.{n}", n, "m.py:7") for n in NAMES))))
        self.orders.append(job)
        self.limits.append(limits.time_s)
        answer = RIGHT if job.stage == "eager" else self._rule(job)
        if isinstance(answer, Failure):
            return answer
        # Excluded names are listed as well: PyTorch asks about them all the same.
        return codec.to_json(
            ProbeResult(answer, {"post_grad_passes": PASSES, "lowerings": NAMES, "decomposition": NAMES})
        )


class Heard(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[Step] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish_probe(self, step: Step) -> None:
        self.steps.append(step)


def bisect_rule(rule: Rule, **request: object) -> tuple[Bisection, Rehearsed]:
    launcher = Rehearsed(rule)
    found = run_bisection(BisectRequest(WorkloadSpec("made:up"), **request), launcher, Heard())  # type: ignore[arg-type]
    return found, launcher


def has_operations(order: Probe, *names: str) -> bool:
    """Whether an order runs the whole model, or a part of the second graph with these operations."""
    return order.part is None or (order.part.graph == 1 and set(names) <= set(order.part.operations))


@pytest.mark.parametrize("wanted", [{3}, {0}, {9}, {2, 7}, {0, 1, 9}, set(range(10))])
def test_the_smallest_part_is_what_is_needed_and_no_more(wanted: set[int]) -> None:
    assert set(minimal(range(10), lambda part: wanted <= set(part))) == wanted


def test_no_part_is_asked_about_twice_and_one_in_a_thousand_takes_few_questions() -> None:
    asked: list[tuple[int, ...]] = []

    def holds(part: tuple[int, ...]) -> bool:
        asked.append(part)
        return 700 in part

    assert minimal(range(1000), holds) == (700,)
    assert len(asked) == len(set(asked)) < 25


@pytest.mark.parametrize("place", [1, 2, 5, 8])
def test_halving_finds_the_first_that_shows(place: int) -> None:
    assert first(8, lambda n: n >= place) == place


def test_a_right_answer_ends_after_two_looks() -> None:
    found, launcher = bisect_rule(lambda _: RIGHT)
    assert not found.found
    assert found.stage is None
    assert [order.stage for order in launcher.orders] == ["eager", "inductor"]
    assert "No fault found" in verdict(found)[0]


@pytest.mark.parametrize("stage", ["dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor"])
def test_the_first_stage_that_shows_the_fault_is_named(stage: str) -> None:
    order = ("dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor")
    found, _ = bisect_rule(lambda o: WRONG if order.index(o.stage) >= order.index(stage) else RIGHT)
    assert found.stage == stage


def test_an_option_is_found_with_its_workaround() -> None:
    found, launcher = bisect_rule(lambda o: RIGHT if "cpp.simdlen" in o.options or o.stage != "inductor" else WRONG)
    assert found.cause is not None
    assert found.cause.kind == "option"
    assert found.cause.workaround == {"cpp.simdlen": 1}
    assert len(launcher.orders) < 25


def test_two_options_that_mend_only_together_are_both_named() -> None:
    needed = {"epilogue_fusion", "inplace_buffers"}
    found, _ = bisect_rule(lambda o: RIGHT if needed <= set(o.options) or o.stage != "inductor" else WRONG)
    assert found.cause is not None
    assert set(found.cause.workaround) == needed


def test_the_single_application_of_a_pass_is_found_and_left_out_by_name() -> None:
    def rule(order: Probe) -> Observation:
        mended = order.most.get("post_grad_passes", 99) < 7 or order.options.get("disabled_passes") == "pass_6"
        return RIGHT if mended or order.stage != "inductor" else WRONG

    found, _ = bisect_rule(rule)
    assert found.cause is not None
    assert (found.cause.kind, found.cause.name, found.cause.place, found.cause.of) == ("pass", "pass_6", 7, 9)
    assert found.cause.workaround == {"disabled_passes": "pass_6"}


def test_a_lowering_is_asked_for_last_and_named() -> None:
    found, _ = bisect_rule(lambda o: WRONG if o.stage == "inductor" and o.most.get("lowerings", 9) >= 4 else RIGHT)
    assert found.cause is not None
    assert (found.cause.kind, found.cause.name, found.cause.place) == ("lowering", "sin", 4)


def test_a_decomposition_is_named_as_users_write_it() -> None:
    launcher = Rehearsed(lambda o: WRONG if "decomp" in o.stage and o.most.get("decomposition", 9) >= 1 else RIGHT)
    rule, launcher._rule = launcher._rule, lambda o: WRONG if o.stage == "inductor" else rule(o)
    found = run_bisection(BisectRequest(WorkloadSpec("made:up")), launcher, Heard())
    assert found.cause is not None
    assert (found.cause.kind, found.cause.name) == ("decomposition", "mul")


def test_what_cannot_be_turned_off_is_said() -> None:
    found, _ = bisect_rule(lambda o: WRONG if o.stage == "inductor" else RIGHT)
    assert found.cause is None
    assert any("never removes the fault" in note for note in found.notes)


def test_the_smallest_part_is_of_the_graph_that_shows_the_fault() -> None:
    found, _ = bisect_rule(lambda o: WRONG if o.stage == "inductor" and has_operations(o, "cos", "sum") else RIGHT)
    assert found.subgraph is not None
    assert found.subgraph.complete
    assert (found.subgraph.graph, found.subgraph.of) == (1, 5)
    assert [operation.name for operation in found.subgraph.operations] == ["cos", "sum"]
    assert "2 operations of 5" in " ".join(verdict(found))


def test_a_part_that_fails_in_eager_shows_nothing() -> None:
    def rule(order: Probe) -> Observation | Failure:
        if order.part and "add" not in order.part.operations:
            return Failure(FailureKind.DIED, "eager", "SIGSEGV")
        return WRONG if order.stage == "inductor" and has_operations(order, "cos") else RIGHT

    found, _ = bisect_rule(rule)
    assert found.subgraph is not None
    assert {o.name for o in found.subgraph.operations} == {"cos", "add"}


def test_a_crash_costs_one_look_and_another_crash_is_another_fault() -> None:
    other = Failure(FailureKind.RAISED, "inductor", "LoweringException: no such thing")

    def rule(order: Probe) -> Observation | Failure:
        if order.stage != "inductor":
            return RIGHT
        if has_operations(order, "sin"):
            return SEGFAULT
        return other

    found, _ = bisect_rule(rule)
    assert (found.observation.symptom, found.observation.kind) == (Symptom.CRASH, "SIGSEGV")
    assert found.subgraph is not None
    assert [o.name for o in found.subgraph.operations] == ["sin"]


def test_once_a_hang_is_known_it_is_not_waited_for_as_long() -> None:
    found, launcher = bisect_rule(lambda o: TIMEOUT if o.stage == "inductor" else RIGHT, limit_s=300.0)
    assert found.observation.symptom is Symptom.HANG
    assert launcher.limits[1] == 300.0
    assert launcher.limits[-1] == 20.0


@pytest.mark.parametrize(("what", "seen"), [("nan", WRONG), ("crash", WRONG), ("auto", Observation(Symptom.SLOW))])
def test_another_symptom_than_the_one_asked_for_is_not_followed(what: str, seen: Observation) -> None:
    found, launcher = bisect_rule(lambda _: seen, what=what)
    assert not found.found
    assert len(launcher.orders) == 2


def test_time_is_taken_only_where_a_slow_down_is_looked_for() -> None:
    assert not any(order.timed for order in bisect_rule(lambda _: RIGHT)[1].orders)
    found, launcher = bisect_rule(lambda _: Observation(Symptom.SLOW, "2 times"), what="slow")
    assert all(order.timed for order in launcher.orders)
    assert found.stage == "dynamo"


def test_a_model_that_fails_by_itself_is_refused_with_exit_code_3() -> None:
    class Dying(Rehearsed):
        def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
            return Failure(FailureKind.DIED, "eager", "SIGSEGV")

    with pytest.raises(BaselineError, match="SIGSEGV") as caught:
        run_bisection(BisectRequest(WorkloadSpec("made:up")), Dying(lambda _: RIGHT), Heard())
    assert caught.value.exit_code == 3


def test_a_spent_budget_ends_the_search_and_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def rule(order: Probe) -> Observation:
        now[0] += 1.0
        return WRONG if order.stage == "inductor" else RIGHT

    monkeypatch.setattr("torchwise.diagnose.bisect.probe_runner.time.monotonic", lambda: now[0])
    found, _ = bisect_rule(rule, budget_s=5.0)
    assert found.stage == "inductor"
    assert found.observation == WRONG
    assert any("budget" in note for note in found.notes)


def test_the_choices_of_a_plan_are_taken_away_one_by_one() -> None:
    plan = Plan(
        backend="inductor",
        transforms=("complex_to_real",),
        precision="bf16",
        mode="max-autotune-no-cudagraphs",
        options=(("epilogue_fusion", True), ("shape_padding", True)),
    )

    def rule(order: Probe) -> Observation:
        return WRONG if order.stage == "plan" and "complex_to_real" in order.job.plan.transforms else RIGHT

    found, _ = bisect_rule(rule, plan=plan)
    assert found.stage == "plan"
    assert found.plan == Plan(backend="inductor", transforms=("complex_to_real",))
    assert found.cause is not None
    assert found.cause.name == "complex_to_real"


def test_a_plan_whose_choices_are_all_innocent_is_bisected_as_plain_compilation() -> None:
    plan = Plan(backend="inductor", precision="bf16", options=(("epilogue_fusion", True),))
    found, _ = bisect_rule(lambda o: RIGHT if o.stage in ("dynamo", "aot_eager") else WRONG, plan=plan)
    assert found.stage == "aot_eager_decomp_partition"


def test_a_plan_is_the_sum_of_its_choices() -> None:
    plan = Plan(backend="inductor", transforms=("complex_to_real",), threads=2, options=(("max_autotune", True),))
    assert Plan(**merge_changes(iter_changes(plan))) == plan
    assert is_plain(Plan(backend="inductor", mode="max-autotune"))
    assert not is_plain(plan)
    unfit = (("backend", "inductor"), ("shapes", "dynamic"), ("capture", "step"))
    with pytest.raises(PlanError, match="shapes must be static"):
        Plan(**merge_changes(unfit))


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"what": "odd"}, "what is 'odd', but must be one of auto, wrong, nan, crash, hang, slow"),
        ({"limit_s": 0}, "limit is 0 s, but must be above 0"),
        ({"budget_s": -1.0}, "budget is -1.0 s"),
        ({"budget_s": "60"}, "budget is '60' s, but must be above 0"),
        ({"limit_s": float("nan")}, "limit is nan s"),
        ({"repro": "r.txt"}, "must be a .py file"),
    ],
)
def test_bad_requests_are_refused(request_: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        BisectRequest(WorkloadSpec("made:up"), **request_)  # type: ignore[arg-type]


def test_a_bisection_goes_to_json_and_back() -> None:
    found, _ = bisect_rule(lambda o: RIGHT if "cpp.simdlen" in o.options or not has_operations(o, "cos") else WRONG)
    assert Bisection.from_json(found.to_json()) == found
    assert json.loads(found.to_json())["schema"] == "torchwise.bisection/1"
    with pytest.raises(InputError, match="schema"):
        Bisection.from_json(found.to_json().replace("bisection/1", "bisection/9"))


def test_what_is_shown_holds_the_verdict_the_lines_and_every_look(tmp_path: Path) -> None:
    from rich.console import Console

    found, _ = bisect_rule(lambda o: WRONG if o.stage == "inductor" and has_operations(o, "cos") else RIGHT)
    console = Console(record=True, width=100, file=(tmp_path / "out").open("w"))
    console.print(render_bisection(found))
    text = console.export_text()
    assert "a wrong answer" in text
    assert "m.py:7" in text
    assert "Inductor" in text
    assert all(step.what[:20] in text for step in found.steps)


UNKNOWN = Observation(Symptom.NOT_COMPARABLE, "values: output is a generator, which cannot be looked into")


@pytest.mark.parametrize("what", ["auto", "wrong", "nan"])
def test_an_answer_that_cannot_be_compared_is_no_all_clear(what: str) -> None:
    found, launcher = bisect_rule(lambda _: UNKNOWN, what=what)
    assert len(launcher.orders) == 2
    assert (found.found, found.is_comparable) == (False, False)
    assert exit_code(found) == 5
    assert "output is a generator" in verdict(found)[0]
    assert "It is unknown" in " ".join(verdict(found))
    assert "No fault found" not in " ".join(verdict(found))
    assert json.loads(found.to_json())["observation"]["symptom"] == "not comparable"
    assert Bisection.from_json(found.to_json()) == found


@pytest.mark.parametrize("what", ["crash", "hang", "slow"])
def test_what_shows_without_comparing_can_be_all_clear(what: str) -> None:
    found, _ = bisect_rule(lambda _: UNKNOWN, what=what)
    assert exit_code(found) == 0
    assert "did not occur" in verdict(found)[0]
    assert "as it should" not in verdict(found)[0]


def test_a_crash_is_followed_where_answers_cannot_be_compared() -> None:
    def rule(order: Probe) -> Observation | Failure:
        return SEGFAULT if order.stage == "inductor" and "cpp.simdlen" not in order.options else UNKNOWN

    found, _ = bisect_rule(rule)
    assert (found.observation.kind, found.stage) == ("SIGSEGV", "inductor")
    assert found.cause is not None
    assert found.cause.workaround == {"cpp.simdlen": 1}
    assert exit_code(found) == 1


def test_a_wrong_answer_is_not_gone_where_nobody_can_compare() -> None:
    def rule(order: Probe) -> Observation:
        if order.stage != "inductor":
            return RIGHT
        return UNKNOWN if order.options or order.most else WRONG

    found, _ = bisect_rule(rule)
    assert found.cause is None


def test_a_wrong_answer_is_not_all_clear_for_who_looks_for_a_crash() -> None:
    found, _ = bisect_rule(lambda _: WRONG, what="crash")
    said = "No fault found: a crash did not occur (another symptom appeared: wrong: values: off by 1)."
    assert verdict(found) == [said]


@pytest.mark.parametrize(("graphs", "said"), [(1, "the only graph is right by itself"), (2, "code between them")])
def test_the_fault_lies_between_graphs_only_where_there_are_several(graphs: int, said: str) -> None:
    class OfGraphs(Rehearsed):
        def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
            if isinstance(job, Probe) and job.to == "probe:list_graphs":
                return codec.to_json(Graphs(((Operation("cos", "torch.cos", "cos"),),) * graphs + ((),)))
            return super().run(job, limits, on_stage)

    launcher = OfGraphs(lambda o: WRONG if o.stage == "inductor" and o.part is None else RIGHT)
    found = run_bisection(BisectRequest(WorkloadSpec("made:up")), launcher, Heard())
    assert found.subgraph is None
    assert said in found.notes[-1]


@pytest.mark.parametrize(
    ("program", "confirmed"),
    [
        ("print('FAULT: value 0 of example 0 is off by 1'); raise SystemExit(1)", True),
        ("import no_such_module_anywhere", False),
        ("print('FAULT: the compiled call raises'); raise SystemExit(1)", False),
        ("print('right')", False),
    ],
    ids=["shown", "cannot be imported", "another fault", "right"],
)
def test_a_repro_is_confirmed_by_the_fault_that_it_shows(program: str, confirmed: bool, tmp_path: Path) -> None:
    class Writing(Rehearsed):
        def run(self, job: Assignment, limits: Limits, on_stage: OnStage) -> str | Failure:
            if isinstance(job, Probe) and job.to == "repro:write":
                Path(job.file).write_text(program)
                return codec.to_json(Written(standalone=True))
            return super().run(job, limits, on_stage)

    request = BisectRequest(WorkloadSpec("made:up"), repro=str(tmp_path / "repro.py"))
    found = run_bisection(request, Writing(lambda _: WRONG), Heard())
    assert found.repro is not None
    assert found.repro.confirmed is confirmed


def test_no_option_is_listed_twice() -> None:
    assert len({suspect.name for suspect in OPTIONS}) == len(OPTIONS)
