"""The text of a region's kernel: all operators of a block of rows, one after another, in registers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchwise._torch.dispatch import OpOverload
from torchwise.compile.programs.gpu.draws import HEADER as DRAWING
from torchwise.compile.programs.gpu.draws import SEED, draw
from torchwise.compile.programs.gpu.labels import DRAWS, PARTS
from torchwise.compile.programs.gpu.loops import Loop
from torchwise.compile.programs.gpu.lowering import Lowering, key_of
from torchwise.compile.programs.gpu.operators import lower, lower_parts
from torchwise.compile.programs.gpu.passes import Passes, write_pass
from torchwise.compile.programs.gpu.program import HeavyError, Program, tell_node
from torchwise.compile.programs.gpu.shares import HEADER as MEETING
from torchwise.compile.programs.gpu.tiles import TYPES, Tile, Tiles, Value, list_wide
from torchwise.compile.programs.lowering import name_of
from torchwise.compile.programs.values import View
from torchwise.errors import UnsupportedError

Node = torch.fx.Node
MAX_LINES = 1000
"""Most lines of a kernel's operators. Triton 3.6 compiles 3,600 lines without products for two minutes (64 rows of 256
numbers in another order, each a tile by itself). The kernels of the zoo have up to 500."""
MANY_LINES = 64
"""Lines of an operator that make a kernel long. Without any, it ends where it is too long, and another one begins."""
HEADER = '''"""Made by Torchwise."""
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def square_root(x):
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)


@triton.jit
def largest(x, axis: tl.constexpr):
    return tl.where(tl.sum((x != x).to(tl.int32), axis) > 0, float("nan"), tl.max(x, axis))


@triton.jit
def smallest(x, axis: tl.constexpr):
    return tl.where(tl.sum((x != x).to(tl.int32), axis) > 0, float("nan"), tl.min(x, axis))


'''


@dataclass(frozen=True)
class KernelText:
    """A kernel as text.

    Attributes:
        source: of a module with the function `kernel`.
        rows: the number of rows.
        tables: constants of loops, which it is passed after the outputs.
        draws: whether it draws random numbers, for which it is passed a seed after the tables.
        work: numbers of each row that the programs of a cluster share, for which it is passed memory after the seed.
    """

    source: str
    rows: int
    tables: tuple[tuple[float, ...], ...]
    draws: bool
    work: int = 0


class Writer:
    """Writes the kernel of a program.

    Args:
        program: it.
        most: the widest tile.
        uses_dot: whether products are made by the processors of matrices.
        cluster: programs that share the columns of products. Each of them has all rows of the cluster.
    """

    def __init__(self, program: Program, most: int, uses_dot: bool, cluster: int = 1) -> None:
        self._program, self._labels = program, program.labels
        self._tiles = Tiles(program.labels.axes, program.rows, most, program.multiplied, cluster)
        self._lowering = Lowering(self._tiles, uses_dot)
        self._values: dict[Node, Value] = {}
        self._parts: dict[Node, list[Value]] = {}
        self._tables: list[tuple[float, ...]] = []
        self._draws, self._times = 0, 1
        self._lengths: dict[Node, int] = {}
        self._waiting = list(program.stored)

    def write(self) -> KernelText:
        """Return the text.

        Raises:
            UnsupportedError: an operator has arguments of another kind.
            HeavyError: Triton would compile the text for too long.
        """
        for number, part in enumerate(self._program.parts):
            if isinstance(part, Loop):
                self._write_loop(part)
            elif number in self._program.passes:
                self._write_passes(self._program.passes[number])
            else:
                for node in part:
                    self._lower(node, {}, {})
            self._store_known()
        self._store_known()
        if self._waiting:
            raise UnsupportedError("an output is made of some repetitions of a loop")
        return KernelText(self._assemble(), self._count_rows(), tuple(self._tables), self._draws > 0, self._tiles.work)

    def _assemble(self) -> str:
        names = [*self._program.parameters, *(f"t{number}" for number in range(len(self._tables)))]
        names += ["seeds"] if self._draws else []
        names += ["work"] if self._tiles.work else []
        head, cluster = list(self._tiles.head), self._tiles.cluster
        is_shared = cluster > 1
        if self._program.rows:
            block = f"tl.program_id(0) // {cluster}" if is_shared else "tl.program_id(0)"
            head = [
                f"row = {block} * BLOCK + tl.arange(0, BLOCK)",
                f"live = row < {self._count_rows()}",
                *(["first = live & (part == 0)", "slot = tl.arange(0, BLOCK)"] if is_shared else []),
                *([f"work += {block} * BLOCK * {self._tiles.work}"] if self._tiles.work else []),
                *head,
            ]
        head = [f"part = tl.program_id(0) % {cluster}", *head] if is_shared else head
        head = [f"{SEED} = tl.load(seeds)", *head] if self._draws else head
        lines = [
            "@triton.jit",
            f"def kernel({', '.join(names)}, BLOCK: tl.constexpr, PRECISION: tl.constexpr):",
            *(f"    {line}" for line in head),
            *self._tiles.lines,
        ]
        return HEADER + (DRAWING if self._draws else "") + (MEETING if is_shared else "") + "\n".join(lines) + "\n"

    def _count_rows(self) -> int:
        count = 1
        for axis in self._program.rows:
            count *= self._labels.axes.size(axis)
        return count

    # Operators

    def _lower(self, node: Node, steps: dict[int, int], tables: dict[int, str]) -> None:
        before = len(self._tiles.lines)
        with tell_node(node):
            self._lower_known(node, steps, tables)
        now = len(self._tiles.lines)
        self._lengths[node] = now - before
        if now > MAX_LINES:
            raise HeavyError(self._list_longest() or [node], f"the kernel would have over {MAX_LINES:,} lines")

    def _list_longest(self) -> list[Node]:
        """Return the operators of many lines, and if they are a loop's, those of all its repetitions."""
        long = {node for node, lines in self._lengths.items() if lines >= MANY_LINES}
        for part in self._program.parts:
            for bodies in zip(*part.bodies, strict=True) if isinstance(part, Loop) else ():
                long |= set(bodies) if long & set(bodies) else set()
        return list(long)

    def _lower_known(self, node: Node, steps: dict[int, int], tables: dict[int, str]) -> None:
        name = name_of(node)
        if name == "getitem":
            source, place = node.args
            parts = self._parts[source]  # type: ignore[index]
            if not isinstance(place, int) or place >= len(parts):
                raise UnsupportedError(f"an output of {source} is not computed")
            self._values[node] = parts[place]
            return
        given = self._read_all(node, steps, tables)
        if name in DRAWS:
            self._values[node] = draw(self._lowering, node, self._labels.dims(node), self._number_draw)
        elif name in PARTS or name == "native_layer_norm":
            self._parts[node] = lower_parts(self._lowering, node, self._labels.parts(node), given)
        else:
            self._values[node] = lower(self._lowering, node, self._labels.dims(node), given)
            made, wanted = self._values[node].dtype, node.meta["val"].dtype
            if made is not wanted:
                raise UnsupportedError(f"{node.target} returns {wanted}, and its code {made}")

    def _read_all(self, node: Node, steps: dict[int, int], tables: dict[int, str]) -> dict[str, Any]:
        """Return the arguments of a node by name, with values for tensors.

        Args:
            node: it.
            steps: by how many numbers memory lies further in each repetition of a loop, by argument.
            tables: the texts of constants that differ in each repetition, by argument.
        """
        slots = iter(range(10**6))

        def read(one: Any, name: str) -> Any:
            if isinstance(one, (list, tuple)):
                return [read(inner, name) for inner in one]
            slot = next(slots)
            if slot in tables:
                if name not in ("self", "other"):
                    raise UnsupportedError(f"{name} of {node.target} differs in each repetition of a loop")
                return tables[slot]
            return self._read(one, steps.get(slot, 0)) if isinstance(one, Node) else one

        if not isinstance(node.target, OpOverload):  # an output, which is written to memory with its strides
            return {"self": read(node.args[0], "self")}
        parameters = node.target._schema.arguments
        found = {one.name: one.default_value for one in parameters if one.has_default_value()}
        for parameter, one in zip(parameters, node.args, strict=False):
            found[parameter.name] = read(one, parameter.name)
        for name, one in node.kwargs.items():
            found[name] = read(one, name)
        return found

    def _read(self, node: Node, step: int = 0) -> Value:
        if node in self._values:
            return self._values[node]
        view = self._program.memory.get(node)
        if view is None:
            raise UnsupportedError("a value of one repetition of a loop is read after it")
        return Value(self._labels.dims(node), view.dtype, replace(view, offset=view.offset - step), step)

    # Loops

    def _write_passes(self, passes: Passes) -> None:
        """Write the passes along an axis, and the operators around them."""
        for stage in passes.stages:
            for node in stage.before:
                self._lower(node, {}, {})
            with tell_node(stage.reductions[0]):
                lower_one = functools.partial(self._lower, steps={}, tables={})
                found = write_pass(self._lowering, passes.axis, stage, self._labels.dims, self._read, lower_one)
            for node in stage.inside:
                del self._values[node]
            self._values |= found
        for node in passes.after:
            self._lower(node, {}, {})

    def _write_loop(self, loop: Loop) -> None:
        """Write the second body, which reads the first as each one reads the one before it."""
        tiles, before, body = self._tiles, *loop.bodies[:2]
        inside = {node for nodes in loop.bodies for node in nodes}
        stored = {one.node for one in self._waiting}
        results = [
            place
            for place, node in enumerate(loop.bodies[-1])
            if place not in loop.carried
            and name_of(node) not in PARTS
            and (any(user not in inside for user in node.users if user.op != "output") or node in stored)
        ]
        collected = self._find_collected(loop)
        results = [place for place in results if place not in collected or self._is_read_after(loop, place, inside)]
        carried: dict[int, Value] = {}
        for place in (*loop.carried, *results):
            init = loop.carried.get(place)
            start = None if init is None else self._read(init)
            carried[place] = self._begin_carried(before[place], start)
        kept, outer = tiles.begin_scope(), tiles.loop
        tiles.loop, self._times = tiles.name("i"), loop.times
        tiles.indent -= 1
        tiles.write(f"for {tiles.loop} in range({loop.times}):")
        tiles.indent += 1
        for place in loop.carried:
            self._values[before[place]] = carried[place]
        for place, node in enumerate(body):
            tables = {slot: self._add_table(numbers) for (own, slot), numbers in loop.tables.items() if own == place}
            steps = {slot: step for (own, slot), step in loop.steps.items() if own == place}
            self._lower(node, steps, tables)
            if place in collected:
                view, step = collected[place]
                self._store(self._values[node], node, view, step)
        self._end_carried(carried, body)
        tiles.end_scope(kept)
        tiles.loop, self._times = outer, 1
        for place, node in enumerate(loop.bodies[-1]):
            self._forget(loop, place)
            if place in carried:
                self._values[node] = carried[place]

    def _forget(self, loop: Loop, place: int) -> None:
        for nodes in loop.bodies:
            self._values.pop(nodes[place], None)
            self._parts.pop(nodes[place], None)

    def _is_read_after(self, loop: Loop, place: int, inside: set[Node]) -> bool:
        """Whether a value that each repetition stores is also computed with after the loop."""
        users = loop.bodies[-1][place].users
        return any(
            user not in inside and user not in self._program.hidden and user.op != "output" for user in users
        ) or any(one.node is loop.bodies[-1][place] for one in self._waiting)

    def _number_draw(self) -> str:
        """Return the number of a draw. In a loop each repetition has one of its own."""
        first, times = self._draws, self._times
        self._draws += times
        return str(first) if times == 1 else f"{self._tiles.loop} + {first}"

    def _add_table(self, numbers: Sequence[float]) -> str:
        found = tuple(map(float, numbers))
        if found not in self._tables:
            self._tables.append(found)
        return f"tl.load(t{self._tables.index(found)} + {self._tiles.loop})"

    def _begin_carried(self, node: Node, start: Value | None) -> Value:
        """Write the variables of a value that repetitions pass on."""
        tiles, dims, dtype = self._tiles, self._labels.dims(node), node.meta["val"].dtype
        has_rows = bool(tiles.axes.list_rows(dims))
        made = Value(dims, dtype, features=tiles.axes.list_features(dims))
        for point in tiles.points(made.features):
            wide = list_wide(point)
            sizes = ", ".join([*(["BLOCK"] if has_rows else []), *(str(tiles.padded(one)) for one in wide)])
            if start is None or start.constant is not None:
                number = "0" if start is None else start.constant
                text = f"tl.full([{sizes}], {number}, {TYPES[dtype]})"
            else:
                text = tiles.spread(tiles.tile(start, point), has_rows, wide)
            name = tiles.name("c")
            tiles.write(f"{name} = {text}")
            made.tiles[key_of(point)] = Tile(name, dtype, has_rows, wide)
        return made

    def _end_carried(self, carried: dict[int, Value], body: Sequence[Node]) -> None:
        """Write the assignments at the end of a repetition, all at once."""
        tiles, pairs = self._tiles, list[tuple[str, str]]()
        for place, value in carried.items():
            made = self._values[body[place]]
            for point in tiles.points(value.features):
                own = value.tiles[key_of(point)]
                if made.constant is not None:
                    raise UnsupportedError("a loop passes a constant on")
                text = tiles.spread(tiles.tile(made, point), own.has_rows, own.wide)
                temporary = tiles.name("n")
                tiles.write(f"{temporary} = {text}")
                pairs.append((own.name, temporary))
        for name, temporary in pairs:
            tiles.write(f"{name} = {temporary}")

    # Outputs

    def _find_collected(self, loop: Loop) -> dict[int, tuple[View, int]]:
        """Return the places whose values each repetition writes to an output: where the first does, and the distance.

        Raises:
            UnsupportedError: they are written at places of different distances.
        """
        found: dict[int, tuple[View, int]] = {}
        for place in range(len(loop.bodies[0])):
            own = [[one for one in self._waiting if one.node is nodes[place]] for nodes in loop.bodies]
            if not any(own[:-1]):
                continue
            if any(len(one) != 1 for one in own[:-1]):
                raise UnsupportedError("an output is made of some repetitions of a loop")
            own[-1] = [one for one in own[-1] if one.view.buffer is own[0][0].view.buffer]
            if not own[-1]:
                raise UnsupportedError("an output is made of some repetitions of a loop")
            views = [one[0].view for one in own]
            step = views[1].offset - views[0].offset
            for number, view in enumerate(views):
                if view.buffer is not views[0].buffer or view.offset != views[0].offset + number * step:
                    raise UnsupportedError("the parts of an output lie at different distances")
            found[place] = (views[0], step)
            gone = [one for group in own for one in group[:1]]
            self._waiting = [one for one in self._waiting if all(one is not other for other in gone)]
        return found

    def _store_known(self) -> None:
        """Write the outputs that are known."""
        for one in list(self._waiting):
            if one.node in self._values or one.node in self._program.memory:
                self._store(self._read(one.node), one.node, one.view, 0)
                self._waiting.remove(one)

    def _store(self, value: Value, node: Node, view: View, step: int) -> None:
        out = Value(self._labels.dims(node), value.dtype, view, step)
        self._tiles.store(value, out)
