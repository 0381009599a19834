"""A plan: its canonical form, its stable id, its words, and every combination that it refuses to be."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchwise.errors import PlanError
from torchwise.plan import EAGER, Numerics, Plan
from torchwise.plan import plan as the_module
from torchwise.plan.plan import SCHEMA
from torchwise.plan.rules import CUDA_GRAPH_MODES, list_allowed

FULL = Plan(
    precision="bf16",
    memory_format="channels_last",
    transforms=("b", "a"),
    backend="inductor",
    mode="max-autotune-no-cudagraphs",
    options=(("freezing", True), ("epilogue", 2), ("cpp", "x")),
    scope="regional",
    capture="call",
    shapes="static",
)

STEP = Plan(
    precision="autocast_fp16",
    backend="inductor",
    scope="loss",
    capture="step",
    optimizer="fused",
    activation_checkpointing="blocks",
    microbatches=4,
)

# Written down: stores, decisions and plan files are keyed by these, on every machine and in every later version.
IDS = [
    (EAGER, '{"schema":"torchwise.plan/1"}', "7f44b62e2f96"),
    (Plan(backend="inductor"), '{"backend":"inductor","schema":"torchwise.plan/1"}', "0e55e6265b86"),
    (
        Plan(precision="tf32", backend="inductor", mode="reduce-overhead"),
        '{"backend":"inductor","mode":"reduce-overhead","precision":"tf32","schema":"torchwise.plan/1"}',
        "8a7f51b51b3b",
    ),
    (Plan(threads=4), '{"schema":"torchwise.plan/1","threads":4}', "cc58570919be"),
    (
        FULL,
        '{"backend":"inductor","capture":"call","memory_format":"channels_last","mode":"max-autotune-no-cudagraphs",'
        '"options":{"cpp":"x","epilogue":2,"freezing":true},"precision":"bf16","schema":"torchwise.plan/1",'
        '"scope":"regional","transforms":["b","a"]}',
        "eac18f120e40",
    ),
    (
        STEP,
        '{"activation_checkpointing":"blocks","backend":"inductor","capture":"step","microbatches":4,"optimizer":"fused",'
        '"precision":"autocast_fp16","schema":"torchwise.plan/1","scope":"loss"}',
        "729c73fa54c7",
    ),
]


def every_name_known() -> Any:
    """Read plans that name unregistered things, as the plans here do."""
    return patch.object(the_module, "check_known")


option_values = st.one_of(st.booleans(), st.integers(), st.text(max_size=8))
patient = settings(deadline=None)  # the machine may be busy with something else


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Draw a legal plan."""
    of_step, compiled = draw(st.booleans()), draw(st.booleans())
    fields: dict[str, Any] = {
        "precision": draw(st.sampled_from([p for p in list_allowed("precision") if p != "bf16" or not of_step])),
        "memory_format": draw(st.sampled_from(list_allowed("memory_format"))),
        "transforms": tuple(draw(st.lists(st.text(min_size=1, max_size=8), max_size=3))),
        "capture": draw(st.sampled_from(["none", "step"] if of_step else ["none", "call"])),
    }
    if of_step:
        forms = [form for form in list_allowed("optimizer") if compiled or form != "compiled"]
        fields["optimizer"] = draw(st.sampled_from(forms))
        saved = [name for name in list_allowed("activation_checkpointing") if compiled or name != "graph"]
        fields["activation_checkpointing"] = draw(st.sampled_from(saved))
        fields["microbatches"] = draw(st.integers(1, 64))
    if compiled:
        fields |= {
            "backend": draw(st.sampled_from(["inductor", "tensorrt"])),
            "options": tuple(draw(st.dictionaries(st.text(max_size=8), option_values, max_size=4)).items()),
            "scope": draw(st.sampled_from([s for s in list_allowed("scope") if of_step or s != "loss"])),
        }
        modes = set(list_allowed("mode")) - set(CUDA_GRAPH_MODES if fields["capture"] != "none" else ())
        rolled = fields["scope"] == "rolled"
        fields["mode"] = draw(st.sampled_from(sorted(modes - set(CUDA_GRAPH_MODES if rolled else ()))))
        if fields["capture"] == "none" and not rolled:
            fields["shapes"] = draw(st.sampled_from(list_allowed("shapes")))
    if fields["capture"] == "none":
        fields["threads"] = draw(st.none() | st.integers(1, 512))
    return Plan(**fields)


# ---- canonical form and id


@pytest.mark.parametrize(("plan", "text", "id_"), IDS, ids=[str(plan) for plan, _, _ in IDS])
def test_canonical_json_and_id_never_change(plan: Plan, text: str, id_: str) -> None:
    assert plan.to_json() == text
    assert plan.id == id_
    with every_name_known():
        assert Plan.from_json(text) == plan
        assert Plan.from_json(text).id == id_


@patient
@given(plans())
def test_every_plan_comes_back(plan: Plan) -> None:
    with every_name_known():
        again = Plan.from_json(plan.to_json())
        assert again == plan
        assert (again.id, hash(again), str(again)) == (plan.id, hash(plan), str(plan))
        assert Plan.from_dict(plan.to_dict()) == plan
        assert Plan.from_json(plan.to_json().encode()).to_json() == plan.to_json()


@patient
@given(plans(), plans())
def test_ids_are_equal_where_plans_are(one: Plan, other: Plan) -> None:
    assert (one.id == other.id) is (one == other)


@patient
@given(plans(), st.randoms(use_true_random=False))
def test_the_order_of_keys_and_options_means_nothing(plan: Plan, order: Any) -> None:
    def shuffle_keys(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        items = [(key, shuffle_keys(item)) for key, item in value.items()]
        order.shuffle(items)
        return dict(items)

    with every_name_known():
        assert Plan.from_json(json.dumps(shuffle_keys(plan.to_dict()), indent=2)).id == plan.id


def test_defaults_that_are_written_out_are_the_same_plan() -> None:
    text = json.dumps({"schema": SCHEMA, "backend": "eager", "options": {}, "transforms": [], "threads": None})
    assert Plan.from_json(text) == EAGER


def test_the_order_of_transforms_means_something() -> None:
    assert Plan(transforms=("a", "b")).id != Plan(transforms=("b", "a")).id


def test_a_plan_is_frozen_hashable_and_copies_to_an_equal() -> None:
    with pytest.raises(FrozenInstanceError):
        FULL.backend = "eager"  # type: ignore[misc]
    assert FULL.id  # it is remembered, and must not enter the copies
    assert copy.deepcopy(FULL) == FULL
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    assert len({FULL, copy.copy(FULL), EAGER}) == 2
    assert replace(FULL, capture="none").id != FULL.id


def test_eager_is_the_plan_that_changes_nothing() -> None:
    assert Plan().is_eager
    assert not Plan(threads=1).is_eager
    assert not Plan(backend="inductor").is_eager


def test_equal_plans_have_equal_ids_whatever_the_option_is_called_in_python() -> None:
    one, other = (Plan(backend="inductor", options=(("x", value),)) for value in (True, 1))
    assert (one.id == other.id) is (one == other)
    assert len({one, other}) == 2


def test_a_plan_is_equal_to_no_other_thing() -> None:
    assert EAGER.__eq__(EAGER.to_json()) is NotImplemented


def test_lists_are_read_as_tuples() -> None:
    plan = Plan(backend="inductor", transforms=["a"], options=[["x", 1]])  # type: ignore[arg-type,list-item]
    assert plan == Plan(backend="inductor", transforms=("a",), options=(("x", 1),))
    assert (plan.transforms, plan.options) == (("a",), (("x", 1),))
    assert Plan(transforms=[]) == EAGER  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [1, 2, True, "two", None, [2]])
def test_an_option_given_twice_is_refused(other: Any) -> None:
    with pytest.raises(PlanError) as error:
        Plan(backend="inductor", options=(("x", 1), ("y", 1), ("x", other)))
    assert str(error.value) == f"option x is 1 and {other!r}, but an option may be given only once"


# ---- changing one thing


def test_one_field_is_changed() -> None:
    assert EAGER.with_choice("backend", "inductor") == Plan(backend="inductor")
    assert EAGER.with_choice("threads", 4) == Plan(threads=4)


def test_options_and_transforms_are_added_to() -> None:
    plan = Plan(backend="inductor", options=(("z", 1),), transforms=("first",))
    plan = plan.with_choice("options", ("a", True)).with_choice("transforms", "second")
    assert plan.options == (("a", True), ("z", 1))
    assert plan.transforms == ("first", "second")
    assert plan.with_choice("options", ("z", 5)).options == (("a", True), ("z", 5))
    assert (plan.option("a"), plan.option("z"), plan.option("none")) == (True, 1, None)


def test_transforms_that_are_added_in_any_order_are_one_plan() -> None:
    names = ("complex_to_real", "isolate_rnn", "static_form")
    plans = set()
    for order in itertools.permutations(names):
        plan = Plan(backend="inductor")
        for name in order:
            plan = plan.with_choice("transforms", name)
        plans.add(plan)
    assert [plan.transforms for plan in plans] == [("static_form", "isolate_rnn", "complex_to_real")]


def test_a_change_to_something_illegal_is_refused() -> None:
    with pytest.raises(PlanError):
        EAGER.with_choice("mode", "max-autotune")


# ---- words


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (EAGER, "eager"),
        (Plan(backend="inductor"), "inductor"),
        (Plan(backend="inductor", mode="reduce-overhead", precision="tf32"), "inductor reduce-overhead + tf32"),
        (Plan(capture="call"), "eager + capture call"),
        (Plan(threads=1), "eager + 1 thread"),
        (Plan(threads=8, memory_format="channels_last"), "eager + channels_last + 8 threads"),
        (Plan(backend="inductor", shapes="dynamic", scope="regional"), "inductor + regional + dynamic"),
        (
            Plan(backend="inductor", transforms=("complex_to_real",), scope="rolled", capture="call"),
            "inductor + complex_to_real + rolled + capture call",
        ),
        (
            STEP,
            "inductor + autocast_fp16 + loss + capture step + fused optimizer + activation checkpointing blocks "
            "+ 4 microbatches",
        ),
        (Plan(optimizer="foreach", microbatches=2), "eager + foreach optimizer + 2 microbatches"),
        (
            FULL,
            "inductor max-autotune-no-cudagraphs + b + a + bf16 + channels_last + cpp=x + epilogue=2 + freezing"
            " + regional + capture call",
        ),
    ],
)
def test_a_plan_in_a_few_words(plan: Plan, words: str) -> None:
    assert str(plan) == words


# ---- plans that are refused

INDUCTOR = {"backend": "inductor"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"precision": "fp8"},
            "precision is 'fp8', but must be one of native, tf32, bf16, autocast_bf16, autocast_fp16",
        ),
        ({"precision": None}, "precision is None, but must be one of native"),
        ({"memory_format": "nhwc"}, "memory_format is 'nhwc', but must be one of preserve, channels_last"),
        ({"scope": "half"} | INDUCTOR, "scope is 'half', but must be one of whole, regional, rolled"),
        ({"capture": "loop"}, "capture is 'loop', but must be one of none, call, branches, step"),
        ({"optimizer": "fast"}, "optimizer is 'fast', but must be one of preserve, fused, foreach, compiled"),
        ({"optimizer": True}, "optimizer is True, but must be one of preserve"),
        ({"activation_checkpointing": "all"}, "activation_checkpointing is 'all', but must be one of none, blocks"),
        ({"microbatches": 0}, "microbatches is 0, but must be a whole number of at least 1"),
        ({"microbatches": True}, "microbatches is True, but must be a whole number"),
        ({"microbatches": 2.0}, "microbatches is 2.0, but must be a whole number"),
        ({"microbatches": None}, "microbatches is None, but must be a whole number"),
        ({"scope": "loss"}, "scope is 'loss', but eager compiles nothing: scope needs a compiling backend"),
        (
            {"optimizer": "compiled"},
            "optimizer is 'compiled', but eager compiles nothing: it needs a compiling backend",
        ),
        (
            {"capture": "call", "optimizer": "fused"},
            '{"capture":"call","optimizer":"fused","schema":"torchwise.plan/1"} is of a training step, but one call',
        ),
        (
            {"precision": "bf16", "microbatches": 2},
            '{"microbatches":2,"precision":"bf16","schema":"torchwise.plan/1"} is of a training step, '
            "but one call captured,",
        ),
        (
            {"options": (("freezing", True),), "scope": "loss"} | INDUCTOR,
            '{"backend":"inductor","options":{"freezing":true},"schema":"torchwise.plan/1","scope":"loss"} is of a',
        ),
        (
            {"capture": "step", "mode": "reduce-overhead"} | INDUCTOR,
            "capture is 'step', but mode 'reduce-overhead' captures CUDA graphs by itself: choose one",
        ),
        (
            {"capture": "step", "shapes": "dynamic"} | INDUCTOR,
            "capture is 'step', which records graphs of one shape: shapes must be static",
        ),
        (
            {"capture": "step", "threads": 2},
            "threads is 2, but a captured call runs on the GPU, where threads mean nothing",
        ),
        ({"shapes": "any"} | INDUCTOR, "shapes is 'any', but must be one of static, dynamic"),
        ({"mode": "fast"} | INDUCTOR, "mode is 'fast', but must be one of default, reduce-overhead, max-autotune, max"),
        ({"mode": ["default"]} | INDUCTOR, "mode is ['default'], but must be one of default"),
        ({"backend": ""}, "backend is '', but must name a backend, such as eager or inductor"),
        ({"backend": None}, "backend is None, but must name a backend"),
        ({"threads": 0}, "threads is 0, but must be a whole number of at least 1, or left out"),
        ({"threads": -1}, "threads is -1, but must be a whole number"),
        ({"threads": True}, "threads is True, but must be a whole number"),
        ({"threads": 2.0}, "threads is 2.0, but must be a whole number"),
        ({"options": (("x", 0.5),)} | INDUCTOR, "option x is 0.5, but must be true, false, a whole number or a string"),
        ({"options": (("x", None),)} | INDUCTOR, "option x is None, but must be true, false"),
        ({"options": (("x", [1]),)} | INDUCTOR, "option x is [1], but must be true, false"),
        (
            {"mode": "max-autotune"},
            "mode is 'max-autotune', but eager compiles nothing: mode needs a compiling backend",
        ),
        ({"scope": "regional"}, "scope is 'regional', but eager compiles nothing: scope needs a compiling backend"),
        ({"scope": "rolled"}, "scope is 'rolled', but eager compiles nothing: scope needs a compiling backend"),
        (
            {"scope": "rolled", "mode": "reduce-overhead"} | INDUCTOR,
            "scope is 'rolled', but mode 'reduce-overhead' captures each call of the body: capture the whole call",
        ),
        (
            {"scope": "rolled", "options": (("freezing", True),)} | INDUCTOR,
            "weights are frozen into the code, but scope is 'rolled': one body for many weights cannot hold them",
        ),
        ({"shapes": "dynamic"}, "shapes is 'dynamic', but eager compiles nothing: shapes needs a compiling backend"),
        ({"options": (("x", 1),)}, "options is (('x', 1),), but eager compiles nothing: options needs a compiling"),
        (
            {"transforms": ("complex_to_real",)},
            "transforms has 'complex_to_real', but eager compiles nothing: complex_to_real changes what a compiler is",
        ),
        (
            {"transforms": ("static_form", "isolate_rnn")},
            "transforms has 'isolate_rnn', but eager compiles nothing: isolate_rnn changes what a compiler is given",
        ),
        (
            {"capture": "call", "mode": "reduce-overhead"} | INDUCTOR,
            "capture is 'call', but mode 'reduce-overhead' captures CUDA graphs by itself: choose one",
        ),
        (
            {"capture": "call", "mode": "max-autotune"} | INDUCTOR,
            "capture is 'call', but mode 'max-autotune' captures CUDA graphs by itself: choose one",
        ),
        (
            {"capture": "branches", "shapes": "dynamic"} | INDUCTOR,
            "capture is 'branches', which records graphs of one shape: shapes must be static",
        ),
        (
            {"scope": "rolled", "transforms": ("eager_strides",)} | INDUCTOR,
            "transforms has 'eager_strides', which rewrites functions, but scope is 'rolled', of operators",
        ),
        (
            {"transforms": ("eager_strides",)},
            "transforms has 'eager_strides', but eager compiles nothing: eager_strides changes what a compiler is",
        ),
        (
            {"capture": "call", "threads": 2},
            "threads is 2, but a captured call runs on the GPU, where threads mean nothing",
        ),
    ],
)
def test_a_meaningless_plan_is_refused_with_the_value_and_the_rule(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as error:
        Plan(**fields)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("changes", "is_one"),
    [
        ({}, False),
        ({"capture": "call"}, False),
        ({"precision": "autocast_bf16"}, False),
        ({"capture": "step"}, True),
        ({"scope": "loss"} | INDUCTOR, True),
        ({"optimizer": "foreach"}, True),
        ({"activation_checkpointing": "blocks"}, True),
        ({"microbatches": 2}, True),
    ],
)
def test_a_plan_is_of_a_step_where_something_of_it_means_one(changes: dict[str, Any], is_one: bool) -> None:
    assert Plan(**changes).of_a_step is is_one


def test_a_form_of_the_model_needs_no_compiler_and_can_be_captured() -> None:
    assert Plan(transforms=("static_form",), capture="call").backend == "eager"
    assert Plan(transforms=("static_form", "complex_to_real"), backend="inductor", capture="call").capture == "call"


@pytest.mark.parametrize("fields", [{"capture": "call", "mode": "max-autotune-no-cudagraphs"}, {"capture": "call"}])
def test_what_looks_like_it_but_is_allowed(fields: dict[str, Any]) -> None:
    assert Plan(**fields, **INDUCTOR).capture == "call"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan is '', but must be JSON, such as "),
        ("{", "plan is '{', but must be JSON, such as "),
        ("[]", "a plan is a JSON object, but this is of type list"),
        ("null", "a plan is a JSON object, but this is of type NoneType"),
        ("{}", 'the plan names no schema: add "schema":"torchwise.plan/1" to it'),
        ('{"schema":null}', "schema is None, but this version reads 'torchwise.plan/1'"),
        ('{"schema":"torchwise.plan/2"}', "schema is 'torchwise.plan/2', but this version reads 'torchwise.plan/1'"),
        ('{"schema":"torchwise.plan/1","tiles":4}', "unknown plan field 'tiles'; a plan has precision, memory_format"),
        ('{"schema":"torchwise.plan/1","":4}', "unknown plan field ''; a plan has precision, memory_format"),
        ('{"schema":"torchwise.plan/1","options":[]}', "options must be a JSON object and transforms a JSON array"),
        ('{"schema":"torchwise.plan/1","transforms":"a"}', "options must be a JSON object and transforms a JSON array"),
        ('{"schema":"torchwise.plan/1","threads":"4"}', "threads is '4', but must be a whole number of at least 1"),
        ('{"schema":"torchwise.plan/1","mode":"max-autotune"}', "mode is 'max-autotune', but eager compiles nothing"),
        ('{"schema":"torchwise.plan/1","backend":"inductor","options":{"x":0.5}}', "option x is 0.5, but must be"),
    ],
)
def test_text_that_is_no_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError) as error:
        Plan.from_json(text)
    assert str(error.value).startswith(message)


def test_reading_leaves_the_data_as_it_was() -> None:
    data = FULL.to_dict()
    with every_name_known():
        Plan.from_dict(data)
    assert data == FULL.to_dict()


@pytest.mark.parametrize("transform", [1, None, ["a"], ""])
def test_a_transform_is_a_name(transform: object) -> None:
    with pytest.raises(PlanError, match="transforms"):
        Plan.from_dict({"schema": SCHEMA, "transforms": [transform]})
    with pytest.raises(PlanError, match="transforms"):
        Plan(transforms=(transform,))  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [5, "ab", None, (("x",),), (("x", 1, 2),), ((1, 2),), ("xy",)])
def test_options_are_pairs_of_a_name_and_a_value(options: Any) -> None:
    with pytest.raises(PlanError, match="must hold pairs of a name and a value"):
        Plan(backend="inductor", options=options)


@pytest.mark.parametrize("value", [None, 1, 1.5, True, [], ["a"], {}, {"a": 1}, {"a": [1]}, {1: 2}, "?", [[1], "a"]])
@pytest.mark.parametrize("field", [field.name for field in fields(Plan)] + ["schema", "unknown"])
def test_a_value_of_any_type_is_read_or_refused_with_a_plan_error(field: str, value: Any) -> None:
    for rest in ({}, {"backend": "inductor"}):
        try:
            plan = Plan.from_dict({"schema": SCHEMA, **rest, field: value})
        except PlanError:
            continue
        assert Plan.from_json(plan.to_json()) == plan


def test_field_names_of_any_type_are_refused() -> None:
    with pytest.raises(PlanError, match="unknown plan field"):
        Plan.from_dict({"schema": SCHEMA, 1: 2, "other": 3, None: 4})


# ---- numerics


def test_levels_are_ordered_from_harmless_to_lossy() -> None:
    assert [str(level) for level in Numerics] == [
        "exact",
        "same-precision",
        "lower-precision",
        "quantized",
        "substituted",
    ]
    for allowed in Numerics:
        for level in Numerics:
            assert allowed.allows(level) is (level.rank <= allowed.rank)


def test_a_level_is_read_by_name() -> None:
    assert Numerics.of("reduced") is Numerics.LOWER_PRECISION
    with pytest.raises(PlanError, match=r"allow is 'lossy', but must be one of exact, .*, quantized, substituted"):
        Numerics.of("lossy")
