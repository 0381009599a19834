"""How the kernel of a region may be cut: rows and threads of a program, widths of tiles, and precision of products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WIDE = 128
"""Numbers of a row from which on products of it need more threads."""
MAX_HELD = 64
"""Most numbers of one tensor that a thread holds. With more, registers go to memory, and compiling takes a minute."""
MAX_MULTIPLIED = 512
"""Numbers of matrices, for each thread, from which on more threads are better. All of them are unrolled, and a long
kernel compiles for a minute or more (Triton 3.6)."""
MAX_UNROLLED = 2048
"""Most instructions of products of a thread. Triton compiles some hundred a second, and longer code more slowly."""
MAX_SHARED_ROWS, MIN_SHARED_WEIGHTS = 16, 1 << 14
"""Rows of a cluster up to which, and weights from which on, several programs may share the columns of products."""
FEW = 1024
"""Rows up to which each may have a program of its own. A GPU of 132 multiprocessors runs them in few waves."""
MANY_PROGRAMS = 132
"""Programs that keep a GPU busy: the multiprocessors of an H200."""
SHARED = 220 << 10
"""Bytes of the shared memory of a multiprocessor that a program may have (Hopper: 227 KiB)."""


@dataclass(frozen=True)
class Form:
    """How a kernel is cut.

    Attributes:
        block: rows of a program.
        warps: of 32 threads, of a program.
        most: the widest tile.
        precision: of products of float32, as Triton names it.
        cluster: programs that share the columns of products. Each of them has all rows of its cluster.
    """

    block: int
    warps: int
    most: int
    precision: str
    cluster: int = 1

    @property
    def uses_dot(self) -> bool:
        """Whether products are made by the processors of matrices, which take 16 rows at least."""
        return self.block >= 16


@dataclass(frozen=True)
class Work:
    """What a kernel does, as far as its form depends on it.

    Attributes:
        rows: their number.
        width: numbers of a row of its widest tensor.
        weights: numbers of the matrices of its products, a loop's once, or 0 without products.
        repeated_bytes: bytes of the matrices of a loop. Matrix units have them in shared memory throughout the loop.
        passed: points of the longest axis that a program goes along, or 0 if none does.
    """

    rows: int
    width: int = 1
    weights: int = 0
    repeated_bytes: int = 0
    passed: int = 0


def list_forms(work: Work, *, allows_tf32: bool) -> list[Form]:
    """Return the forms of a kernel that are tried, the likeliest first.

    Args:
        work: what it does.
        allows_tf32: whether float32 may be rounded before products.
    """
    if work.passed and not work.weights:
        return _list_passing(work)
    if not work.weights:
        pairs = ((128, 4), (256, 4), (32, 4), (512, 8), (8, 4), (16, 4), (32, 1))
        return list(dict.fromkeys(_fit_registers(block, warps, work.width) for block, warps in pairs))
    forms = _list_multiplying(work, allows_tf32=allows_tf32)
    return [one for one in forms if _count_unrolled(one, work) <= MAX_UNROLLED] or forms[:1]


def _list_multiplying(work: Work, *, allows_tf32: bool) -> list[Form]:
    """Return the forms of a kernel with products."""
    warps = next((one for one in (4, 8) if work.weights <= one * 32 * MAX_MULTIPLIED), 16)
    # TF32 in three parts has the rest of each number beside it.
    precisions = {"tf32": 1} if allows_tf32 else {"tf32x3": 2, "ieee": 1}
    clusters = _list_clusters(work, precisions)
    if work.rows == 1:
        sizes = ((max(warps, 8), 128), (16, 256), (32, 256), (16, 128), (8, 64))
        first, *others = dict.fromkeys(Form(1, *size, "ieee") for size in sizes)
        return [first, *clusters, *others]
    # Of few rows each is multiplied by ordinary arithmetic, which is exact, with the matrices in registers in a loop.
    alone = ((1, warps), (2, warps), (1, 16), (4, 16)) if work.rows <= FEW else ()
    few = [Form(*size, 128, "ieee") for size in dict.fromkeys(alone) if size[0] < 2 * work.rows]
    least = max(warps, 8 if work.width > WIDE else 4)
    blocks = [(16, least), (32, max(least, 8)), (64, 8), (64, 16), (128, 16)]
    if work.rows >= 64 * MANY_PROGRAMS:  # of which larger blocks read the matrices less often
        blocks = [*blocks[2:], *blocks[1::-1]]
    dots = [
        Form(block, max(own, warps), 128 if block < 128 else 64, precision)
        for precision, copies in precisions.items()
        for block, own in blocks
        if copies * work.repeated_bytes <= SHARED and (block < 2 * work.rows or block == 16)
    ]
    dots = [*dict.fromkeys(dots)]
    likeliest = dots[: 1 if work.rows > MAX_SHARED_ROWS else 0]
    return [*few[:1], *likeliest, *clusters, *few[1:], *dots[len(likeliest) :]] or [Form(1, warps, 128, "ieee")]


def _list_clusters(work: Work, precisions: Mapping[str, int]) -> list[Form]:
    """Return the forms in which programs share the products of a few rows, of which a GPU runs all at once or nearly.

    A program for each row reads all matrices for it, so many rows take long for that.

    Args:
        work: what the kernel does.
        precisions: those of processors of matrices, which are for 16 rows, with the copies of each number.
    """
    if work.weights < MIN_SHARED_WEIGHTS:
        return []
    block = min(1 << (work.rows - 1).bit_length(), MAX_SHARED_ROWS)
    precision, copies = next(iter(precisions.items())) if block >= 16 else ("ieee", 0)
    forms = [Form(block, warps, 128, precision, cluster) for cluster, warps in ((16, 4), (16, 8), (8, 8), (8, 16))]
    return [
        one
        for one in forms
        if -(-work.rows // block) * one.cluster <= 2 * MANY_PROGRAMS
        and copies * work.repeated_bytes <= one.cluster * SHARED
    ]


def _count_unrolled(form: Form, work: Work) -> float:
    """Return about how many instructions of products a thread has. All of them are unrolled."""
    numbers = work.weights / (32 * form.warps * form.cluster)
    if not form.uses_dot or form.precision == "ieee":
        return form.block * numbers
    return numbers * (1 + form.block * (3 if form.precision == "tf32x3" else 1) / 32)


def _list_passing(work: Work) -> list[Form]:
    """Return the forms of programs that go along an axis, first those with more programs than processors."""
    sizes = ((2, 2, 128), (4, 4, 128), (1, 1, 256), (2, 4, 256), (4, 8, 256), (1, 4, 1024), (8, 8, 256), (16, 8, 256))
    forms = list[Form]()
    for block, warps, most in sizes:
        numbers = block * max(work.width // work.passed, 1)  # of each point of the axis
        while most > 16 and most * numbers > MAX_HELD * 32 * warps:
            most //= 2
        forms.append(Form(block, warps, most, "ieee"))
    return sorted(dict.fromkeys(forms), key=lambda form: form.block > 1 and work.rows < MANY_PROGRAMS * form.block)


def _fit_registers(block: int, warps: int, width: int) -> Form:
    """Return a form whose threads hold as many numbers of one tensor as they have registers for."""
    while block > 1 and block * width > MAX_HELD * 32 * warps:
        block //= 2
    return Form(block, warps, 128 if block >= 16 else 1024, "ieee")
