"""How the kernel of products of few rows may be cut: the outputs and threads of a program, and its reads."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SUMS = 128
"""Most sums of a thread. With more, registers go to memory."""
MAX_UNROLLED = 16
"""Most reads of a thread that begin at once. Each holds registers: with more of them, fewer programs run at a time."""
READ = 16
"""Bytes that a thread reads at once."""


@dataclass(frozen=True)
class Form:
    """How a kernel is cut.

    Attributes:
        block: outputs of a program.
        warps: of 32 threads, of a program.
        reads: those of a thread, before the threads go on to the next part of a row. They are side by side in a row of
            the weight, or in as many rows of a turned one as the block leaves room for.
    """

    block: int
    warps: int
    reads: int

    def count_columns(self, item_bytes: int) -> int:
        """Return the numbers of a row of the weight that a program reads at once."""
        return 32 * self.warps * self.reads * (READ // item_bytes)


@dataclass(frozen=True)
class Work:
    """The work of a kernel.

    Attributes:
        rows: their number.
        length: numbers of a row.
        sizes: the outputs of each product.
        item_bytes: bytes of a number of a weight.
        activation: that of the first product, by which the second is multiplied if there are two, or "".
        is_turned: whether the weights lie in memory with their outputs side by side, as those of a Conv1D of GPT-2 do.
    """

    rows: int
    length: int
    sizes: tuple[int, ...]
    item_bytes: int
    activation: str = ""
    is_turned: bool = False

    @property
    def block_rows(self) -> int:
        """The rows, and as many more as make them a power of two, as tiles are."""
        return round_up(self.rows)

    @property
    def is_gate(self) -> bool:
        """Whether the activation of one product is multiplied by another one."""
        return bool(self.activation) and len(self.sizes) == 2

    def count_programs(self, form: Form) -> int:
        """Return the programs of a kernel."""
        return sum(-(-size // form.block) for size in self.sizes[: 1 if self.activation else None])

    def is_unrolled(self, form: Form) -> bool:
        """Whether a program's loop over the parts of a row is unrolled, so that all reads begin at once."""
        parts = -(-self.length // self.find_width(form))
        reads = form.reads * (1 if self.is_turned else form.block)
        return parts * reads * (2 if self.is_gate else 1) <= MAX_UNROLLED

    def find_width(self, form: Form) -> int:
        """Return the numbers of a row of inputs that a program multiplies at once."""
        numbers = form.count_columns(self.item_bytes)
        return max(numbers // form.block, 1) if self.is_turned else numbers


def list_forms(work: Work) -> list[Form]:
    """Return the forms of a kernel that are tried, the likeliest first."""
    sizes = ((4, 4, 2), (2, 4, 2), (2, 2, 2), (4, 4, 1), (4, 8, 1), (1, 4, 2))
    turned = ((32, 8, 2), (64, 8, 2), (32, 4, 2), (64, 4, 4), (128, 8, 2), (16, 4, 2))
    found = [_fit_turned(Form(*size), work) for size in turned] if work.is_turned else []
    return list(dict.fromkeys(found or [_fit(Form(*size), work) for size in sizes]))


def _fit_turned(form: Form, work: Work) -> Form:
    """Return the same for outputs that lie side by side, of which a program has no more than there are."""
    block, warps, reads, item = form.block, form.warps, form.reads, READ // work.item_bytes
    while block > item and block >= 2 * max(work.sizes):
        block //= 2
    while reads > 1 and work.block_rows * item * reads * (2 if work.is_gate else 1) > MAX_SUMS:
        reads //= 2
    while reads > 1 and work.find_width(Form(block, warps, reads)) >= 2 * work.length:
        reads //= 2
    while warps > 1 and work.find_width(Form(block, warps, reads)) >= 2 * work.length:
        warps //= 2
    return Form(block, warps, reads)


def _fit(form: Form, work: Work) -> Form:
    """Return a form whose threads have registers for their sums, and of which none goes beyond a row."""
    block, warps, reads = form.block, form.warps, form.reads
    while reads > 1 and Form(block, warps, reads).count_columns(work.item_bytes) >= 2 * work.length:
        reads //= 2
    while warps > 1 and Form(block, warps, reads).count_columns(work.item_bytes) >= 2 * work.length:
        warps //= 2
    each = work.block_rows * (READ // work.item_bytes) * (2 if work.is_gate else 1)
    while block > 1 and each * block * reads > MAX_SUMS:
        block //= 2
    while reads > 1 and each * block * reads > MAX_SUMS:
        reads //= 2
    return Form(block, warps, reads)


def round_up(number: int) -> int:
    """Return the least power of two that is no smaller than a number of at least 1."""
    return 1 << (number - 1).bit_length()
