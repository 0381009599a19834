"""How the kernel of products of few rows may be cut: the rows, outputs and threads of a program, and its reads."""

from __future__ import annotations

from dataclasses import dataclass

MAX_SUMMED_ROWS = 8
"""Rows that are multiplied number by number. Tensor cores multiply more of them: tiles of at least `MIN_TILE` rows."""
MAX_ROWS = 128
"""With more rows, arithmetic and not reading takes the time, for which libraries are made."""
MIN_TILE = 16
MAX_SHARED = 200 << 10
"""Bytes of a program that are read ahead. An H100 has 227 KiB of shared memory for a program."""
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
class DotForm:
    """How a kernel is cut that multiplies by tensor cores.

    Attributes:
        rows: of a program.
        block: outputs of a program.
        width: numbers of a row that are read at once.
        warps: of 32 threads, of a program. Each multiplies a part of those numbers, and their sums are added last. So
            each waits for fewer sums before its own.
        stages: times the width that is read ahead.
    """

    rows: int
    block: int
    width: int
    warps: int
    stages: int

    def count_bytes(self, row_bytes: int, weight_bytes: int) -> int:
        """Return the bytes that are read ahead, from those of a number of a row and of a weight."""
        return self.stages * self.width * (self.rows * row_bytes + self.block * weight_bytes)


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
        row_bytes: bytes of a number of a row.
    """

    rows: int
    length: int
    sizes: tuple[int, ...]
    item_bytes: int
    activation: str = ""
    is_turned: bool = False
    row_bytes: int = 4

    @property
    def block_rows(self) -> int:
        """The rows, and as many more as make them a power of two, as tiles are, and those of tensor cores."""
        return round_up(self.rows) if self.rows <= MAX_SUMMED_ROWS else max(round_up(self.rows), MIN_TILE)

    @property
    def is_gate(self) -> bool:
        """Whether the activation of one product is multiplied by another one."""
        return bool(self.activation) and len(self.sizes) == 2

    def count_programs(self, form: Form | DotForm) -> tuple[int, int]:
        """Return the programs of a kernel: for all outputs, and for all rows."""
        blocks = sum(-(-size // form.block) for size in self.sizes[: 1 if self.activation else None])
        return blocks, -(-self.rows // form.rows) if isinstance(form, DotForm) else 1

    def is_unrolled(self, form: Form | DotForm) -> bool:
        """Whether a program's loop over the parts of a row is unrolled, so that all reads begin at once."""
        if isinstance(form, DotForm):
            return False
        parts = -(-self.length // self.find_width(form))
        reads = form.reads * (1 if self.is_turned else form.block)
        return parts * reads * (2 if self.is_gate else 1) <= MAX_UNROLLED

    def find_width(self, form: Form | DotForm) -> int:
        """Return the numbers of a row of inputs that a program multiplies at once."""
        if isinstance(form, DotForm):
            return form.width
        numbers = form.count_columns(self.item_bytes)
        return max(numbers // form.block, 1) if self.is_turned else numbers


def list_forms(work: Work) -> list[Form] | list[DotForm]:
    """Return the forms of a kernel that are tried, the likeliest first."""
    if work.rows > MAX_SUMMED_ROWS:
        return list(dict.fromkeys(_fit_dot(DotForm(*size), work) for size in DOT_SIZES))
    sizes = ((4, 4, 2), (2, 4, 2), (2, 2, 2), (4, 4, 1), (4, 8, 1), (1, 4, 2))
    turned = ((32, 8, 2), (64, 8, 2), (32, 4, 2), (64, 4, 4), (128, 8, 2), (16, 4, 2))
    found = [_fit_turned(Form(*size), work) for size in turned] if work.is_turned else []
    return list(dict.fromkeys(found or [_fit(Form(*size), work) for size in sizes]))


DOT_SIZES = (
    (32, 16, 128, 4, 3),
    (16, 16, 256, 4, 2),
    (32, 16, 256, 4, 2),
    (16, 16, 128, 4, 4),
    (32, 32, 128, 4, 3),
    (16, 32, 128, 4, 4),
    (16, 16, 256, 8, 3),
    (64, 16, 128, 4, 4),
)
"""Rows, outputs, width, warps and stages of forms, the likeliest first. Rows of 16 bits have twice the width."""


def _fit_dot(form: DotForm, work: Work) -> DotForm:
    """Return the same form with no more rows and inputs than there are, and no more reads than memory is for."""
    rows = min(form.rows, work.block_rows)
    block = min(form.block, max(round_up(max(work.sizes)), MIN_TILE))
    width = min(form.width * 4 // work.row_bytes, max(round_up(work.length), MIN_TILE))
    warps = min(form.warps, width // MIN_TILE)
    weight_bytes = work.item_bytes * (2 if work.is_gate else 1)
    found = [DotForm(rows, block, width, warps, stages) for stages in range(form.stages, 0, -1)]
    return next((one for one in found if one.count_bytes(work.row_bytes, weight_bytes) <= MAX_SHARED), found[-1])


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
