"""Calls of any size through buckets: right answers always, plans if verified, and nothing new after a freeze."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import torchwise
from live_decisions import make_decision
from torchwise.compile.cuda_graphs.compile_freeze import count_capture
from torchwise.errors import InputError
from torchwise.plan import EAGER, Plan
from torchwise.records import Decision
from torchwise.runtime import unwrap
from torchwise.runtime.bucketing import (
    BucketedFunction,
    BucketedModule,
    Padding,
    VerifiedPadding,
    WarmedBucket,
    apply_buckets,
    bucketed,
    counts_of,
    fit,
    verify_padding,
    warm_up,
)
from torchwise.runtime.bucketing.bucketed import DYNAMIC
from torchwise.runtime.bucketing.module import buckets_of
from torchwise.runtime.fallback_reason import Fallback, FallbackReason
from torchwise.runtime.serving import unfreeze
from torchwise.workload import Example, pytree
from torchwise.workload.identity import describe_example

THREADS = Plan(threads=torch.get_num_threads() + 1)
OTHER = Plan(threads=torch.get_num_threads() + 2)
RULE = Padding({"x": 0})
BUCKETS = (4, 8)
X = torch.randn(8, 3)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        self.sizes.append(len(x))
        if len(x) > 30:
            raise ValueError("too many for this model")
        y = self.norm(self.inner(x))
        return y, {"wide": y.t().contiguous(), "weight": self.inner.weight * 1}


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


def decision(model: Any, plan: Plan, sizes: Sequence[int] = BUCKETS) -> Decision:
    inputs = tuple(describe_example(Example((torch.randn(size, 3),))) for size in sizes)
    return replace(make_decision(model, plan, X), inputs=inputs)


def serve_buckets(net: Net, *plans: Plan) -> BucketedModule:
    proof = verify_padding(net, (X,), padding=RULE, buckets=BUCKETS)
    fast = apply_buckets(net, [decision(net, plan) for plan in plans or (THREADS,)], proof)
    assert isinstance(fast, BucketedModule)
    net.sizes.clear()
    return fast


def same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs)
    for mine, plain in zip(pytree.tensors(ours), pytree.tensors(theirs), strict=True):
        assert strides(mine) == strides(plain)


def strides(tensor: Tensor) -> list[int]:
    """The strides of dimensions longer than 1. Others have no effect."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


@torch.no_grad()
def test_a_model_that_changed_is_not_warmed_up_and_answers_by_itself(net: Net) -> None:
    fast = serve_buckets(net)
    net.register_forward_hook(lambda _module, _inputs, output: (output[0] + 1, output[1]))
    buckets_of(fast).warm(4, 2)
    assert (fast.statistics.first_calls, net.sizes) == (0, [])
    for size in (3, 4):
        x = torch.randn(size, 3)
        same(fast(x), net(x))
    assert fast.statistics.optimized == 0
    assert net.sizes == [3, 3, 4, 4], "nothing was padded"


@torch.no_grad()
def test_a_call_of_any_size_is_padded_answered_by_the_plan_and_cut_back(net: Net) -> None:
    fast = serve_buckets(net)
    for size in (1, 3, 4, 5, 8):
        x = torch.randn(size, 3)
        same(fast(x), net(x))
    assert net.sizes[::2] == [4, 4, 4, 8, 8]
    assert fast.statistics.optimized == 5
    assert not fast.statistics.original
    counts = counts_of(fast)
    assert counts.calls == {4: 3, 8: 2}
    assert counts.padded_share == pytest.approx((3 + 1 + 3) / 28)
    assert counts.sizes == {1: 1, 3: 1, 4: 1, 5: 1, 8: 1}


@torch.no_grad()
def test_an_input_as_long_as_a_bucket_is_passed_on_as_it_is() -> None:
    given: list[Tensor] = []
    note = given.append  # or the list would be state of the function, which padding changes

    def call(x: Tensor) -> Tensor:
        note(x)
        return x * 2

    fast = apply_buckets(call, decision(call, THREADS), verify_padding(call, (X,), padding=RULE, buckets=BUCKETS))
    assert isinstance(fast, BucketedFunction)
    fast(X)
    assert given[-1] is X
    same(fast(X[:3]), X[:3] * 2)
    assert len(given[-1]) == 4


def test_keyword_arguments_are_padded_too() -> None:
    def call(x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return x if mask is None else x * mask

    mask = torch.ones(8, 1)
    proof = verify_padding(call, (X,), {"mask": mask}, padding=Padding({"x": 0, "mask": 0}), buckets=BUCKETS)
    inputs = tuple(describe_example(Example((X[:size],), {"mask": mask[:size]})) for size in BUCKETS)
    fast = apply_buckets(call, replace(decision(call, THREADS), inputs=inputs), proof)
    with torch.no_grad():
        same(fast(X[:3], mask=mask[:3]), X[:3])
        same(fast(x=X[:3], mask=None), X[:3])
    assert counts_of(fast).calls == {4: 2}
    assert fast.statistics.optimized == 1


@torch.no_grad()
@pytest.mark.parametrize("args", [(), (None,), (None, True)])
def test_a_call_of_another_kind_than_the_proofs_is_answered_as_it_came(args: tuple[Any, ...]) -> None:
    """Without the mask, for example, padding changes the answer.

    Not even the original may be asked on padded inputs.
    """
    sizes: list[int] = []

    def mean(x: Tensor, mask: Tensor | None = None, negative: bool = False) -> Tensor:
        sizes.append(len(x))
        found = x.mean(0) if mask is None else (x * mask).sum(0) / mask.sum()
        return -found if negative else found

    mask = torch.ones(8, 1)
    proof = verify_padding(mean, (X, mask), padding=Padding({"x": 0, "mask": 0}), buckets=BUCKETS)
    described = [describe_example(Example((X[:size], *more))) for size in BUCKETS for more in (args, (mask[:size],))]
    for inputs in (described[1::2], described):  # the plan itself may be verified for more than padding is
        fast = apply_buckets(mean, replace(decision(mean, THREADS), inputs=tuple(inputs)), proof)
        assert isinstance(fast, BucketedFunction)
        sizes.clear()
        same(fast(X[:3], *args), mean(X[:3], *args))
        same(fast(X[:3], *args), mean(X[:3], *args))
        assert sizes == [3, 3, 3, 3]
        assert fast.statistics.original == {FallbackReason.PADDING_NOT_VERIFIED: 2}
        same(fast(X[:3], mask[:3]), mean(X[:3], mask[:3]))
        assert (fast.statistics.optimized, sizes[-2:]) == (1, [4, 3])


@torch.no_grad()
def test_what_a_failed_plan_leaves_is_answered_as_it_came(net: Net) -> None:
    fast = serve_buckets(net)
    route = buckets_of(fast).routes[0]
    assert route is not None

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("out of luck")

    fast(X[:3])
    route._calls = dict.fromkeys(route._calls, fails)
    route._last = None
    net.sizes.clear()
    same(fast(X[:3]), net(X[:3]))
    assert net.sizes == [3, 3]
    assert fast.statistics.failures == {"RuntimeError": 1}
    route.close(Fallback(FallbackReason.CLOSED, "it was wrong"))
    same(fast(X[:2]), net(X[:2]))
    assert net.sizes == [3, 3, 2, 2]


@torch.no_grad()
def test_warming_up_writes_to_no_buffer_and_not_to_the_example() -> None:
    class Counts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x: Tensor, log: Tensor) -> Tensor:
            self.calls += 1
            log += 1
            return x * 2

    net, log = Counts().eval(), torch.zeros(1)
    proof = verify_padding(net, (X, log), padding=RULE, buckets=BUCKETS)
    inputs = tuple(describe_example(Example((X[:size], log))) for size in BUCKETS)
    fast = apply_buckets(net, replace(make_decision(net, THREADS, X), inputs=inputs), proof)
    warm_up(fast)
    assert (net.calls.item(), log.item(), fast.statistics.optimized) == (0, 0, 4)


@torch.no_grad()
@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda fast: fast(torch.randn(9, 3)), FallbackReason.ABOVE_BUCKETS),
        (lambda fast: fast(torch.randn(0, 3)), FallbackReason.BELOW_BUCKETS),
        (lambda fast: torch.enable_grad()(fast)(torch.randn(3, 3)), FallbackReason.GRADIENTS_ENABLED),
        (lambda fast: torch.autocast("cpu", torch.bfloat16)(fast)(torch.randn(3, 3)), FallbackReason.AUTOCAST_ENABLED),
    ],
)
def test_what_is_not_proven_goes_to_the_original_as_it_came(net: Net, call: Any, reason: FallbackReason) -> None:
    fast = serve_buckets(net)
    call(fast)
    assert fast.statistics.original == {reason: 1}
    assert len(net.sizes) == 1
    assert net.sizes[0] not in BUCKETS


@torch.no_grad()
def test_a_change_anywhere_in_the_model_ends_padding(net: Net) -> None:
    fast = serve_buckets(net)
    net.norm.train()  # which Dispatcher does not look at, and which padding would change the answer of
    x = torch.randn(3, 3)
    expected = copy.deepcopy(net)(x)
    same(fast(x), expected)
    assert fast.statistics.original == {FallbackReason.PADDING_OUTDATED: 1}


@torch.no_grad()
def test_weights_that_lie_elsewhere_end_no_padding(net: Net) -> None:
    fast = serve_buckets(net)
    fast(torch.randn(3, 3))
    answered = fast.statistics.optimized
    net.load_state_dict({name: value + 0.5 for name, value in net.state_dict().items()}, assign=True)
    net.inner.weight.data = torch.randn_like(net.inner.weight)
    net.requires_grad_(False)
    x = torch.randn(3, 3)
    expected = copy.deepcopy(net)(x)
    same(fast(x), expected)
    assert (dict(fast.statistics.original), fast.statistics.optimized) == ({}, answered + 1)


@torch.no_grad()
def test_attributes_that_no_plan_reads_end_no_padding(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = serve_buckets(net)
    fast(torch.randn(3, 3))
    [dispatcher] = buckets_of(fast).dispatchers
    assert dispatcher.active_plan is not None
    monkeypatch.setattr(dispatcher._plan, "compiled", replace(dispatcher.active_plan, reads=lambda: {(): {"scale"}}))
    fast(torch.randn(3, 3))
    for number in range(3):
        net.last_request = number
        fast(torch.randn(3, 3))
    assert dict(fast.statistics.original) == {}
    net.scale = 3.0
    fast(torch.randn(3, 3))
    assert dict(fast.statistics.original) == {FallbackReason.PADDING_OUTDATED: 1}


def test_gradients_flow_past_padding(net: Net) -> None:
    serve_buckets(net)(X[:3])[0].sum().backward()
    assert net.inner.weight.grad is not None


@torch.no_grad()
def test_the_models_own_errors_are_the_callers(net: Net) -> None:
    fast = serve_buckets(net)
    with pytest.raises(ValueError, match="too many for this model"):
        fast(torch.randn(31, 3))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fast(torch.randn(3, 5))
    with pytest.raises(TypeError):
        fast()
    assert fast.statistics.original[FallbackReason.PADDING_UNFIT] == 1


@torch.no_grad()
def test_an_answer_that_cannot_be_cut_is_made_by_the_original() -> None:
    """A model may answer otherwise for some values, which no verification on examples sees."""

    def call(x: Tensor) -> Tensor:
        return x * 2 if x[0, 0] < 100 else x[1:] * 2

    fast = apply_buckets(call, decision(call, THREADS), verify_padding(call, (X,), padding=RULE, buckets=BUCKETS))
    odd = X[:3] + 200
    same(fast(odd), odd[1:] * 2)
    assert fast.statistics.original == {FallbackReason.PADDING_FAILED: 1}


@torch.no_grad()
def test_buckets_have_plans_of_their_own_and_eager_is_not_padded_for(net: Net) -> None:
    fast = serve_buckets(net, EAGER, OTHER)
    for size in (3, 6):
        same(fast(X[:size]), net(X[:size]))
    assert net.sizes[::2] == [3, 8]
    assert fast.statistics.original == {FallbackReason.EAGER_BUCKET: 1}
    assert fast.decision.plan == OTHER
    assert "4, 8" in repr(fast)


@torch.no_grad()
def test_a_stale_decision_serves_nothing(net: Net) -> None:
    stale = decision(net, THREADS)
    proof = verify_padding(net, (X,), padding=RULE, buckets=BUCKETS)
    net.extra = torch.nn.Linear(2, 2)
    fast = apply_buckets(net, stale, proof)
    same(fast(X[:3]), net(X[:3]))
    assert fast.statistics.optimized == 0


@torch.no_grad()
def test_all_buckets_are_warmed_and_then_nothing_is_new(net: Net) -> None:
    heard, sizes = list[WarmedBucket](), list[int]()
    net.sizes = SimpleNamespace(append=sizes.append, clear=sizes.clear)  # of a list, the state would be put back
    fast = serve_buckets(net)
    assert counts_of(fast).compiles is None
    warm_up(fast, heard.append)
    assert [(w.bucket, w.number, w.total) for w in heard] == [(8, 1, 2), (4, 2, 2)]
    assert set(sizes) == {4, 8}
    for size in range(1, 9):
        fast(torch.randn(size, 3))
    assert not fast.statistics.original
    counts = counts_of(fast)
    assert (counts.compiles, counts.captures, counts.first_calls) == (0, 0, 0)
    strided = torch.randn(3, 8).t()  # of a bucket's size, but of other strides
    same(fast(strided), net(strided))
    assert fast.statistics.original == {FallbackReason.INPUTS_NOT_VERIFIED: 1}
    assert counts_of(fast).snapshot()["compiles_since_freeze"] == 0
    count_capture()
    assert counts_of(fast).snapshot()["captures_since_freeze"] == 1


@torch.no_grad()
def test_freezing_without_warming_leaves_all_to_the_original(net: Net) -> None:
    fast = serve_buckets(net)
    torchwise.freeze(fast)
    same(fast(X[:3]), net(X[:3]))
    assert fast.statistics.original == {FallbackReason.FROZEN: 1}


@torch.no_grad()
def test_a_first_call_after_the_freeze_would_show(net: Net) -> None:
    fast = serve_buckets(net)
    warm_up(fast, freeze=False)
    assert counts_of(fast).first_calls is None
    torchwise.freeze(fast)
    assert counts_of(fast).first_calls == 0
    fast.statistics.first_calls += 2  # which a frozen plan has none of
    assert counts_of(fast).first_calls == counts_of(fast).snapshot()["first_calls_since_freeze"] == 2


@torch.no_grad()
def test_unfrozen_all_buckets_take_what_is_new_again(net: Net) -> None:
    fast = serve_buckets(net)
    torchwise.freeze(fast)
    fast(X[:3])
    unfreeze(fast)
    assert counts_of(fast).first_calls is counts_of(fast).captures is None
    same(fast(X[:3]), net(X[:3]))
    assert (fast.statistics.original, fast.statistics.optimized) == ({FallbackReason.FROZEN: 1}, 1)


@torch.no_grad()
def test_it_is_the_model_copied_pickled_and_unwrapped(net: Net) -> None:
    fast = serve_buckets(net)
    assert list(fast.state_dict()) == list(net.state_dict())
    assert unwrap(fast) is net
    for copied in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        same(copied(X[:3]), net(X[:3]))
        assert counts_of(copied).calls == {4: 1}
    fast.train()
    assert net.training


@torch.no_grad()
def test_a_copy_has_the_canary_and_what_was_given_up(net: Net) -> None:
    proof = verify_padding(net, (X,), padding=RULE, buckets=BUCKETS)
    plans = [decision(net, THREADS, (4,)), decision(net, OTHER, (8,))]
    fast = apply_buckets(net, plans, proof, canary=1)
    buckets_of(fast).routes[1].close(Fallback(FallbackReason.CANARY_MISMATCH, "it is wrong"))
    for copied in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        same(copied(X[:3]), net(X[:3]))
        same(copied(X), net(X))
        assert (copied.statistics.optimized, copied.statistics.compared) == (1, 1)
        assert copied.statistics.original == {FallbackReason.CANARY_MISMATCH: 1}


@torch.no_grad()
def test_a_copy_of_what_changed_since_the_proof_pads_nothing(net: Net) -> None:
    fast = serve_buckets(net)
    net.inner = torch.nn.Linear(3, 3)
    copied = copy.deepcopy(fast)
    same(copied(X[:3]), net(X[:3]))
    assert copied.statistics.original == {FallbackReason.PADDING_OUTDATED: 1}


@torch.no_grad()
def test_threads_get_their_own_answers(net: Net) -> None:
    fast = serve_buckets(net)
    warm_up(fast)
    wrong: list[int] = []

    def ask(seed: int) -> None:
        for size in (1, 2, 3, 5, 7, 8, 9) * 5:
            x = torch.full((size, 3), float(seed))
            if not torch.allclose(fast(x)[0], net(x)[0], atol=1e-5):
                wrong.append(size)

    threads = [threading.Thread(target=torch.no_grad()(ask), args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.no_grad()
def test_sizes_beyond_every_bucket_take_no_room(net: Net) -> None:
    fast = serve_buckets(net)
    for size in range(9, 31):
        fast(torch.randn(size, 3))
    counts = counts_of(fast)
    assert counts.beyond == 22
    assert counts.sizes == {16: 8, 32: 14}


@pytest.mark.parametrize(("plans", "said"), [((THREADS,) * 3, "3 decisions for 2 buckets"), ((), "0 decisions")])
def test_decisions_that_do_not_fit_the_buckets_are_refused(net: Net, plans: tuple[Plan, ...], said: str) -> None:
    proof = verify_padding(net, (X,), padding=RULE, buckets=BUCKETS)
    with pytest.raises(InputError, match=said):
        apply_buckets(net, [decision(net, plan) for plan in plans], proof)


def test_only_what_pads_is_warmed_or_counted(net: Net) -> None:
    with pytest.raises(InputError, match="it is of type Net"):
        warm_up(net)
    with pytest.raises(InputError, match="it is of type OptimizedModule"):
        counts_of(torchwise.apply(net, decision(net, THREADS)))


@dataclass
class Found:
    decision: Decision


class Tuning:
    """Stands in for `torchwise.tune`: decides for the threads plan, and keeps the requests."""

    def __init__(self) -> None:
        self.asked: list[list[Example]] = []

    def __call__(self, model: Any, *, examples: list[Example], **options: Any) -> Found:
        self.asked.append(examples)
        sizes = [len(example.args[0]) for example in examples]
        return Found(decision(model, Plan(threads=THREADS.threads + len(self.asked)), sizes))


SIZES = {1: 1, 2: 5, 4: 4, 6: 1, 8: 2}


@torch.no_grad()
def test_plans_are_tuned_on_padded_inputs_with_the_weight_of_their_bucket(net: Net) -> None:
    tune = Tuning()
    fast = bucketed(net, (X,), padding=RULE, sizes=SIZES, count=2, tune=tune)
    (examples,) = tune.asked
    assert [(len(e.args[0]), e.weight) for e in examples] == [(4, 10), (8, 3)]
    for example, size in zip(examples, (2, 8), strict=True):
        (given,) = example.args
        assert bool((given[:size] != 0).all())
        assert bool((given[size:] == 0).all())
    same(fast(X[:5]), net(X[:5]))
    assert fast.statistics.optimized == 1


@torch.no_grad()
def test_a_plan_for_each_bucket_is_tuned_by_itself(net: Net) -> None:
    tune = Tuning()
    fast = bucketed(net, (X,), padding=RULE, sizes=SIZES, buckets=BUCKETS, plan_per_bucket=True, tune=tune)
    assert [len(examples) for examples in tune.asked] == [1, 1]
    warm_up(fast)
    fast(X[:2]), fast(X[:7])
    assert fast.statistics.original == {}
    plans = [made.plan.threads for made in fast._dispatcher.decisions]
    assert plans == [THREADS.threads + 1, THREADS.threads + 2]


def test_no_size_within_the_rule_is_refused(net: Net) -> None:
    with pytest.raises(InputError, match="sizes from 9 to 9 came, but the rule pads from 1 to 8"):
        bucketed(net, (X,), padding=Padding({"x": 0}, most=8), sizes=[9], tune=Tuning())


@torch.no_grad()
def test_what_the_sizes_speak_for_is_chosen(net: Net) -> None:
    fast, choice = fit(net, (X,), padding=RULE, sizes=[3, 8], tune=Tuning())
    assert (choice.kind, choice.sizes) == ("static", (3, 8))
    assert not isinstance(fast, BucketedModule)
    same(fast(X[:3]), net(X[:3]))
    assert fast.statistics.optimized == 1
    fast, choice = fit(net, (X,), padding=RULE, sizes=range(1, 9), count=4, tune=Tuning())
    assert choice.kind == "buckets"
    same(fast(X[:3]), net(X[:3]))
    assert counts_of(fast).calls == {choice.sizes[1]: 1}


@torch.no_grad()
def test_a_rule_that_is_refused_is_not_served() -> None:
    def mean(x: Tensor) -> Tensor:
        return x.mean(0)

    tune = Tuning()
    fast, choice = fit(mean, (X,), padding=RULE, sizes=range(1, 9), count=4, tune=tune)
    assert choice.kind == "dynamic"
    assert "changes the answer: output is off by" in choice.reason
    assert [len(e.args[0]) for e in tune.asked[0]] == [1, 4, 8]
    same(fast(X[:3]), mean(X[:3]))


def test_a_proof_is_data(net: Net) -> None:
    proof = verify_padding(net, (X,), padding=RULE, buckets=BUCKETS)
    copied = pickle.loads(pickle.dumps(proof))
    assert isinstance(copied, VerifiedPadding)
    assert copied.padding == proof.padding
    assert copied.padding.outputs == {"[0]": (0,), "[1]['wide']": (1,)}


class Masked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 24)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.inner(x).chunk(3, -1)
        scores = (q @ k.transpose(1, 2)).masked_fill(mask[:, None] == 0, float("-inf"))
        return scores.softmax(-1) @ v


@pytest.mark.slow
@pytest.mark.usefixtures("brief_searches")
@pytest.mark.nightly
def test_inductor_serves_every_size_and_compiles_nothing_after_the_freeze(tmp_path: Any) -> None:
    model = Masked().eval()
    x, mask = torch.randn(2, 16, 8), torch.ones(2, 16, dtype=torch.long)
    rule, only = Padding({"x": 1, "mask": 1}), (Plan(backend="inductor"),)
    store = str(tmp_path / "store.db")
    tuned = bucketed(
        model,
        (x, mask),
        padding=rule,
        sizes=range(1, 17),
        count=2,
        plans=only,
        effort="quick",
        store=store,
        progress=False,
    )
    assert tuned._dispatcher.verified.buckets == (8, 16)
    # Whether the plan pays depends on the machine. It is served here in any case.
    forced = replace(make_decision(model, only[0], x), inputs=tuned.decision.inputs)
    fast = apply_buckets(model, forced, tuned._dispatcher.verified)
    warm_up(fast)
    for grad_mode in (torch.no_grad, torch.inference_mode):
        with grad_mode():
            for size in range(1, 18):
                given = (torch.randn(2, size, 8), torch.ones(2, size, dtype=torch.long))
                torch.testing.assert_close(fast(*given), model(*given))
    counts = counts_of(fast)
    assert (counts.compiles, counts.first_calls, counts.beyond) == (0, 0, 2)
    assert fast.statistics.original == {FallbackReason.ABOVE_BUCKETS: 2}
    assert fast.statistics.optimized == 32 + 4


@torch.no_grad()
def test_the_plans_of_all_buckets_count_in_one_place(net: Net) -> None:
    proof = verify_padding(net, (X,), padding=RULE, buckets=BUCKETS)
    fast = apply_buckets(net, [decision(net, THREADS, (4,)), decision(net, OTHER, (8,))], proof, canary=1)
    for size in (3, 7, 4, 8):
        fast(torch.randn(size, 3))
    assert (fast.statistics.optimized, fast.statistics.compared, fast.statistics.first_calls) == (4, 4, 2)
    assert fast.statistics.mismatched == 0


@pytest.mark.parametrize(
    ("options", "plans"), [({}, DYNAMIC), ({"plans": (THREADS,)}, (THREADS,)), ({"allow": "exact"}, None)]
)
def test_where_one_plan_is_to_serve_every_size_no_other_is_sought(options: dict[str, Any], plans: Any) -> None:
    def cumulate(x: Tensor) -> Tensor:
        return x.cumsum(0)

    asked: list[Any] = []

    def tune(model: Any, *, examples: Sequence[Example], **given: Any) -> Found:
        asked.append(given.get("plans"))
        return Found(decision(model, THREADS))

    _, choice = fit(cumulate, (torch.randn(99, 3),), padding=RULE, sizes=range(1, 100), count=1, tune=tune, **options)
    assert choice.kind == "dynamic"
    assert asked == [plans]


class Shown(Net):
    def extra_repr(self) -> str:
        return "mine"

    def forward(self, x: Tensor) -> Any:
        return super().forward(x)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return super().state_dict(*args, **kwargs)


@torch.no_grad()
def test_methods_of_the_wrapper_stay_whichever_the_model_overrides() -> None:
    fast = serve_buckets(Shown().eval())
    text = repr(fast)
    assert f"buckets: 4, 8; plan: {THREADS}" in text
    assert "mine" not in text.splitlines()[0]
    fast.forward(X[:3])
    assert counts_of(fast).calls == {4: 1}
    assert not {"extra_repr", "forward", "state_dict"} & set(vars(type(fast)))


@torch.no_grad()
def test_statistics_are_data_without_a_circle(net: Net) -> None:
    fast = serve_buckets(net)
    fast(X[:3])
    assert asdict(fast.statistics)["optimized"] == 1
    counts = counts_of(fast)
    assert copy.deepcopy(counts) == pickle.loads(pickle.dumps(counts)) == counts
    assert "Statistics" not in str(pickle.dumps(counts))


class Nested(torch.nn.Module):
    """Calls its own wrapper, if there is one, with rows of the size of a bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.inner and len(x) < 8:
            x = x + self.inner[0](torch.full((8, 3), 2.0))[: len(x)] * 0
        return x * 3


@torch.no_grad()
def test_a_call_amid_a_padded_call_has_answers_of_its_own() -> None:
    """The plan of the larger bucket is not verified for it, and falls back."""
    net = Nested().eval()
    verified = verify_padding(net, (X,), padding=RULE, buckets=BUCKETS)
    fast = apply_buckets(net, [decision(net, THREADS, (4,)), decision(net, OTHER, (4,))], verified)
    net.inner.append(fast)
    same(fast(X[:3]), X[:3] * 3)
    assert set(fast.statistics.original) == {FallbackReason.INPUTS_NOT_VERIFIED}
    assert fast.statistics.optimized == 1
    assert fast.statistics.failures == {}


@torch.no_grad()
def test_a_padded_call_goes_on_after_another_within_it(net: Net) -> None:
    fast = serve_buckets(net)
    buckets, seen = buckets_of(fast), []
    outer = ((X[:3],), {})

    def call_within(*args: Any) -> Tensor:
        buckets._call_route(lambda *_: seen.append(buckets._unpadded.call), ((X[:2],), {}), args, {})  # type: ignore[arg-type]
        seen.append(buckets._unpadded.call)
        return X

    buckets._call_route(call_within, outer, (X,), {})  # type: ignore[arg-type]
    assert seen[0] is not outer
    assert seen[1] is outer
    assert buckets._unpadded.call is None


@torch.no_grad()
def test_calls_are_counted_from_when_all_buckets_are_frozen(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = serve_buckets(net, THREADS, OTHER)
    warm_up(fast, freeze=False)
    last, seen = buckets_of(fast).dispatchers[-1], []
    set_frozen = last.set_frozen

    def call_and_set(frozen: bool) -> None:
        seen.append(fast.statistics.at_freeze)
        fast.statistics.first_calls += 1  # of a call in another thread
        set_frozen(frozen)

    monkeypatch.setattr(last, "set_frozen", call_and_set)
    torchwise.freeze(fast)
    assert seen == [None]
    assert counts_of(fast).first_calls == 0
    fast.statistics.first_calls += 1
    assert counts_of(fast).first_calls == 1
    count_capture()
    monkeypatch.undo()
    torchwise.freeze(fast)
    assert (counts_of(fast).first_calls, counts_of(fast).captures) == (0, 1)
