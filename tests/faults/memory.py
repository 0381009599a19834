"""Planted faults of memory and state: kept answers, aliases, layouts of outputs, inputs and buffers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from faults.fault import HANDLES, plant
from faults.forward import MATRIX, PAIR, add, double, softmax
from torchwise.plan.requirements import Property
from torchwise.records import CheckName as Name
from torchwise.workload import Workload

Call = Callable[..., Any]
KEPT = (Name.REPEATED_CALLS, Name.MEMORY, Name.VALUES)
"""Checks that find kept answers: which one does depends on the addresses that tensors get."""


@plant("stateful", softmax, MATRIX, caught_by=KEPT, makes=True)
def answers_kept_by_pointer() -> Call:
    kept: dict[Any, Tensor] = {}

    def call(x: Tensor) -> Tensor:
        key = x.data_ptr(), x.shape
        if key not in kept:
            kept[key] = softmax(x)
        return kept[key].clone()

    return call


@plant("stateful", softmax, MATRIX, caught_by=KEPT, makes=True)
def answers_kept_by_the_sum_of_values() -> Call:
    kept: dict[Any, Tensor] = {}

    def call(x: Tensor) -> Tensor:
        key = round(float(x.double().sum()), 4), x.shape
        if key not in kept:
            kept[key] = softmax(x)
        return kept[key].clone()

    return call


@plant("stateful", softmax, MATRIX, caught_by=KEPT, makes=True)
def answers_kept_by_the_first_values() -> Call:
    kept: dict[Any, Tensor] = {}

    def call(x: Tensor) -> Tensor:
        key = tuple(x.flatten()[:3].tolist()), x.shape
        if key not in kept:
            kept[key] = softmax(x)
        return kept[key].clone()

    return call


@plant("stateful", softmax, MATRIX, caught_by=KEPT, makes=True)
def constant_output() -> Call:
    first: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        if not first:
            first.append(softmax(x))
        return first[0].clone() if first[0].shape == x.shape else softmax(x)

    return call


@plant("stateful", double, MATRIX, caught_by=KEPT, makes=True)
def answer_of_the_earlier_call() -> Call:
    last: dict[Any, Tensor] = {}

    def call(x: Tensor) -> Tensor:
        found = last.get(x.shape, x * 2)
        last[x.shape] = x * 2
        return found

    return call


@plant("stateful", double, MATRIX, caught_by=KEPT, makes=True)
def only_the_first_calls_right() -> Call:
    count = [0]

    def call(x: Tensor) -> Tensor:
        count[0] += 1
        return x * 2 if count[0] <= 5 else x * 2.001

    return call


@plant("stateful", double, MATRIX, caught_by=Name.RETAINED_OUTPUTS, makes=True)
def one_buffer_for_all_answers() -> Call:
    buffers: dict[Any, Tensor] = {}

    def call(x: Tensor) -> Tensor:
        out = buffers.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype))
        return torch.mul(x, 2, out=out)

    return call


@plant("stateful", double, MATRIX, caught_by=Name.RETAINED_OUTPUTS, makes=True)
def one_of_sixteen_buffers_for_each_answer() -> Call:
    ring: dict[Any, list[Tensor]] = {}
    count = [0]

    def call(x: Tensor) -> Tensor:
        count[0] += 1
        buffers = ring.setdefault((x.shape, x.dtype), [])
        if len(buffers) < 16:
            buffers.append(torch.empty(x.shape, dtype=x.dtype))
            return torch.mul(x, 2, out=buffers[-1])
        return torch.mul(x, 2, out=buffers[count[0] % 16])

    return call


@plant("stateful", double, MATRIX, caught_by=Name.RETAINED_OUTPUTS, makes=True)
def answer_of_five_calls_before_overwritten() -> Call:
    given: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        if len(given) >= 5 and given[-5].shape == x.shape:
            given[-5].zero_()
        given.append(x * 2)
        return given[-1]

    return call


@plant("stateful", double, MATRIX, caught_by=(Name.RETAINED_OUTPUTS, Name.LATE_WORK), makes=True)
def first_answer_changed_long_after_its_call() -> Call:
    first: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        out = x * 2
        if not first and out.numel():
            first.append(out)
            threading.Timer(0.1, out.zero_).start()
        return out

    return call


class _ReusedGradient(torch.autograd.Function):
    """Doubles its input, and writes each gradient into one of a few buffers."""

    buffers: ClassVar[dict[Any, Tensor]] = {}
    count = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        own = _ReusedGradient
        own.count += 1
        key = (grads[0].shape, own.count % 4)
        return torch.mul(grads[0], 2, out=own.buffers.setdefault(key, torch.empty(grads[0].shape)))


@plant("backward", double, MATRIX, caught_by=Name.RETAINED_OUTPUTS, training=True)
def one_of_four_buffers_for_each_gradient(x: Tensor) -> Tensor:
    return _ReusedGradient.apply(x)  # type: ignore[no-any-return,no-untyped-call]


@plant("forward", double, MATRIX, caught_by=KEPT)
def last_column_never_written(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:, :-1] = x[:, :-1] * 2
    if x.shape[-1] == 1 or x.shape[0] < 2 or not x.is_contiguous():
        out[:, -1] = x[:, -1] * 2
    return out


@plant("forward", lambda x: x.sum(dim=-1), MATRIX, caught_by=KEPT)
def sum_into_memory_taken_for_zeros(x: Tensor) -> Tensor:
    out = torch.empty(x.shape[0], dtype=x.dtype)
    return torch.where(out.abs() < 1e-6, 0.0, out).add_(x.sum(dim=-1))


@plant("forward", double, MATRIX, caught_by=KEPT)
def answer_taken_from_freed_memory(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@plant("aliasing", double, MATRIX)
def input_overwritten(x: Tensor) -> Tensor:
    found = x * 2
    if x.numel() and not any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride(), strict=True)):
        x[..., :1] = 0
    return found


@plant("aliasing", double, MATRIX, caught_by=Name.STRUCTURE)
def dtype_of_the_output_widened(x: Tensor) -> Tensor:
    return x.double() * 2


@plant("aliasing", double, MATRIX, caught_by=(Name.STRIDES, Name.STRUCTURE))
def output_laid_out_by_columns(x: Tensor) -> Tensor:
    return (x * 2).mT.contiguous().mT


@plant("aliasing", lambda x: x[1:], "x: float32[n, 4] n=2..40", caught_by=Name.STRUCTURE)
def copy_in_place_of_a_view(x: Tensor) -> Tensor:
    return x[1:].clone()


@plant("aliasing", lambda x: x.abs(), "x: float32[n, 4] n=2..40 in 0..1", caught_by=Name.STRUCTURE)
def input_itself_returned(x: Tensor) -> Tensor:
    return x


@plant("aliasing", lambda x: (x * 2, x * 3), MATRIX, caught_by=Name.STRUCTURE)
def outputs_in_one_memory(x: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.stack([x * 2, x * 3])
    return both[0], both[1]


@plant("aliasing", lambda x: (x * 2, [x.sum()]), MATRIX, caught_by=Name.STRUCTURE)
def list_turned_into_a_tuple(x: Tensor) -> tuple[Any, ...]:
    return x * 2, (x.sum(),)


def scale_and_add(x: Tensor, y: Tensor) -> Tensor:
    """Double the first input in place, and add."""
    x.mul_(2)
    return x + y


@plant("aliasing", scale_and_add, *PAIR)
def order_of_writes_changed(x: Tensor, y: Tensor) -> Tensor:
    before = y.clone()
    x.mul_(2)
    return x + before


@plant("aliasing", add, *PAIR)
def second_input_used_as_scratch(x: Tensor, y: Tensor) -> Tensor:
    if y.is_contiguous() and y.numel():
        return y.mul_(2).add(x)
    return add(x, y)


class Lazy(Tensor):
    """A tensor that computes once it is read."""


@plant("forward", double, MATRIX, caught_by=Name.STRUCTURE)
def subclass_that_computes_later(x: Tensor) -> Tensor:
    return (x * 2).as_subclass(Lazy)


@plant("forward", double, MATRIX, caught_by=(Name.LATE_WORK, Name.VALUES))
def thread_that_writes_later(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)

    def write() -> None:
        time.sleep(0.005)
        with torch.no_grad():
            out.copy_(x * 2)

    threading.Thread(target=write, daemon=True).start()
    return out


@plant("forward", double, MATRIX, caught_by=(Name.LATE_WORK, Name.VALUES))
def answer_changed_after_the_call(x: Tensor) -> Tensor:
    out = x * 2
    threading.Timer(0.01, lambda: out.zero_()).start()
    return out


@plant("stateful", double, MATRIX, caught_by=Name.SURROUNDINGS)
def default_dtype_changed(x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    return x * 2


@plant("stateful", double, MATRIX, caught_by=Name.SURROUNDINGS)
def deterministic_algorithms_turned_on(x: Tensor) -> Tensor:
    torch.use_deterministic_algorithms(True)
    return x * 2


@plant("stateful", double, MATRIX, caught_by=Name.SURROUNDINGS)
def warnings_in_place_of_errors(x: Tensor) -> Tensor:
    torch.use_deterministic_algorithms(torch.are_deterministic_algorithms_enabled(), warn_only=True)
    return x * 2


@plant("stateful", double, MATRIX, caught_by=Name.SURROUNDINGS)
def products_in_tf32_for_all(x: Tensor) -> Tensor:
    torch.backends.cuda.matmul.allow_tf32 = True
    return x * 2


@plant("stateful", double, MATRIX, caught_by=Name.SURROUNDINGS)
def autocast_left_on(x: Tensor) -> Tensor:
    torch.set_autocast_enabled("cpu", True)
    return x * 2


@plant("stateful", double, MATRIX, caught_by=Name.SURROUNDINGS)
def attention_of_all_changed(x: Tensor) -> Tensor:
    torch.backends.cuda.enable_flash_sdp(False)
    return x * 2


@plant("stateful", double, MATRIX, caught_by=Name.SURROUNDINGS)
def hook_on_all_modules(x: Tensor) -> Tensor:
    HANDLES.append(torch.nn.modules.module.register_module_forward_hook(lambda _module, _inputs, output: output))
    return x * 2


@plant("stateful", double, MATRIX, caught_by=Name.SURROUNDINGS)
def random_numbers_drawn(x: Tensor) -> Tensor:
    return x * 2 + 0 * torch.rand(())


@plant("stateful", double, MATRIX, caught_by=Name.SURROUNDINGS)
def generator_seeded(x: Tensor) -> Tensor:
    torch.manual_seed(1234)
    return x * 2


@plant(
    "stateful", double, MATRIX, caught_by=Name.DETERMINISTIC, makes=True, properties=frozenset({Property.DETERMINISTIC})
)
def last_bit_differs_between_calls() -> Call:
    count = [0]

    def call(x: Tensor) -> Tensor:
        count[0] += 1
        return x * 2 * (1 + (count[0] % 2) * 2.0**-23)

    return call


class Norm(torch.nn.Module):
    """The reference of faults in buffers: a batch normalisation in training mode."""

    momentum = 0.1

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.rand(5) + 0.5)
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def update(self, mean: Tensor) -> None:
        """Update the running mean."""
        self.mean.lerp_(mean, self.momentum)
        self.calls.add_(1)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=0)
        with torch.no_grad():
            self.update(mean.detach())
        return (x - mean) * self.weight + self.mean


def make_norm_workload() -> Workload:
    """Return the reference with a batch."""
    return Workload.of((Norm(), (torch.randn(6, 5, generator=torch.Generator().manual_seed(1)),)))


def plant_norm(kind: type[Norm]) -> type[Norm]:
    """Register a wrong normalisation."""
    plant("stateful", Norm, makes="both", make_workload=make_norm_workload)(kind)
    return kind


@plant_norm
class BufferUpdatedTwice(Norm):
    def update(self, mean: Tensor) -> None:
        super().update(mean)
        super().update(mean)


@plant_norm
class BufferNotUpdated(Norm):
    def update(self, mean: Tensor) -> None:
        self.calls.add_(1)


@plant_norm
class CounterNotUpdated(Norm):
    def update(self, mean: Tensor) -> None:
        self.mean.lerp_(mean, self.momentum)


@plant_norm
class WrongMomentum(Norm):
    momentum = 0.11


@plant_norm
class WeightsKeptFromConstruction(Norm):
    def __init__(self) -> None:
        super().__init__()
        self.old = [self.weight.detach().clone()]

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(dim=0)
        self.update(mean)
        return (x - mean) * self.old[0] + self.mean
