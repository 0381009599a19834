"""Products of few rows, whose columns the programs of a cluster share.

One processor alone reads the matrices of a row's layers slowly. So up to sixteen programs, which run at once, compute
some columns each of the same rows. They write them to memory, meet, and read those of the others. All else each of them
computes for itself. Other rows have clusters of their own.
"""

from __future__ import annotations

import torch

from torchwise.compile.programs.gpu.axes import Axis, Dims
from torchwise.compile.programs.gpu.lowering import Lowering, key_of, write_cast
from torchwise.compile.programs.gpu.tiles import Point, Value, list_wide
from torchwise.errors import UnsupportedError

MIN_SHARED = 1 << 12
"""Numbers of a matrix from which on a cluster shares its columns. Each program multiplies by smaller ones alone."""
HEADER = """
@triton.jit
def meet(part):
    return tl.inline_asm_elementwise(
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.b32 $0, $1;",
        "=r,r", [part], dtype=tl.int32, is_pure=False, pack=1,
    )


"""
"""Has the programs of a cluster wait for each other. What each one wrote before, all can read after it."""


def may_share(made: Lowering, source: Value, matrix: Value) -> bool:
    """Whether the programs of a cluster share the columns of a product."""
    axes = made.tiles.axes
    rows, columns = (axes.length(axes.resolve(dim)) for dim in matrix.dims)
    varies = any(tile.has_rows for tile in source.tiles.values()) or (
        source.view is not None and bool(axes.list_rows(source.dims))
    )
    return (
        made.tiles.cluster > 1
        and rows * columns >= MIN_SHARED
        and varies == bool(made.tiles.rows)
        and len(axes.resolve(matrix.dims[1])) == 1
    )


def share_product(
    made: Lowering, dims: Dims, source: Value, matrix: Value, deep: tuple[Axis, ...], within: torch.dtype
) -> Value:
    """Write a product, and return all of it.

    Args:
        made: the text.
        dims: of the product.
        source: its rows.
        matrix: in memory.
        deep: the axes of its sum.
        within: the type of its sum.

    Raises:
        UnsupportedError: it is of another type than float32 or less, or of more than two wide dimensions.
    """
    if within is not torch.float32 or matrix.step:
        raise UnsupportedError("a product of float64, or of matrices that differ, in a cluster")
    tiles, axes = made.tiles, made.tiles.axes
    (axis,) = axes.list_features([dims[1]])
    size, has_rows = axes.size(axis), bool(tiles.rows)
    share = max(1 << (-(-size // tiles.cluster) - 1).bit_length(), 2)
    own, mask = f"own{share}", "" if share * tiles.cluster == size else f"own{share} < {size}"
    tiles.head.setdefault(f"{own} = part * {share} + tl.arange(0, {share})")
    total: str | None = None
    for inner in tiles.points(deep):
        wide = list_wide(inner)
        if len(wide) > 1:
            raise UnsupportedError("a product of more than two wide dimensions")
        left = tiles.tile(source, inner)
        numbers = write_cast(tiles.masked(left, wide, "0"), left.dtype, within)
        right = write_cast(_load_share(made, matrix, inner, own, mask), matrix.dtype, within)
        if not wide:
            text = f"({numbers})[:, None] * ({right})[None, :]" if has_rows else f"{numbers} * {right}"
        elif has_rows and made.uses_dot and share >= 16:
            added = f", {total}" if total is not None else ""
            precision = ", input_precision=PRECISION" if left.dtype is torch.float32 else ""
            total = tiles.let(f"tl.dot({numbers}, {right}{added}{precision})", within, has_rows, ()).name
            continue
        elif has_rows:
            text = f"tl.sum(({numbers})[:, :, None] * ({right})[None, :, :], 1)"
        else:
            text = f"tl.sum(({numbers})[:, None] * ({right}), 0)"
        total = tiles.let(text if total is None else f"{total} + {text}", within, has_rows, ()).name
    place = tiles.add_work(size)
    address = f"work + {place} + slot[:, None] * {size} + {own}[None, :]" if has_rows else f"work + {place} + {own}"
    masks = ", mask=" + (f"({mask})[None, :]" if has_rows else mask) if mask else ""
    tiles.write(f"tl.store({address}, {total}{masks})")
    tiles.write("meet(part)")
    result = Value(dims, within, features=(axis,))
    for point in tiles.points((axis,)):
        wide, segment = list_wide(point), point[axis]
        column, masks = str(segment.start), ""
        if wide:
            column = f"({segment.start} + {tiles.range(segment)})" + ("[None, :]" if has_rows else "")
            inside = tiles.inside(segment)
            masks = f", mask={inside}{'[None, :]' if has_rows else ''}, other=0" if inside else ""
        row = f" + slot{'[:, None]' if wide else ''} * {size}" if has_rows else ""
        text = f'tl.load(work + {place}{row} + {column}{masks}, cache_modifier=".cg")'
        result.tiles[key_of(point)] = tiles.let(text, within, has_rows, wide)
    return result


def _load_share(made: Lowering, matrix: Value, inner: Point, own: str, mask: str) -> str:
    """Return the part of a matrix with the columns of one program."""
    tiles, view = made.tiles, matrix.view
    assert view is not None
    offset, stride = view.offset, view.strides[0]
    terms, masks, wide = list[str](), [f"({mask})"] if mask else [], list_wide(inner)
    turn = "[None, :]" if wide else ""
    for axis in reversed(tiles.axes.resolve(matrix.dims[0])):
        segment = inner[axis]
        offset += segment.start * stride
        if segment in wide:
            terms.append(f"{tiles.range(segment)}[:, None] * {stride}")
            if (inside := tiles.inside(segment)) is not None:
                masks.append(f"{inside}[:, None]")
        stride *= tiles.axes.size(axis)
    masks = [f"{one}{turn}" if one.startswith("(") else one for one in masks]
    address = " + ".join([view.buffer.name, str(offset), *terms, f"{own}{turn} * {view.strides[1]}"])
    masked = f", mask={' & '.join(masks)}, other=0" if masks else ""
    return tiles.load_once(f"tl.load({address}{masked})")
