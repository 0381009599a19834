"""Calling a model that draws random numbers with a generator of its own: the program's stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from torchwise.compile import compile_plan
from torchwise.compile.aot import Loader, Maker
from torchwise.errors import UnsupportedError
from torchwise.plan import Plan
from torchwise.runtime.background.first_call import isolate_rng, warm_up_plan
from torchwise.workload import Example, Workload

X = torch.randn(3, 8)
DRAWING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "randint": lambda x: torch.ops.aten.randint.low_out(3, 5, (3, 8), out=torch.empty(3, 8, dtype=torch.int64)),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "multinomial": lambda x: torch.multinomial(x.sigmoid(), 2),
    "normal": lambda x: torch.normal(x, 1.0),
    "in place": lambda x: x.clone().uniform_(),
}


@pytest.mark.parametrize("name", DRAWING)
def test_the_programs_generator_stays_where_it_was(name: str) -> None:
    before = torch.get_rng_state()
    right = DRAWING[name](X)
    assert not torch.equal(torch.get_rng_state(), before)
    before = torch.get_rng_state()
    with isolate_rng("cpu"):
        found = DRAWING[name](X)
    assert torch.equal(torch.get_rng_state(), before)
    assert (found.shape, found.dtype, found.device) == (right.shape, right.dtype, right.device)


def test_numbers_lie_where_an_operator_draws_them() -> None:
    """An index made of numbers from elsewhere would end the program."""
    with isolate_rng("cpu"):
        found = DRAWING["randint"](X)
    assert set(found.flatten().tolist()) == {3, 4}


@pytest.mark.parametrize("call", [torch.rand_like, lambda x: torch.native_dropout(x, 0.5, True)])
def test_what_takes_no_generator_is_refused(call: Callable[[torch.Tensor], torch.Tensor]) -> None:
    before = torch.get_rng_state()
    with pytest.raises(UnsupportedError, match="takes no generator"), isolate_rng("cpu"):
        call(X)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_draws_nothing_is_as_it_is() -> None:
    q = torch.randn(1, 2, 4, 8)
    right = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    with isolate_rng("cpu"):
        found = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        product = torch.nn.functional.gelu(X) @ X.T
    assert torch.equal(found, right)
    assert torch.equal(product, torch.nn.functional.gelu(X) @ X.T)


def test_other_threads_see_nothing_of_it() -> None:
    from torch.utils._python_dispatch import is_in_torch_dispatch_mode

    with isolate_rng("cpu"):
        with ThreadPoolExecutor(1) as pool:
            assert not pool.submit(is_in_torch_dispatch_mode).result()
            before = torch.get_rng_state()
            pool.submit(torch.rand, 3).result()
        assert not torch.equal(torch.get_rng_state(), before)


def test_a_plan_that_must_see_the_original_run_is_left_alone() -> None:
    """To see it, generators are put back: the program's draws meanwhile would come again."""
    plan, example = Plan(backend="inductor", memory_format="channels_last"), Example((torch.randn(2, 3, 4, 4),))
    with pytest.raises(UnsupportedError, match="before its first call"):
        warm_up_plan(noisy, plan, lambda call, _: call, Workload(noisy, (example,)), "cpu")


def noisy(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + torch.rand_like(x)


@pytest.mark.slow
def test_compiled_code_draws_nothing_either() -> None:
    plan, example, maker = Plan(backend="inductor"), Example((X,)), Maker()
    with torch.no_grad():
        compile_plan(noisy, plan, example, device="cpu", mode="inference", backend=maker).call(X)
        loader = Loader(maker.made)
        ready = compile_plan(noisy, plan, example, device="cpu", mode="inference", backend=loader)
        torch.manual_seed(5)
        before = torch.get_rng_state()
        warm_up_plan(noisy, plan, loader, Workload(noisy, (example,)), "cpu")
        assert torch.equal(torch.get_rng_state(), before)
        ready.call(X)  # and it would have drawn
        assert not torch.equal(torch.get_rng_state(), before)
