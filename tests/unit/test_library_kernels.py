"""Settings around calls that choose among the kernels of libraries."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import attention
from torch.nn.attention import SDPBackend, _registry
from torch.profiler import ProfilerActivity, profile

from torchwise._torch import dynamo
from torchwise._torch.shared_context import SharedContext
from torchwise.compile import compile_plan
from torchwise.compile.backends.inductor import _distinct_backend
from torchwise.compile.settings import settings_for
from torchwise.compile.transforms import library_kernels
from torchwise.compile.transforms.function_graphs.record import record
from torchwise.errors import PlanError, UnsupportedError
from torchwise.plan import CHOICES, Choice, Numerics, Plan, Stage, Trait
from torchwise.plan.choices.library_kernels import ATTENTION
from torchwise.plan.known_names import find_unusable_part
from torchwise.runtime.dynamo.graph_backend import compiles_alone
from torchwise.testing.transform import TransformContract
from torchwise.workload import Example


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.project(x).view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)


def draw() -> tuple[torch.Tensor]:
    return (torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1)),)


class TestMathAttentionContract(TransformContract):
    @pytest.fixture
    def choice(self) -> Choice:
        return CHOICES["transforms", "math_attention"]

    @pytest.fixture
    def model(self) -> torch.nn.Module:
        return Attention().eval()

    @pytest.fixture
    def inputs(self) -> tuple[Any, ...]:
        return draw()

    @pytest.fixture
    def unfit(self) -> None:
        """Every model runs under the setting, which changes nothing without attention."""


def list_kernels(call: Any, *args: Any) -> set[str]:
    with torch.no_grad(), profile(activities=[ProfilerActivity.CPU]) as found:
        call(*args)
    names = {event.name for event in found.events()}
    return {name for name in names if "scaled_dot_product" in name and name.count("_") > 4}


def test_the_kernel_is_another_one_during_the_call_alone() -> None:
    model, (x,) = Attention().eval(), draw()
    plan = Plan(transforms=("math_attention",))
    call = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference").call
    flash, products = list_kernels(model, x), list_kernels(call, x)
    assert any("flash" in name for name in flash)
    assert any("math" in name for name in products)
    assert list_kernels(model, x) == flash
    torch.testing.assert_close(call(x), model(x))


class Flash:
    """A version of FlashAttention that answers on the CPU, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._library: torch.library.Library | None = None

    def register(self) -> Flash:
        self._library = torch.library.Library("aten", "IMPL", "CPU")
        self._library.impl("_scaled_dot_product_flash_attention_for_cpu", self._answer, "CPU", allow_override=True)
        return self

    def remove(self) -> None:
        self._library = None

    def _answer(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> Any:
        self.calls += 1
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return scores.softmax(-1) @ value, scores.logsumexp(-1)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Flash]]:
    """Have both newer versions installed, and the one of PyTorch answer at the end."""
    versions = {"FA3": Flash(), "FA4": Flash()}
    for name, one in versions.items():
        monkeypatch.setitem(_registry._FLASH_ATTENTION_IMPLS, name, one.register)
    for package in ("flash_attn", "flash_attn.cute", "flash_attn_interface"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    yield versions
    attention.restore_flash_attention_impl(_raise_warn=False)


VERSIONS = {"flash_attention_3": "FA3", "flash_attention_4": "FA4"}


@pytest.mark.parametrize(("name", "version"), VERSIONS.items())
def test_a_newer_flash_attention_answers_during_the_call_alone(
    name: str, version: str, flash: dict[str, Flash]
) -> None:
    model, (x,) = Attention().eval(), draw()
    call = compile_plan(model, Plan(transforms=(name,)), Example((x,)), device="cuda", mode="inference").call
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(call(x), expected)
        assert {one: found.calls for one, found in flash.items()} == {"FA3": 0, "FA4": 0, version: 1}
        assert attention.current_flash_attention_impl() is None
        torch.testing.assert_close(model(x), expected)
    assert flash[version].calls == 1


def test_a_version_that_the_user_has_activated_answers_again_afterwards(flash: dict[str, Flash]) -> None:
    attention.activate_flash_attention_impl("FA3")
    model, (x,) = Attention().eval(), draw()
    plan = Plan(transforms=("flash_attention_4",))
    with torch.no_grad():
        compile_plan(model, plan, Example((x,)), device="cuda", mode="inference").call(x)
        model(x)
    assert attention.current_flash_attention_impl() == "FA3"
    assert (flash["FA3"].calls, flash["FA4"].calls) == (1, 1)


@pytest.mark.parametrize(
    ("name", "install"), [("flash_attention_3", "--no-build-isolation 'git"), ("flash_attention_4", "--pre flash-attn")]
)
def test_a_flash_attention_that_is_not_installed_is_named(name: str, install: str) -> None:
    said = find_unusable_part(Plan(transforms=(name,)))
    assert said is not None
    assert f"which is not installed: pip install {install}" in said


@pytest.mark.parametrize(
    "error", [ImportError("no libcudart"), RuntimeError("it has no kernels"), ValueError("unknown FA3")]
)
def test_a_flash_attention_that_cannot_be_used_refuses_the_plan(
    error: Exception, flash: dict[str, Flash], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setitem(_registry._FLASH_ATTENTION_IMPLS, "FA3", fail)
    with pytest.raises(UnsupportedError, match=f"FlashAttention's FA3 cannot be used: .*{str(error)[:9]}"):
        settings_for(Plan(transforms=("flash_attention_3",))).wrap(draw)()


def test_a_version_of_the_user_stays_where_another_one_cannot_be_used(
    flash: dict[str, Flash], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ImportError("no libcudart")

    attention.activate_flash_attention_impl("FA3")
    monkeypatch.setitem(_registry._FLASH_ATTENTION_IMPLS, "FA4", fail)
    with pytest.raises(UnsupportedError, match="FA4 cannot be used"):
        settings_for(Plan(transforms=("flash_attention_4",))).wrap(draw)()
    assert attention.current_flash_attention_impl() == "FA3"
    with torch.no_grad():
        Attention().eval()(*draw())
    assert flash["FA3"].calls == 1


def test_a_torch_without_other_versions_is_named(flash: dict[str, Flash], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(attention, "activate_flash_attention_impl")
    with pytest.raises(UnsupportedError, match=r"FA4 needs torch.nn.attention.*_impl, which torch"):
        settings_for(Plan(transforms=("flash_attention_4",))).wrap(draw)()


@pytest.mark.usefixtures("flash")
@pytest.mark.parametrize("name", [*ATTENTION, "cudnn_benchmark"])
def test_each_setting_is_put_back_also_after_an_error(name: str) -> None:
    def read() -> list[Any]:
        order = torch._C._get_sdp_priority_order()
        flags = [getattr(torch.backends.cuda, f"{one}_sdp_enabled")() for one in ("flash", "mem_efficient", "math")]
        version = attention.current_flash_attention_impl()
        return [*order, *flags, torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cudnn.benchmark, version]

    def fail() -> None:
        inside.append(read())
        raise ValueError("of the model")

    before, inside = read(), list[Any]()
    with pytest.raises(ValueError, match="of the model"):
        settings_for(Plan(transforms=(name,))).wrap(fail)()
    assert inside[0] != before
    assert read() == before


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("flash_attention", SDPBackend.FLASH_ATTENTION),
        ("cudnn_attention", SDPBackend.CUDNN_ATTENTION),
        ("efficient_attention", SDPBackend.EFFICIENT_ATTENTION),
    ],
)
def test_a_kernel_comes_first_and_the_others_stay(name: str, first: SDPBackend) -> None:
    def read() -> tuple[list[int], bool]:
        return torch._C._get_sdp_priority_order(), torch.backends.cuda.math_sdp_enabled()

    order, has_products = settings_for(Plan(transforms=(name,))).wrap(read)()
    assert order[0] == int(first)
    assert has_products


def test_of_calls_that_overlap_the_first_enters_and_the_last_leaves() -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def note() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    shared, outer, inner = SharedContext(note), threading.Event(), threading.Event()

    def wait() -> None:
        inner.set()
        assert outer.wait(10)

    other = threading.Thread(target=shared.wrap(wait))
    other.start()
    assert inner.wait(10)
    shared.wrap(lambda: None)()
    assert entered == ["in"]
    outer.set()
    other.join()
    assert entered == ["in", "out"]
    shared.wrap(lambda: None)()
    assert entered == ["in", "out"] * 2


def test_a_context_that_cannot_be_entered_leaves_nothing_behind() -> None:
    tries: list[int] = []

    @contextlib.contextmanager
    def fail_once() -> Iterator[None]:
        tries.append(len(tries))
        if len(tries) == 1:
            raise RuntimeError("not now")
        yield

    shared = SharedContext(fail_once)
    with pytest.raises(RuntimeError, match="not now"):
        shared.wrap(lambda: None)()
    assert shared.wrap(lambda: 1)() == 1
    assert len(tries) == 2


@pytest.mark.parametrize(
    ("build", "size"),
    [
        (Attention, (2, 6, 8)),
        (lambda: torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 6, 8)),
        (lambda: torch.nn.TransformerDecoderLayer(8, 2, 16), (2, 6, 8)),
    ],
)
def test_attention_is_found_in_modules_of_every_kind(build: Any, size: tuple[int, ...]) -> None:
    model, x = build().eval(), torch.randn(size)
    args = (x, x) if isinstance(model, torch.nn.TransformerDecoderLayer) else (x,)
    with torch.no_grad():
        graph = record(lambda: model(*args))
    assert library_kernels.calls_attention(graph)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_convolutions_are_found_unless_the_user_has_them_timed(
    kind: str, dims: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = getattr(torch.nn, f"{kind}{dims}d")(2, 2, 3), torch.randn(1, 2, *[5] * dims)
    graph = record(lambda: model(x))
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    assert library_kernels.guesses_kernels(graph)
    assert not library_kernels.guesses_kernels(record(lambda: x + 1))
    assert not library_kernels.calls_attention(graph)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert not library_kernels.guesses_kernels(graph)


def test_two_kernels_of_attention_cannot_both_come_first() -> None:
    with pytest.raises(PlanError, match="'flash_attention' and 'cudnn_attention', but only one"):
        Plan(transforms=("flash_attention", "cudnn_attention"))


def test_code_that_was_compiled_under_a_setting_is_kept_apart() -> None:
    plan = Plan(backend="inductor", transforms=("math_attention",))
    plain = Plan(backend="inductor")
    make = contextlib.nullcontext  # stands for a backend, which is equal each time

    def apart(one: Plan) -> Any:
        return _distinct_backend(one, None, lambda: make, is_alone=False)

    assert apart(plain) is None
    assert apart(plan) is apart(plan)
    assert apart(plan) is not apart(Plan(backend="inductor", transforms=("math_attention",), shapes="dynamic"))
    assert not compiles_alone(plan)
    assert compiles_alone(plain)
    with dynamo.tag_caches("math_attention"):
        assert torch.compiler.config.cache_key_tag == "math_attention"
        with dynamo.tag_caches("flash_attention"):
            assert torch.compiler.config.cache_key_tag == "math_attention+flash_attention"
    assert torch.compiler.config.cache_key_tag == ""


@pytest.mark.slow
def test_inductor_compiles_attention_anew_under_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's caches leave the settings of attention out of their keys: without the tag, the first code answers."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, (x,) = Attention().eval(), draw()
    found = []
    for transforms in ((), ("math_attention",), ()):
        torch.compiler.reset()
        plan = Plan(backend="inductor", transforms=transforms)
        call = compile_plan(model, plan, Example((x,)), device="cpu", mode="inference").call
        found.append(any("flash" in name for name in list_kernels(call, x)))
    assert found == [True, False, True]


def test_a_choice_of_a_plug_in_holds_around_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def note() -> Iterator[None]:
        seen.append("in")
        yield
        seen.append("out")

    choice = Choice(
        "transforms",
        "noted",
        Numerics.EXACT,
        complexity=1,
        summary="calls are noted",
        required_traits=(Trait.MODULE,),
        realized_by=note,
        stage=Stage.SETTING,
    )
    monkeypatch.setitem(CHOICES, choice.key, choice)
    model, (x,) = Attention().eval(), draw()
    plan = Plan(transforms=("noted",))
    compile_plan(model, plan, Example((x,)), device="cpu", mode="inference").call(x)
    assert seen == ["in", "out"]
