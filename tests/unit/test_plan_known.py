"""Names in plans that are read: a misspelt one is refused at once, and those of plug-ins are known."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from store_samples import a_decision, a_study
from torchwise.errors import InputError, PlanError, StorageError
from torchwise.plan import CHOICES, Choice, Numerics, Plan, known_names, plug_ins, register
from torchwise.plan.choice import list_values
from torchwise.plan.known_names import check_known
from torchwise.records import Decision, Study, Trial, codec
from torchwise.store.schema import dump, load


def text(**fields: Any) -> str:
    """Return a plan as somebody would write it."""
    return json.dumps({"schema": "torchwise.plan/1", **fields})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"backend": "inducter"}, "backend has 'inducter', but there are eager, .*inductor.*; did you mean inductor?"),
        ({"backend": "tensorrt"}, "backend has 'tensorrt', but .*; did you mean torch-tensorrt?"),
        ({"backend": "ours"}, "backend has 'ours', but .* or register it in a package with an entry"),
        ({"transforms": ["complex_to_reel"]}, "transforms has 'complex_to_reel', .*did you mean complex_to_real?"),
        (
            {"backend": "inductor", "transforms": ["isolate_rnn", "isolate_rnn"]},
            "transforms has 'isolate_rnn' twice, but a rewrite is made once",
        ),
        ({"backend": "inductor", "options": {"freezign": True}}, "no such option; did you mean freezing"),
        ({"backend": "inductor", "options": {"triton.cudagraph": True}}, "did you mean triton.cudagraphs"),
        (
            {"backend": "inductor", "options": {"wings": 2}},
            "'wings', but Inductor has no such option: leave it out, or",
        ),
        ({"backend": "inductor", "options": {"freezing": 1}}, "option freezing is 1, but must be true or false"),
        ({"backend": "inductor", "options": {"max_autotune_gemm_backends": True}}, "is True, but must be text"),
        ({"backned": "inductor"}, "unknown plan field 'backned'; .*did you mean backend?"),
        ({"mode": "reduce-overheads", "backend": "inductor"}, "mode is 'reduce-overheads', but must be one of"),
        ({"threads": 2**70}, "threads is 1180591620717411303424, but must be a whole number from 1 to 65536"),
        ({"microbatches": 2**70}, "microbatches is 1180591620717411303424, but must be a whole number from 1 to 65536"),
        ({"backend": "inductor", "options": {"max_fusion_size": 2**70}}, "option max_fusion_size is 118.*of 64 bits"),
    ],
)
def test_what_is_misspelt_or_out_of_range_is_refused_where_it_is_read(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Plan.from_json(text(**fields))


def test_a_plan_within_a_record_is_held_to_the_same_rules_and_the_place_is_named() -> None:
    good = json.loads(a_decision().to_json())
    for name, value, said in (
        ("backend", "inducter", "did you mean inductor"),
        ("transforms", ["complex_to_reel"], "did you mean complex_to_real"),
        ("options", [["freezign", True]], "did you mean freezing"),
    ):
        wrong = {**good, "plan": {**good["plan"], name: value}}
        with pytest.raises(InputError, match=rf"this is no Decision: .*{said}.* \(in \$\.plan\)"):
            Decision.from_json(json.dumps(wrong))
    study = a_study(trials=(Trial(0, Plan(threads=2)),)).to_dict()
    study["trials"][0]["plan"]["bakend"] = "inductor"
    with pytest.raises(InputError, match=r"\$\.trials\[0\]\.plan has an unknown field 'bakend'; did you mean backend"):
        Study.from_json(json.dumps(study))


def test_every_name_that_there_is_can_be_read() -> None:
    for name in list_values("transforms"):
        check_known(Plan(backend="inductor", transforms=(name,)) if name != "numbers_on_gpu" else
                    Plan(transforms=(name,), capture="call"))  # fmt: skip
    for backend in ("eager", *list_values("backend")):
        check_known(Plan(backend=backend))
    for name in torch._inductor.list_options():
        if name != "TYPE_CHECKING":
            assert known_names.is_option(name), name


def test_the_options_of_a_newer_torch_are_read_from_its_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "torch/_inductor"
    folder.mkdir(parents=True)
    (tmp_path / "torch/__init__.py").touch()
    (folder / "config.py").write_text("new_one: bool = True\nother = 3\nclass triton:\n    newer = False\n")
    for place, found in ((tmp_path, True), (tmp_path / "empty", False)):
        spec = importlib.machinery.PathFinder.find_spec("torch", [str(place)])
        monkeypatch.setattr(known_names.importlib.util, "find_spec", lambda _name, spec=spec: spec)
        known_names._read_options.cache_clear()
        names = ("new_one", "other", "triton.newer")
        assert [known_names.is_option(name) for name in names] == [found] * 3
        assert known_names.is_option("freezing")
    known_names._read_options.cache_clear()


def test_a_plan_needs_no_torch_to_be_read() -> None:
    plan = text(backend="inductor", options={"max_fusion_size": 8}, transforms=["complex_to_real"])
    code = f"import sys; from torchwise.plan import Plan; Plan.from_json({plan!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.fixture
def plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that registers a backend, a rewrite and an option by an entry point, beside one that is broken."""

    class Entry:
        def __init__(self, value: str) -> None:
            self.value = value

        def load(self) -> Any:
            if self.value == "broken:choices":
                raise ImportError("it lacks something")
            return lambda: register(
                *(
                    Choice(field, value, Numerics.SUBSTITUTED, complexity=1, summary="of a plug-in")
                    for field, value in (("backend", "theirs"), ("transforms", "fold"), ("options", ("wings", 2)))
                )
            )

    def entry_points(*, group: str) -> list[Entry]:
        return [Entry("broken:choices"), Entry("theirs:choices")] if group == "torchwise.choices" else []

    kept = dict(CHOICES)
    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    plug_ins._list_plug_ins.cache_clear()
    yield
    CHOICES.clear()
    CHOICES.update(kept)


@pytest.mark.usefixtures("plug_in")
def test_what_a_plug_in_registers_can_be_read_in_every_process(caplog: pytest.LogCaptureFixture) -> None:
    for fields in (
        {"backend": "theirs", "options": {"anything": 1}},
        {"backend": "inductor", "transforms": ["fold"], "options": {"wings": 2}},
    ):
        assert Plan.from_json(text(**fields)).backend == fields["backend"]
    with pytest.raises(PlanError, match="option wings is '2', but must be a whole number"):
        Plan.from_json(text(backend="inductor", options={"wings": "2"}))
    assert "the plug-in broken:choices registers no choices (ImportError('it lacks something'))" in caplog.text


def test_a_store_is_read_whatever_plug_ins_wrote_to_it_but_not_where_a_plan_holds_what_is_unknown() -> None:
    trial = Trial(3, Plan(backend="theirs", transforms=("fold",), options=(("wings", 2),)))
    row = {"row": "trial 3", "written": "1", "known": "1"}
    assert load(dump(trial), Trial, **row) == trial
    with pytest.raises(InputError, match="backend has 'theirs'"):
        codec.from_json(codec.to_json(trial), Trial)
    later = json.loads(dump(trial))
    later["energy_j"] = 4.0
    assert load(json.dumps(later), Trial, **row) == trial
    later["plan"]["tiles"] = 4
    with pytest.raises(StorageError, match=r"trial 3 cannot be read: .*\$\.plan has an unknown field 'tiles'"):
        load(json.dumps(later), Trial, **row)


def test_a_plug_in_may_build_plans_of_its_own_values_before_it_registers_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    class Entry:
        value = "theirs:choices"

        def load(self) -> Any:
            calls.append(0)

            def register_choices() -> None:
                with contextlib.suppress(PlanError):
                    Plan(precision="theirs")
                register(Choice("precision", "theirs", Numerics.SUBSTITUTED, complexity=1, summary="of a plug-in"))

            return register_choices

    kept = dict(CHOICES)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [Entry()])
    plug_ins._list_plug_ins.cache_clear()
    try:
        assert Plan(precision="theirs").precision == "theirs"
        assert len(calls) == 1
        assert not caplog.records
    finally:
        CHOICES.clear()
        CHOICES.update(kept)
        plug_ins._list_plug_ins.cache_clear()


def test_the_rules_of_a_plug_in_hold_for_the_first_plan_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_plan: Plan) -> Any:
        yield "theirs is never right"

    class Entry:
        value = "theirs:choices"

        def load(self) -> Any:
            theirs = Choice("backend", "theirs", Numerics.EXACT, complexity=1, summary="", find_problems=refuse)
            return lambda: register(theirs)

    kept = dict(CHOICES)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: [Entry()])
    plug_ins._list_plug_ins.cache_clear()
    try:
        with pytest.raises(PlanError, match="theirs is never right"):
            Plan.from_json(text(backend="theirs"))
    finally:
        CHOICES.clear()
        CHOICES.update(kept)
        plug_ins._list_plug_ins.cache_clear()
