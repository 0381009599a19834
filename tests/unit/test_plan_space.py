"""Which plans are open for a workload: the excluded ones and why, and those that are one choice away."""

from __future__ import annotations

import contextlib
import functools
import math
import random
from dataclasses import fields, replace

import pytest

from torchwise.errors import InputError, PlanError
from torchwise.plan import CHOICES, EAGER, Choice, Numerics, Plan, PlanSpace, Trait, register
from torchwise.plan.choice import ANY, load_choices
from torchwise.plan.rules import list_allowed
from torchwise.plan.space import _add_choice, choices_of, compile_factor_of, complexity_of, numerics_of

ALL_TRAITS = frozenset(
    {
        "module",
        "floating",
        "float32",
        "gemm",
        "conv",
        "repeated_blocks",
        "stages",
        "repeats",
        "several_shapes",
        "complex",
        "rnn",
        "patches",
        "short_rows",
        "static_form",
        "dependent_launch",
    }
)
INDUCTOR = Plan(backend="inductor")


STEP_TRAITS = ALL_TRAITS | {"training_step", "fusable", "foreachable", "divisible_by_2", "divisible_by_4"}
OF_A_STEP = [
    ("optimizer", "fused"),
    ("optimizer", "foreach"),
    ("optimizer", "compiled"),
    ("scope", "loss"),
    ("capture", "step"),
    ("activation_checkpointing", "blocks"),
    ("microbatches", 2),
    ("microbatches", 4),
]


def lacks(trait: Trait) -> str:
    return f"it is for a model that {trait.summary}"


def a_space(device: str = "cuda", mode: str = "inference", **rest: object) -> PlanSpace:
    given = {"traits": ALL_TRAITS, "allow": Numerics.SUBSTITUTED, "effort": "thorough", **rest}
    return PlanSpace(device, mode, **given)  # type: ignore[arg-type]


def keys(space: PlanSpace) -> set[tuple[str, object]]:
    return {choice.key for choice in space.choices()}


@functools.cache  # several tests look at them
def reachable(space: PlanSpace, most: int = 300) -> dict[Plan, list[tuple[Plan, Choice]]]:
    """Return plans that a search can reach, near and far, with their neighbours: all, or so many drawn by a seed."""
    found, waiting, met = dict[Plan, list[tuple[Plan, Choice]]](), [EAGER], {EAGER}
    draw = random.Random(0)
    while waiting and len(found) < most:
        plan = waiting.pop(draw.randrange(len(waiting)))
        found[plan] = list(space.neighbours(plan))
        new = [near for near, _ in found[plan] if near not in met]
        waiting += new
        met.update(new)
    return found


# ---- open choices


def test_launch_parameters_are_tuned_sooner_for_matrices_that_meet_one_row_each() -> None:
    choice = CHOICES["options", ("coordinate_descent_tuning", True)]
    for effort in ("quick", "standard", "thorough"):
        space = a_space(effort=effort)
        with_rows = a_space(effort=effort, traits=ALL_TRAITS | {"one_row"})
        assert (space.excludes(choice) is None) is (effort == "thorough")
        assert (with_rows.excludes(choice) is None) is (effort != "quick")
    assert a_space(effort="quick", traits=ALL_TRAITS | {"one_row"}).excludes(choice) == (
        "it is tried from effort standard on"
    )


@pytest.mark.parametrize("name", ["openvino", "onnxruntime"])
def test_other_compilers_are_quick_on_a_cpu_for_models_with_matrix_products(name: str) -> None:
    choice = CHOICES["backend", name]
    assert choice.least_effort({Trait.GEMM}, "cpu") == "quick"
    assert choice.least_effort({Trait.RNN}, "cpu") == "standard"
    assert choice.least_effort({Trait.MODULE}, "cpu") == "thorough", "no such model has gained anything"
    assert "cuda" not in choice.devices or choice.least_effort({Trait.GEMM}, "cuda") == "standard"


def test_volumes_have_a_memory_format_of_their_own() -> None:
    """Not among all traits, as each memory format more is a third more plans for the tests that look at every plan."""
    choice = CHOICES["memory_format", "channels_last_3d"]
    assert a_space().excludes(choice) == lacks(Trait.CONV3D)
    assert a_space(traits=ALL_TRAITS | {"conv3d"}).excludes(choice) is None


@pytest.mark.parametrize(
    ("key", "closed", "reason"),
    [
        (("capture", "call"), {"device": "cpu"}, "it is for cuda, and this is cpu"),
        (("mode", "reduce-overhead"), {"device": "cpu"}, "it is for cuda, and this is cpu"),
        (("precision", "tf32"), {"device": "cpu"}, "it is for cuda, and this is cpu"),
        (("capture", "call"), {"mode": "training"}, "it is for inference, and this is training"),
        (("precision", "bf16"), {"mode": "training"}, "it is for inference, and this is training"),
        (("options", ("freezing", True)), {"mode": "training"}, "it is for inference, and this is training"),
        (("backend", "inductor"), {"allow": Numerics.EXACT}, "it is same-precision, and only up to exact is allowed"),
        (("memory_format", "channels_last"), {"allow": Numerics.EXACT}, "it is same-precision, and only up to exact"),
        (
            ("precision", "tf32"),
            {"allow": Numerics.SAME_PRECISION},
            "it is lower-precision, and only up to same-precision is allowed",
        ),
        (
            ("precision", "bf16"),
            {"allow": Numerics.SAME_PRECISION},
            "it is lower-precision, and only up to same-precision is allowed",
        ),
        (
            ("precision", "autocast_bf16"),
            {"allow": Numerics.SAME_PRECISION},
            "it is lower-precision, and only up to same-precision",
        ),
        (
            ("memory_format", "channels_last"),
            {"traits": ALL_TRAITS - {"conv"}},
            lacks(Trait.CONV),
        ),
        (
            ("scope", "regional"),
            {"traits": ALL_TRAITS - {"repeated_blocks"}},
            lacks(Trait.REPEATED_BLOCKS),
        ),
        (
            ("scope", "rolled"),
            {"traits": ALL_TRAITS - {"repeats"}},
            lacks(Trait.REPEATS),
        ),
        (
            ("shapes", "dynamic"),
            {"traits": ALL_TRAITS - {"several_shapes"}},
            lacks(Trait.SEVERAL_SHAPES),
        ),
        (("options", ("freezing", True)), {"traits": frozenset()}, lacks(Trait.MODULE)),
        (("precision", "tf32"), {"traits": frozenset({"gemm"})}, lacks(Trait.FLOAT32)),
        (("precision", "bf16"), {"traits": frozenset()}, lacks(Trait.FLOATING)),
        (
            ("precision", "bf16"),
            {"traits": frozenset({"floating", "half"})},
            "its weights have 16 bits already",
        ),
        (
            ("transforms", "complex_to_real"),
            {"traits": ALL_TRAITS - {"complex"}},
            lacks(Trait.COMPLEX),
        ),
        (("transforms", "complex_to_real"), {"allow": Numerics.EXACT}, "it is same-precision, and only up to exact"),
        (
            ("transforms", "isolate_rnn"),
            {"traits": ALL_TRAITS - {"rnn"}},
            lacks(Trait.RNN),
        ),
        (("capture", "call"), {"traits": ALL_TRAITS | {"prints"}}, "the model prints or logs in its call"),
        (
            ("transforms", "patch_matmul"),
            {"traits": ALL_TRAITS - {"patches"}},
            lacks(Trait.PATCHES),
        ),
        (
            ("options", ("triton.enable_pdl", True)),
            {"traits": ALL_TRAITS - {"dependent_launch"}},
            lacks(Trait.DEPENDENT_LAUNCH),
        ),
        (
            ("transforms", "static_form"),
            {"traits": ALL_TRAITS - {"static_form"}},
            lacks(Trait.STATIC_FORM),
        ),
        (("transforms", "static_form"), {"allow": Numerics.EXACT}, "it is same-precision, and only up to exact"),
        (("mode", "max-autotune"), {"effort": "standard"}, "it is tried from effort thorough on"),
        (("mode", "reduce-overhead"), {"effort": "quick"}, "it is tried from effort standard on"),
        (("options", ("cpp_wrapper", True)), {"effort": "standard"}, "it is tried from effort thorough on"),
    ],
)
def test_a_choice_is_closed_for_a_reason(key: tuple[str, object], closed: dict[str, object], reason: str) -> None:
    choice = load_choices()[key]
    assert a_space().excludes(choice) is None
    space = a_space(**closed)  # type: ignore[arg-type]
    assert (space.excludes(choice) or "").startswith(reason)
    assert key not in keys(space)


@pytest.mark.parametrize("key", OF_A_STEP, ids=str)
def test_what_is_of_a_training_step_is_open_for_one_alone(key: tuple[str, object]) -> None:
    choice = load_choices()[key]
    assert key in keys(a_space(mode="training", traits=STEP_TRAITS))
    assert key not in keys(a_space(mode="inference", traits=STEP_TRAITS))
    for need in choice.required_traits:
        space = a_space(mode="training", traits=STEP_TRAITS - {need})
        assert space.excludes(choice) == lacks(need)
    assert "training_step" in choice.required_traits
    assert a_space("cpu", "training", traits=STEP_TRAITS).excludes(choice) == (
        "it is for cuda, and this is cpu" if key == ("capture", "step") else None
    )


def test_a_captured_step_brings_the_fused_optimizer_where_there_is_one() -> None:
    for traits, forms in ((STEP_TRAITS, {"fused", "preserve"}), (STEP_TRAITS - {"fusable"}, {"preserve"})):
        around = {near for near, _ in a_space(mode="training", traits=traits, effort="quick").neighbours(EAGER)}
        captured = {near for near in around if near.capture == "step"}
        assert captured == {Plan(capture="step", optimizer=form) for form in forms}


def test_every_plan_of_a_step_near_eager_and_the_compiler_is_legal() -> None:
    space = a_space(mode="training", traits=STEP_TRAITS)
    for plan in (EAGER, INDUCTOR, Plan(capture="step", optimizer="fused"), Plan(backend="inductor", scope="loss")):
        for near, choice in space.neighbours(plan):
            assert Plan.from_json(near.to_json()) == near
            assert choice in choices_of(near)
            assert not (near.of_a_step and near.capture == "call")


def test_threads_are_for_the_cpu() -> None:
    choice = replace(load_choices()["threads", ANY], value=3)
    assert a_space("cuda").excludes(choice) == "it is for cpu, and this is cuda"
    assert a_space("cpu").excludes(choice) is None


def test_narrower_vectors_are_for_thorough_searches_on_a_cpu() -> None:
    key = ("options", ("cpp.simdlen", 256))
    assert key in keys(a_space("cpu"))
    assert key not in keys(a_space("cuda")) | keys(a_space("cpu", effort="standard"))
    assert INDUCTOR.with_choice(*key) in {near for near, _ in a_space("cpu").neighbours(INDUCTOR)}


@pytest.mark.parametrize(
    ("installed", "is_open"), [("2.13.0+cpu", False), ("2.9.1", False), ("2.14.0a0+git1", True), ("2.15.1", True)]
)
def test_an_option_of_later_releases_needs_one(installed: str, is_open: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = load_choices()["options", ("autotune_cudagraph_benchmarking", True)]
    monkeypatch.setattr("torchwise.plan.choice._find_torch", lambda: installed)
    why = f"it needs PyTorch 2.14 or later, and this is {installed}"
    assert a_space("cuda", effort="thorough").excludes(choice) == (None if is_open else why)


def test_the_default_allows_no_lower_precision() -> None:
    space = PlanSpace("cuda", "inference", ALL_TRAITS, effort="thorough")
    assert {choice.numerics for choice in space.choices()} == {Numerics.EXACT, Numerics.SAME_PRECISION}


@pytest.mark.parametrize("allow", Numerics)
def test_more_is_open_the_more_is_allowed(allow: Numerics) -> None:
    space = a_space(allow=allow)
    assert {choice.key for choice in space.choices()} == {
        choice.key for choice in a_space().choices() if choice.numerics.rank <= allow.rank
    }


def test_more_is_open_at_more_effort() -> None:
    quick, standard, thorough = (keys(a_space(effort=effort)) for effort in ("quick", "standard", "thorough"))
    assert quick < standard < thorough
    assert ("backend", "inductor") in quick


def test_cheap_choices_come_first() -> None:
    factors = [choice.compile_factor for choice in a_space().choices()]
    assert factors == sorted(factors)
    assert factors[0] == 0


def test_a_value_that_only_describes_is_never_proposed() -> None:
    assert ("threads", ANY) in load_choices()
    assert all(choice.value != ANY for choice in a_space("cpu").choices())


def test_an_unknown_effort_is_refused() -> None:
    with pytest.raises(InputError, match="effort is 'extreme', but must be one of quick, standard, thorough"):
        a_space(effort="extreme")


# ---- neighbours


def list_changed_fields(one: Plan, other: Plan) -> list[str]:
    return [field.name for field in fields(Plan) if getattr(one, field.name) != getattr(other, field.name)]


def roll_plan(plan: Plan) -> Plan | None:
    with contextlib.suppress(PlanError):
        return replace(plan, scope="rolled")
    return None


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_neighbours_are_legal_and_one_choice_away(device: str, mode: str) -> None:
    for effort in ("quick", "standard"):
        space = a_space(device, mode, effort=effort)
        check_neighbours(space, reachable(space))


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("mode", ["inference", "training"])
def test_all_plans_have_legal_neighbours_one_choice_away(device: str, mode: str) -> None:
    space = a_space(device, mode, effort="standard")
    every = reachable(space, most=20_000)
    assert 30 < len(every) < 20_000, "the space is finite and not huge"
    check_neighbours(space, every)


def check_neighbours(space: PlanSpace, reached: dict[Plan, list[tuple[Plan, Choice]]]) -> None:
    for plan, around in reached.items():
        assert Plan.from_json(plan.to_json()) == plan
        assert len({near for near, _ in around}) == len(around)
        for near, choice in around:
            assert near != plan
            if plan.scope == "rolled" and near == replace(plan, scope="whole"):
                assert choice.key == ("backend", "inductor")
                continue
            unrolled = {"scope"} if plan.scope == "rolled" and near.scope == "whole" else set()
            assert not unrolled or roll_plan(near) not in {other for other, _ in around}, "what can be rolled stays so"
            assert (
                {choice.field}
                <= set(list_changed_fields(plan, near))
                <= {choice.field, *dict(choice.implies), *unrolled}
            )
            assert space.excludes(choice) is None
            assert choice in choices_of(near)


def test_from_eager_only_what_needs_no_compiler_and_the_compiler() -> None:
    around = {str(plan) for plan, _ in a_space(effort="standard").neighbours(EAGER)}
    assert around == {
        "inductor",
        "inductor + isolate_rnn",
        "inductor + patch_matmul",
        "inductor + rolled",
        "inductor + complex_to_real",
        "inductor + complex_to_real + rolled",
        "eager + static_form",
        "eager + static_form + capture call",
        "eager + capture call",
        "eager + channels_last",
        "eager + tf32",
        "eager + bf16",
        "eager + autocast_bf16",
    }


def test_what_the_rules_refuse_is_not_a_neighbour() -> None:
    graphs = Plan(backend="inductor", mode="reduce-overhead")
    assert all(plan.capture == "none" for plan, _ in a_space().neighbours(graphs))
    captured = Plan(backend="inductor", capture="call")
    modes = {plan.mode for plan, choice in a_space().neighbours(captured) if choice.field == "mode"}
    assert modes == {"max-autotune-no-cudagraphs"}


def test_a_value_may_take_anothers_place_and_an_option_is_set_once() -> None:
    plan = Plan(backend="inductor", mode="reduce-overhead", precision="tf32", options=(("cpp_wrapper", True),))
    around = list(a_space().neighbours(plan))
    assert {near.mode for near, choice in around if choice.field == "mode"} == set(list_allowed("mode")) - {
        "default",
        plan.mode,
    }
    precisions = {near.precision for near, choice in around if choice.field == "precision"}
    assert precisions == set(list_allowed("precision")) - {"native", plan.precision}
    assert not [choice for _, choice in around if choice.field == "backend"]
    assert ("options", ("cpp_wrapper", True)) not in {choice.key for _, choice in around}


def test_each_neighbour_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built = list[tuple[object, ...]]()

    def add_choice(plan: Plan, choice: Choice, along: tuple[tuple[str, object], ...]) -> Plan:
        built.append((plan, choice.key, along))
        return _add_choice(plan, choice, along)

    monkeypatch.setattr("torchwise.plan.space._add_choice", add_choice)
    for plan in (EAGER, INDUCTOR, Plan(backend="inductor", scope="rolled")):
        built.clear()
        assert list(a_space().neighbours(plan))
        assert len(built) == len(set(built)) > 10


def test_the_space_is_finite_and_not_huge() -> None:
    assert 30 < len(reachable(a_space(effort="quick"))) < 300


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_choice_stands_on_is_not_taken_away(device: str) -> None:
    for plan in reachable(a_space(device, effort="standard")):
        for choice in choices_of(plan):
            assert all(getattr(plan, field) == value for field, value in choice.requires), str(plan)


# ---- choices that make up a plan


def test_eager_is_exact_simple_and_compiles_nothing() -> None:
    assert (choices_of(EAGER), numerics_of(EAGER), complexity_of(EAGER)) == ([], Numerics.EXACT, 0)
    assert compile_factor_of(EAGER) == 0


@pytest.mark.parametrize(
    ("plan", "legality", "parts"),
    [
        (INDUCTOR, "reordered", [("backend", "inductor")]),
        (Plan(capture="call"), "exact", [("capture", "call")]),
        (Plan(backend="inductor", capture="call"), "reordered", [("backend", "inductor"), ("capture", "call")]),
        (Plan(precision="tf32"), "reduced", [("precision", "tf32")]),
        (
            Plan(backend="inductor", precision="bf16", mode="max-autotune"),
            "reduced",
            [("precision", "bf16"), ("backend", "inductor"), ("mode", "max-autotune")],
        ),
        (Plan(backend="inductor", scope="regional"), "reordered", [("backend", "inductor"), ("scope", "regional")]),
        (
            Plan(backend="inductor", options=(("freezing", True), ("cpp_wrapper", True))),
            "reordered",
            [("backend", "inductor"), ("options", ("cpp_wrapper", True)), ("options", ("freezing", True))],
        ),
        (Plan(threads=77), "reordered", [("threads", ANY)]),
        (Plan(transforms=("static_form",)), "reordered", [("transforms", "static_form")]),
        (
            Plan(backend="inductor", transforms=("static_form", "isolate_rnn")),
            "reordered",
            [("transforms", "static_form"), ("transforms", "isolate_rnn"), ("backend", "inductor")],
        ),
    ],
    ids=str,
)
def test_a_plan_is_the_sum_of_its_choices(plan: Plan, legality: str, parts: list[tuple[str, object]]) -> None:
    known = load_choices()
    assert [choice.key for choice in choices_of(plan)] == parts
    assert numerics_of(plan) is Numerics.of(legality)
    assert complexity_of(plan) == sum(known[key].complexity for key in parts)
    factors = [known[key].compile_factor for key in parts if known[key].compile_factor > 0]
    assert compile_factor_of(plan) == pytest.approx(math.prod(factors) if factors else 0.0)


def test_compile_times_by_what_they_are_relative_to() -> None:
    assert compile_factor_of(INDUCTOR) == 1.0
    assert compile_factor_of(Plan(capture="call", precision="tf32", memory_format="channels_last")) == 0.0
    assert compile_factor_of(Plan(transforms=("static_form",))) == 0.0
    assert compile_factor_of(Plan(backend="inductor", scope="regional")) < 1.0
    assert compile_factor_of(Plan(backend="inductor", mode="max-autotune-no-cudagraphs")) > 2.0


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(backend="tensorrt"), "backend is 'tensorrt', which no choice of this version describes"),
        (Plan(transforms=("fold",)), "transforms is 'fold', which no choice of this version describes"),
    ],
    ids=str,
)
def test_a_value_that_nobody_registered_has_no_legality(plan: Plan, message: str) -> None:
    for question in (choices_of, numerics_of, complexity_of, compile_factor_of):
        with pytest.raises(PlanError) as error:
            question(plan)
        assert str(error.value).startswith(message)
        assert str(error.value).endswith("in a file that TORCHWISE_PLUGINS names")


def test_what_is_known_of_a_field_is_named() -> None:
    with pytest.raises(PlanError, match=r"use one of aot-inductor, inductor, .*, torch-tensorrt, or register it"):
        choices_of(Plan(backend="tensorrt"))


@pytest.mark.parametrize(
    "option", [("epilogue_fusion", False), ("new", "x"), ("freezing", False), ("freezing", 1), ("cpp_wrapper", "yes")]
)
def test_an_option_that_nobody_registered_must_be_allowed_explicitly(option: tuple[str, bool | int | str]) -> None:
    plan = Plan(backend="inductor", options=(option,))
    choice = choices_of(plan)[-1]
    assert choice.value == option
    assert "unknown and must be allowed explicitly" in choice.summary
    assert option[0] in choice.summary
    assert (numerics_of(plan), choice.complexity, compile_factor_of(plan)) == (Numerics.SUBSTITUTED, 2, 1.0)
    assert (a_space(allow=Numerics.LOWER_PRECISION).excludes(choice) or "").startswith("it is substituted")
    assert a_space().excludes(choice) is None


def test_an_option_that_nobody_registered_is_kept_but_never_proposed() -> None:
    assert all(choice.summary.find("unknown") < 0 for choice in a_space().choices())
    plan = Plan(backend="inductor", options=(("new", 1),))
    around = [near for near, _ in a_space().neighbours(plan)]
    assert around
    assert all(near.option("new") == 1 for near in around)
    assert not any(near.option("new") for near in reachable(a_space(effort="standard")))


def test_every_plan_of_the_space_is_known() -> None:
    for plan in reachable(a_space(effort="standard")):
        choices_of(plan)


def test_every_value_that_the_rules_know_is_described() -> None:
    described = {choice.key for choice in load_choices().values()}
    assert {("precision", value) for value in list_allowed("precision")} - described == {("precision", "native")}
    assert {("mode", value) for value in list_allowed("mode")} - described == {("mode", "default")}


@pytest.mark.parametrize("choice", load_choices().values(), ids=lambda choice: str(choice.key))
def test_every_choice_is_sound(choice: Choice) -> None:
    assert choice.summary
    assert choice.complexity > 0
    assert choice.compile_factor >= 0
    assert 0 <= choice.min_remaining_fraction < 1
    assert set(choice.devices) <= {"cpu", "cuda"}
    assert set(choice.modes) <= {"inference", "training"}
    if choice.value != ANY:
        captures = [value for field, value in choice.implies if field == "capture"]
        compiled = {"backend": "inductor"} if choice.field == "shapes" else {}  # or another one that takes all sizes
        base = replace(EAGER, **{"capture": captures[-1]} if captures else {}, **compiled, **dict(choice.requires))
        assert base.with_choice(choice.field, choice.value) != base


def test_a_plug_in_adds_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    load_choices()
    monkeypatch.setattr("torchwise.plan.choice.CHOICES", dict(CHOICES))
    added = Choice("transforms", "fold", Numerics.SUBSTITUTED, 3, "folds", compile_factor=0.0)
    register(added)
    assert Plan(transforms=("fold",)) in {plan for plan, _ in a_space().neighbours(EAGER)}
    assert choices_of(Plan(transforms=("fold",))) == [added]
    assert Plan(transforms=("fold", "fold")) not in {p for p, _ in a_space().neighbours(Plan(transforms=("fold",)))}
    assert (
        a_space(allow=Numerics.LOWER_PRECISION).excludes(added)
        == "it is substituted, and only up to lower-precision is allowed"
    )
