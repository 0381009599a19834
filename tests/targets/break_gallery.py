"""Programs that break the graph, each beside what it becomes when its mend is applied.

A line that breaks ends in `# breaks: <class of mend>`. `mended` is the program with the mend's text followed; `setting`
says that the mend's setting alone takes the break away, too.
"""

from __future__ import annotations

import bisect
import copy
import io
import logging
import statistics
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)
HISTORY: dict[str, Any] = {}
SEEN: set[float] = set()
LOG = io.StringIO()
GRU = nn.GRU(3, 3)
CELL = nn.GRUCell(3, 3)
CELL.load_state_dict({name.removesuffix("_l0"): value for name, value in GRU.state_dict().items()})


@dataclass(frozen=True)
class Snippet:
    """A broken program and the mended one; `same` where both answer alike, for the given input."""

    broken: Callable[[Tensor], Any]
    mended: Callable[[Tensor], Any]
    same: bool = True
    setting: bool = False
    library: bool = False

    @property
    def name(self) -> str:
        return self.broken.__name__


def print_within_a_block(x: Tensor) -> Tensor:
    with memoryless():
        y = x + 1
        print("in a block")  # breaks: print
    return y * 2


def print_left_out(x: Tensor) -> Tensor:
    with memoryless():
        y = x + 1
        if not torch.compiler.is_compiling():
            print("in a block")
    return y * 2


class memoryless:
    def __enter__(self) -> memoryless:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def print_alone(x: Tensor) -> Tensor:
    y = x.sin()
    print("alone", end="\r")  # breaks: print
    return y.cos()


def print_gone(x: Tensor) -> Tensor:
    return x.sin().cos()


def log_and_item(x: Tensor) -> Tensor:
    logger.debug("shape %s", x.shape)  # breaks: logging
    scale = x.abs().max().item()  # breaks: item
    return x / scale


def log_and_tensor(x: Tensor) -> Tensor:
    if not torch.compiler.is_compiling():
        logger.debug("shape %s", x.shape)
    scale = x.abs().max()
    return x / scale


def item_in_a_loop(x: Tensor) -> Tensor:
    total = 0.0
    for row in x.unbind(0):
        total = total + float(row * 2)  # breaks: item
    return x * total


def tensor_in_a_loop(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for row in x.unbind(0):
        total = total + row * 2
    return x * total


def leave_a_loop(x: Tensor) -> Tensor:
    for _ in range(5):
        if x.sum() > 20:  # breaks: branch
            break
        x = x * 2
    return x


def hold_in_a_loop(x: Tensor) -> Tensor:
    for _ in range(5):
        x = torch.where(x.sum() > 20, x, x * 2)
    return x


def double_until_large(x: Tensor) -> Tensor:
    while x.sum() < 100:  # breaks: while
        x = x * 2
    return x + 1


def double_by_where(x: Tensor) -> Tensor:
    for _ in range(10):
        x = torch.where(x.sum() < 100, x * 2, x)
    return x + 1


def branch_in_a_helper(x: Tensor) -> Tensor:
    return flip(x.sin()) + 1


def flip(x: Tensor) -> Tensor:
    return -x if bool(x.mean() > 0) else x  # breaks: branch


def branch_chosen(x: Tensor) -> Tensor:
    y = x.sin()
    return torch.where(y.mean() > 0, -y, y) + 1


def costly_branch(x: Tensor) -> Tensor:
    if x.mean() > 0:  # breaks: branch
        return x.exp().sum(0)
    return x.sum(0)


def costly_branch_as_cond(x: Tensor) -> Tensor:
    y: Tensor = torch.cond(x.mean() > 0, lambda x: x.exp().sum(0), lambda x: x.sum(0), (x,))
    return y


def compare(x: Tensor) -> Tensor:
    return x * 2 if torch.allclose(x, x.round()) else x / 2  # breaks: comparison


def compare_elements(x: Tensor) -> Tensor:
    return torch.where(torch.isclose(x, x.round()).all(), x * 2, x / 2)


def mask_then_item(x: Tensor) -> Tensor:
    kept = x[x > 1]  # breaks: mask
    return x - kept.sum()


def mask_by_where(x: Tensor) -> Tensor:
    return x - torch.where(x > 1, x, 0).sum()


def indices(x: Tensor) -> Tensor:
    return torch.nonzero(x - 1).sum()  # breaks: nonzero


def indices_of_a_size(x: Tensor) -> Tensor:
    found = torch.nonzero_static(x - 1, size=3, fill_value=0)
    return found.sum()


def distinct(x: Tensor) -> Tensor:
    return torch.unique(x.round()).sum()  # breaks: unique


def distinct_by_sort(x: Tensor) -> Tensor:
    ordered = torch.sort(x.round()).values
    fresh = torch.cat([torch.ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])
    return torch.where(fresh, ordered, 0).sum()


def repeat_rows(x: Tensor) -> Tensor:
    return x.repeat_interleave(torch.tensor([1, 2, 1]))  # breaks: repeat_interleave


def repeat_by_index(x: Tensor) -> Tensor:
    counts = torch.tensor([1, 2, 1])
    return x[torch.searchsorted(counts.cumsum(0), torch.arange(4), right=True)]


def one_hot(x: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(x.long()).sum()  # breaks: one_hot


def one_hot_of_a_size(x: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(x.long(), num_classes=5).sum()


def warn(x: Tensor) -> Tensor:
    y = x + 1
    warnings.warn("careful")  # noqa: B028  # breaks: warning
    return y * 2


def warn_left_out(x: Tensor) -> Tensor:
    y = x + 1
    if not torch.compiler.is_compiling():
        warnings.warn("careful")  # noqa: B028
    return y * 2


def measure_time(x: Tensor) -> Tensor:
    start = time.perf_counter()  # breaks: clock
    y = x.sin()
    HISTORY["seconds"] = time.perf_counter() - start  # breaks: clock
    return y.cos()


def skip_time(x: Tensor) -> Tensor:
    return x.sin().cos()


def draw_by_numpy(x: Tensor) -> Tensor:
    return x + np.random.rand()  # breaks: random


def draw_as_tensor(x: Tensor) -> Tensor:
    return x + torch.rand((), device=x.device)


def store_values(x: Tensor) -> Tensor:
    y = x * 2
    HISTORY["loss"] = float(y.sum())  # breaks: item
    SEEN.add(y.max().item())  # breaks: item
    return y + 1


def return_values(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y = x * 2
    return y + 1, y.sum(), y.max()


@torch.compiler.disable
def triple(x: Tensor) -> Tensor:
    return x * 3


def calls_disabled(x: Tensor) -> Tensor:
    return triple(x.sin()).cos()  # breaks: disabled


def calls_enabled(x: Tensor) -> Tensor:
    return (x.sin() * 3).cos()


def checksum(x: Tensor) -> Tensor:
    return x * (zlib.crc32(b"seed") % 7)  # breaks: opaque


SUM = zlib.crc32(b"seed") % 7


def checksum_beforehand(x: Tensor) -> Tensor:
    return x * SUM


def interp_by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.interp(x.numpy(), (0.0, 2.0), (0.0, 1.0))).float() + 1  # breaks: numpy


@torch.library.custom_op("break_gallery::interp", mutates_args=())
def interp(x: Tensor) -> Tensor:
    return torch.from_numpy(np.interp(x.numpy(), (0.0, 2.0), (0.0, 1.0))).float()


@interp.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def interp_by_operator(x: Tensor) -> Tensor:
    return interp(x) + 1


def count_and_print() -> Iterator[int]:
    for i in range(3):
        print(i, end="\r")  # breaks: print
        yield i


def from_a_generator(x: Tensor) -> Tensor:
    return x * sum(count_and_print())


def from_a_quiet_generator(x: Tensor) -> Tensor:
    return x * sum(range(3))


def scale_in_try(x: Tensor) -> Tensor:
    try:
        values = x.tolist()  # breaks: tolist
    except RuntimeError:
        values = [1.0]
    return x * values[0]


def scale_by_index(x: Tensor) -> Tensor:
    return x * x[0]


def recurrent(x: Tensor) -> Tensor:
    y: Tensor = GRU(x.view(1, 1, 3))[0].view(3)  # breaks: recurrent
    return y * 2


def recurrent_by_cell(x: Tensor) -> Tensor:
    y: Tensor = CELL(x.view(1, 3)).view(3)
    return y * 2


def largest_of_a_list(x: Tensor) -> Tensor:
    return sorted([x.sum(), x.max(), x.min()])[-1]  # breaks: sort


def largest_of_a_stack(x: Tensor) -> Tensor:
    return torch.sort(torch.stack([x.sum(), x.max(), x.min()])).values[-1]


def median_by_library(x: Tensor) -> Tensor:
    return x - statistics.median([x[0], x[1], x[2]])  # breaks: sort


def median_of_a_stack(x: Tensor) -> Tensor:
    return x - torch.sort(torch.stack([x[0], x[1], x[2]])).values[1]


def copy_deeply(x: Tensor) -> Tensor:
    return copy.deepcopy(x) + 1  # breaks: copy


def clone_tensor(x: Tensor) -> Tensor:
    return x.clone() + 1


def debug(x: Tensor) -> Tensor:
    y = x + 1
    breakpoint()  # breaks: breakpoint
    return y * 2


def not_debugged(x: Tensor) -> Tensor:
    return (x + 1) * 2


def learns(x: Tensor) -> Tensor:
    w = x.clone().detach().requires_grad_()  # breaks: backward
    (w * w).sum().backward()  # breaks: backward
    return x * 2


def loss_alone(x: Tensor) -> Tensor:
    w = x.clone().detach()
    return (w * w).sum()


def write_log(x: Tensor) -> Tensor:
    y = x + 1
    LOG.write("one line\n")  # breaks: files
    return y * 2


def skip_log(x: Tensor) -> Tensor:
    return (x + 1) * 2


def bisect_list(x: Tensor) -> Tensor:
    return x * bisect.bisect([1, 2, 3], x.max())  # breaks: opaque


def search_tensors(x: Tensor) -> Tensor:
    return x * torch.searchsorted(torch.tensor([1.0, 2.0, 3.0]), x.max(), right=True)


SNIPPETS = (
    Snippet(print_within_a_block, print_left_out, setting=True),
    Snippet(print_alone, print_gone),
    Snippet(log_and_item, log_and_tensor, setting=True),
    Snippet(item_in_a_loop, tensor_in_a_loop, setting=True),
    Snippet(leave_a_loop, hold_in_a_loop),
    Snippet(double_until_large, double_by_where),
    Snippet(branch_in_a_helper, branch_chosen),
    Snippet(costly_branch, costly_branch_as_cond),
    Snippet(compare, compare_elements),
    Snippet(mask_then_item, mask_by_where, setting=True),
    Snippet(indices, indices_of_a_size, setting=True),
    Snippet(distinct, distinct_by_sort, setting=True),
    Snippet(repeat_rows, repeat_by_index, setting=True),
    Snippet(one_hot, one_hot_of_a_size),
    Snippet(warn, warn_left_out, setting=True),
    Snippet(measure_time, skip_time),
    Snippet(draw_by_numpy, draw_as_tensor, same=False),
    Snippet(store_values, return_values, same=False),
    Snippet(calls_disabled, calls_enabled),
    Snippet(checksum, checksum_beforehand),
    Snippet(interp_by_numpy, interp_by_operator),
    Snippet(from_a_generator, from_a_quiet_generator),
    Snippet(scale_in_try, scale_by_index),
    Snippet(recurrent, recurrent_by_cell, setting=True),
    Snippet(largest_of_a_list, largest_of_a_stack),
    Snippet(median_by_library, median_of_a_stack, library=True),
    Snippet(copy_deeply, clone_tensor),
    Snippet(debug, not_debugged),
    Snippet(learns, loss_alone, same=False),
    Snippet(write_log, skip_log),
    Snippet(bisect_list, search_tensors),
)
"""Mixtures (`log_and_item`), loops (`item_in_a_loop`, `leave_a_loop`) and libraries (`median_by_library`)."""
