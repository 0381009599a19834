"""The options of parts, and the values that are refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from torchwise.errors import InputError
from torchwise.plan import Plan
from torchwise.runtime.components import PROFILES, CompileConfig
from torchwise.runtime.components.config import VARIABLE, is_disabled


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
