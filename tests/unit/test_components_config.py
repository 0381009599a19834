"""The options of parts, and the values that are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest
from synthetic import TRAITS

from torchwise.errors import InputError
from torchwise.plan import Plan, Trait
from torchwise.plan.choice import load_choices
from torchwise.plan.space import PlanSpace
from torchwise.plan.workload_spec import DEFAULT_TOLERANCE, TuneOptions
from torchwise.runtime.components import PROFILES, CompileConfig, CompileManager
from torchwise.runtime.components.config import VARIABLE, is_disabled
from torchwise.study import Request
from torchwise.trial.inspection import _requested_traits


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"enabled": "false"}, "enabled is 'false'"),
        ({"lazy": 1}, "lazy is 1"),
        ({"fallback": None}, "fallback is None"),
        ({"progress": "no"}, "progress is 'no'"),
        ({"training": "yes"}, "training is 'yes'"),
        ({"mode": "fastest"}, "mode is 'fastest', but must be one of auto, default, reduce-overhead"),
        ({"effort": "heroic"}, "effort is 'heroic'"),
        ({"allow": "anything"}, "allow is 'anything'"),
        ({"autocast": "float64"}, "autocast is 'float64'"),
        ({"device": "tpu"}, "device is 'tpu'"),
        ({"minimum_speedup": 0.9}, "minimum_speedup is 0.9, but must be a number of at least 1"),
        ({"minimum_speedup": float("nan")}, "minimum_speedup is nan"),
        ({"minimum_speedup": "1.05"}, "minimum_speedup is '1.05'"),
        ({"budget_s": 0}, "budget_s is 0, but must be above 0"),
        ({"budget_s": True}, "budget_s is True"),
        ({"compile_timeout_s": 0}, "compile_timeout is 0, but must be a number of seconds above 0, or None"),
        ({"tolerance": 0}, "tolerance is 0, but must be above 0 and finite"),
        ({"tolerance": "2 %"}, "tolerance is '2 %', but must be above 0 and finite"),
        ({"compile_timeout_s": "1m"}, "compile_timeout is '1m'"),
        ({"iterations": 4}, "iterations is 4, but must be a whole number from 5 to 400"),
        ({"iterations": 9.0}, "iterations is 9.0"),
        ({"dynamic": "yes"}, "dynamic is 'yes'"),
        ({"backend": "inductr"}, "backend is 'inductr', but must be one of None, "),
        ({"mode": {0: "fastest"}}, "mode is 'fastest', but must be one of auto"),
        ({"mode": {5: "default"}}, "mode is .*but must map numbers of parameters, 0 among them, to modes"),
        ({"mode": {0: "auto", "big": "default"}}, "must map numbers of parameters"),
        ({"verify": 0}, "verify is 0"),
        ({"verify": False}, "verify is False, but mode is 'auto', which finds a plan by verifying: name a mode"),
        ({"verify": False, "mode": {0: "default", 9: "auto"}}, "verify is False, but mode is 'auto'"),
        (
            {"mode": {0: "auto", 9: "default"}, "allow": "exact"},
            "mode 'default' is same-precision, but only up to exact",
        ),
        ({"calls": 0}, "calls is 0"),
        ({"restarts": 1.5}, "restarts is 1.5"),
        ({"mode": "default", "allow": "exact"}, "mode 'default' is same-precision, but only up to exact is allowed"),
        ({"backend": "inductor", "allow": "exact"}, "plan inductor is same-precision, but only up to exact is allowed"),
        ({"timeout": 5}, "timeout is no field of CompileConfig"),
        ({"require": ["determinist"]}, "require is 'determinist', but must be one of .*deterministic"),
        ({"require": 3}, "require is 3, but must be a list of"),
        ({"require": ["batch-invariant"], "training": True}, "require is batch-invariant with mode 'training'"),
        ({"sizes": "many"}, "sizes is 'many', but must be one of as-given, varying, fixed"),
        ({"memory_limit": 0}, "memory limit is 0"),
        ({"memory_limit": "2 boxes"}, "memory limit is '2 boxes'"),
        ({"metric": "a:b"}, "a metric is given, but no tolerance"),
        ({"mode": "default", "verify": False, "require": ["bitwise"]}, "require is .*but verify is False, so that"),
        ({"mode": "default", "verify": False, "memory_limit": "2GB"}, "memory_limit is '2GB', but verify is False"),
        ({"mode": "default", "verify": False, "sizes": "varying"}, "sizes is 'varying', but verify is False"),
    ],
    ids=str,
)
def test_a_value_that_means_nothing_is_refused_with_the_rule(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        CompileConfig().changed(**changes)


def test_the_default_is_the_profile_production_and_never_fails() -> None:
    config = CompileConfig()
    assert config == CompileConfig.of("production")
    assert (config.enabled, config.fallback, config.allow, config.minimum_speedup) == (
        True,
        True,
        "same-precision",
        1.05,
    )


def test_development_is_off_and_research_takes_all_that_may_be_had_and_raises() -> None:
    assert not CompileConfig.of("development").enabled
    research = CompileConfig.of("research", calls=5)
    assert (research.effort, research.allow, research.minimum_speedup) == ("thorough", "substituted", 1.0)
    assert (research.fallback, research.calls) == (False, 5)
    assert research.tolerance == DEFAULT_TOLERANCE


def list_open(config: CompileConfig) -> set[str]:
    """Return the choices that a component's search may try by the numerics and the tolerance of its settings."""
    keywords = config.tune_keywords()
    keywords.pop("store"), keywords.pop("progress")
    request = Request.from_options(TuneOptions(**keywords), "live:part", "cpu")
    traits = TRAITS | {Trait.LINEAR_LAYERS, Trait.GEMM, Trait.EXACT_GELU, Trait.DROPOUT}
    traits = (traits - {Trait.TOLERANT}) | set(_requested_traits(request.workload, ()))
    space = PlanSpace("cpu", request.workload.mode, frozenset(traits), request.allow, request.effort)
    return {f"{choice.value}" for choice in load_choices().values() if space.excludes(choice) is None}


LOSSY = {"int8_weights", "int8_dynamic", "tanh_gelu", "no_dropout"}


def test_research_tries_what_changes_answers_and_production_does_not() -> None:
    assert list_open(CompileConfig.of("research")) >= LOSSY
    assert not LOSSY & list_open(CompileConfig.of("research", tolerance=None))
    assert not LOSSY & list_open(CompileConfig.of("research", allow="lower-precision"))
    assert not LOSSY & list_open(CompileConfig.of("production"))


def test_a_tolerance_of_ones_own_outlives_a_switch_of_profiles() -> None:
    own, plain = CompileManager(CompileConfig(tolerance=0.1)), CompileManager()
    for manager, expected in ((own, [0.1, 0.1]), (plain, [DEFAULT_TOLERANCE, None])):
        found = []
        for profile in ("research", "production"):
            manager.set_mode(profile)
            found.append(manager.config.tolerance)
        assert found == expected


def test_profiles_leave_a_metric_its_tolerance() -> None:
    assert CompileConfig.of("research", metric="file.py:f").tolerance == DEFAULT_TOLERANCE
    for profile in ("research", "development"):
        assert CompileConfig.of(profile, metric="distribution").tolerance is None
    own = CompileConfig(allow="quantized", tolerance=0.02, metric="file.py:f")
    manager = CompileManager(own)
    for profile in ("production", "research", "production", "development"):
        manager.set_mode(profile)
        assert (manager.config.metric, manager.config.tolerance) == ("file.py:f", 0.02)
    part = CompileConfig.of("research").changed(metric="distribution")
    assert part.tolerance is None
    trained = part.changed(training=True).tune_keywords()
    assert (trained["metric"], trained["tolerance"], trained["mode"]) == (None, None, "training")
    random = CompileManager("production", metric="distribution")
    random.set_mode("research")
    assert random.config.tolerance is None
    with pytest.raises(InputError, match="a metric is given, but no tolerance"):
        CompileConfig.of("production", metric="file.py:f")


def test_a_tolerance_that_judges_nothing_does_not_bind_a_search_to_the_weights() -> None:
    found = [
        CompileConfig.of("research", **changes).tune_keywords()["tolerance"]
        for changes in ({}, {"allow": "lower-precision"}, {"allow": "lower-precision", "metric": "file.py:f"})
    ]
    assert found == [DEFAULT_TOLERANCE, None, DEFAULT_TOLERANCE]


def test_a_profile_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="profile is 'staging', but must be one of development, production, research"):
        CompileConfig.of("staging")
    with pytest.raises(TypeError):
        PROFILES["production"]["effort"] = "quick"  # type: ignore[index]


def test_a_mode_is_the_only_plan_tried_and_auto_searches() -> None:
    assert CompileConfig().plans is None
    assert CompileConfig(mode="max-autotune").plans == (Plan(backend="inductor", mode="max-autotune"),)


@pytest.mark.parametrize(
    ("changes", "plan"),
    [
        ({"backend": "inductor"}, Plan(backend="inductor")),
        ({"dynamic": True}, Plan(backend="inductor", shapes="dynamic")),
        ({"dynamic": False}, Plan(backend="inductor")),
        ({"dynamic": True, "mode": "max-autotune"}, Plan(backend="inductor", mode="max-autotune", shapes="dynamic")),
    ],
    ids=str,
)
def test_a_backend_or_a_form_of_shapes_is_the_only_plan_tried(changes: dict[str, object], plan: Plan) -> None:
    assert CompileConfig().changed(**changes).plans == (plan,)


def test_a_mode_by_size_is_that_of_the_largest_size_reached() -> None:
    config = CompileConfig(mode={1000: "max-autotune", 0: "default", 10: "auto"})
    assert [config.of_size(n).mode for n in (0, 9, 10, 999, 1000, 10**9)] == [
        *("default", "default", "auto", "auto", "max-autotune", "max-autotune")
    ]


@pytest.mark.parametrize(
    ("value", "off"),
    [("1", True), ("true", True), ("anything", True), ("0", False), (" False ", False), ("", False), ("no", False)],
)
def test_the_switch_is_read_when_asked(value: str, off: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert not is_disabled()
    monkeypatch.setenv(VARIABLE, value)
    assert is_disabled() is off


def test_asking_for_parts_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; from torchwise import CompileConfig; print(CompileConfig().mode)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "auto", done.stderr
