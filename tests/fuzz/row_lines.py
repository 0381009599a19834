"""Random inputs, and random lines of Python that compute a tensor from those before them, for `rows.py`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

NAMES = {"torch": torch, "F": F, "inf": float("inf"), "nan": float("nan")}
SCALARS = ("0", "1", "-1", "2", "3", "7", "0.5", "-2.5", "1e-3", "1e30", "True", "inf", "nan", "-0.0")
CASTS = ("float()", "double()", "long()", "int()", "bool()", "to(torch.uint8)", "to(torch.float64)", "clone()")
ONE = (
    *(
        "exp",
        "expm1",
        "log",
        "log1p",
        "tanh",
        "sigmoid",
        "erf",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "floor",
        "ceil",
        "round",
    ),
    *("trunc", "abs", "neg", "relu", "square", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "exp2"),
    *("log2", "log10", "isnan", "isinf", "sign", "bitwise_not", "logical_not", "isfinite", "frac", "positive"),
)
SOFT = (
    *("silu", "gelu", "softplus", "elu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "mish", "logsigmoid"),
    *("relu6", "selu", "celu", "softsign"),
)
TWO = (
    *("add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2", "eq", "ne", "lt", "le", "gt", "ge", "hypot"),
    *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "fmod", "remainder"),
)
INFIX = ("+", "-", "*", "/", "**", "<", "<=", "==", "!=", "&", "|", "^", "//", "%")


LAYOUTS = ("rows", "rows", "turned", "stepped", "expanded", "offset", "last")
SPECIAL = (0.0, -0.0, math.nan, math.inf, -math.inf, 1e-42, -3e-39, 1.0, -1.0, 88.9, -103.5, 3e38, 1e-20, 1e9, 0.5, 2.5)


@dataclass(frozen=True)
class Input:
    """An input of a program."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: str
    highest: int | None

    def make(self, generator: torch.Generator, data: str) -> torch.Tensor:
        """Return numbers for it. Those of an index are below `highest`."""
        shape = self.shape
        if self.layout == "turned":
            shape = shape[::-1]
        elif self.layout == "stepped" and shape:
            shape = (*shape[:-1], 2 * shape[-1])
        elif self.layout == "expanded" and shape:
            shape = (1, *shape[1:])
        elif self.layout == "offset" and shape:
            shape = (shape[0] + 1, *shape[1:])
        made = self._draw(shape, generator, data)
        if self.layout == "turned":
            return made.permute(tuple(range(made.dim())[::-1]))
        if self.layout == "stepped" and shape:
            return made[..., ::2]
        if self.layout == "expanded" and shape:
            return made.expand(self.shape)
        if self.layout == "offset" and shape:
            return made[1:]
        if self.layout == "last" and len(shape) == 4:
            return made.to(memory_format=torch.channels_last)
        return made

    def _draw(self, shape: tuple[int, ...], generator: torch.Generator, data: str) -> torch.Tensor:
        if self.highest is not None:
            return torch.randint(0, self.highest, shape, dtype=self.dtype, generator=generator)
        if self.dtype is torch.bool:
            return torch.rand(shape, generator=generator) > 0.5
        if not self.dtype.is_floating_point:
            low = 0 if self.dtype is torch.uint8 else -9
            ends = (torch.iinfo(self.dtype).min, torch.iinfo(self.dtype).max) if data == "sizes" else (low, 9)
            return torch.randint(*ends, shape, dtype=self.dtype, generator=generator)
        made = torch.randn(shape, dtype=self.dtype, generator=generator) * 2
        if data == "special":
            places = torch.rand(shape, generator=generator) < 0.2
            chosen = torch.tensor(SPECIAL, dtype=self.dtype)[torch.randint(len(SPECIAL), shape, generator=generator)]
            return torch.where(places, chosen, made)
        if data == "sizes":
            return made * 10.0 ** torch.randint(-9, 10, shape, generator=generator)
        return made


class Draw:
    """Draws names of tensors, and other parts of a line."""

    def __init__(self, r: random.Random, env: dict[str, torch.Tensor]) -> None:
        self.r, self.env = r, env

    def any(self, accept: Callable[[torch.Tensor], bool] = lambda _: True) -> str:
        """Return the name of a tensor, more often a late one."""
        fitting = [name for name, one in self.env.items() if not name.startswith("at") and accept(one)]
        if not fitting:
            raise IndexError("no tensor fits")
        return self.r.choice(fitting[-5:] if self.r.random() < 0.5 else fitting)

    def fraction(self, least: int = 0) -> str:
        """Return the name of a tensor of fractions with so many dimensions."""
        return self.any(lambda one: one.dtype.is_floating_point and one.dim() >= least)

    def mate(self, name: str) -> str:
        """Return the name of a tensor that can be broadcast with another."""
        shape = self.env[name].shape
        return self.any(
            lambda one: all(a in (1, b) or b == 1 for a, b in zip(one.shape[::-1], shape[::-1], strict=False))
        )

    def dims(self, name: str) -> str:
        """Return some of a tensor's dimensions."""
        rank = self.env[name].dim()
        some = self.r.sample(range(rank), self.r.randint(1, rank)) if rank else []
        return self.r.choice((str(tuple(some)), str(some[0] - rank if some else 0)))

    def dim(self, name: str) -> int:
        """Return one dimension of a tensor."""
        return self.r.randrange(-self.env[name].dim(), self.env[name].dim() or 1)

    def number(self) -> str:
        """Return a number."""
        return self.r.choice(SCALARS)


def _reduce(d: Draw) -> str:
    a = d.fraction() if d.r.random() < 0.7 else d.any()
    kind = d.r.choice(("sum", "mean", "amax", "amin", "var", "std", "logsumexp", "any", "all"))
    keep = f", keepdim={d.r.random() < 0.5}"
    if kind in ("var", "std"):
        keep += f", correction={d.r.randint(0, 2)}"
    if d.r.random() < 0.2 and kind not in ("var", "std", "logsumexp"):
        return f"{a}.{kind}()"
    extra = f", dtype=torch.{d.r.choice(('float32', 'float64', 'int64', 'int32'))}"
    return f"{a}.{kind}({d.dims(a)}{keep}{extra if kind == 'sum' and d.r.random() < 0.3 else ''})"


def _product(d: Draw) -> str:
    a = d.fraction(1)
    one = d.env[a]
    b = d.any(lambda two: two.dtype is one.dtype and two.dim() >= 1)
    turned = [f"{name}.mT" if d.env[name].dim() > 1 and d.r.random() < 0.4 else name for name in (a, b)]
    forms = [f"{turned[0]} @ {turned[1]}"]
    if one.dim() > 1:
        forms += [f"{a} @ {a}.mT", f"{a}.mT @ {a}"]
        bias = d.any(lambda two: two.dtype is one.dtype and two.dim() <= 1)
        forms += [
            f"F.linear({a}, {b})",
            f"F.linear({a}, {b}, {bias})",
            f"torch.addmm({bias}, {turned[0]}, {turned[1]})",
        ]
        forms += [f"F.linear({a}, {a}.reshape(-1, {one.shape[-1]}))"]
        forms += [f"torch.addmm({d.mate(a)}, {a}, torch.eye({one.shape[-1]}, dtype={a}.dtype))"] * (one.dim() == 2)
    if one.dim() == 2 and one.shape[0] == one.shape[1] and one.shape[0] < 12:
        forms += [f"torch.linalg.inv({a}.tanh() / {one.shape[0]} + 2 * torch.eye({one.shape[0]}, dtype={a}.dtype))"]
    return d.r.choice(forms)


def _view(d: Draw) -> str:
    a = d.any()
    one = d.env[a]
    rank, r = one.dim(), d.r
    order = ", ".join(map(str, r.sample(range(rank), rank)))
    flat = [s for s in (1, 2, 3, 4, 6) if one.numel() % s == 0]
    forms = [f"{a}.reshape(-1)", f"{a}.reshape({r.choice(flat)}, -1)", f"{a}.unsqueeze({r.randint(0, rank)})"]
    forms += [f"{a}.squeeze()", f"{a}[None]", f"{a}.reshape({tuple(one.shape)})", f"{a}.contiguous()", f"{a}.detach()"]
    if rank:
        n, dim = one.shape[0], d.dim(a)
        size = one.shape[dim]
        start, step = r.randrange(size), r.randint(1, 3)
        forms += [f"{a}[{start % n}:]", f"{a}[..., ::{step}]", f"{a}.select({dim}, {start - size})"]
        forms += [f"{a}.narrow({dim}, {start}, {r.randint(1, size - start)})", f"{a}.chunk(2, {dim})[-1]"]
        forms += [f"{a}.split({r.randint(1, size)}, {dim})[-1]", f"{a}.unbind({dim})[{start}]", f"{a}.flatten()"]
        forms += [f"{a}.permute({order})", f"{a}.permute({order}).flatten()", f"{a}.expand(2, *{tuple(one.shape)})"]
        forms += [f"{a}.mT", f"{a}.diagonal()", f"{a}.unfold({dim}, {r.randint(1, size)}, 1)"]
        same = {4: ("int32", "float32"), 8: ("int64", "float64"), 1: ("uint8",)}[one.dtype.itemsize]
        forms += [f"{a}.view(torch.{r.choice(same)})"]
        is_alone = one.untyped_storage().nbytes() == one.nbytes  # so that a copy of it has all that is read
        forms += [f"{a}.as_strided(({size},), (1,), 0)"] * is_alone
    return r.choice(forms)


def _join(d: Draw) -> str:
    a = d.any(lambda one: one.dim() > 0)
    dim = d.dim(a)
    b = d.any(lambda one: one.shape == d.env[a].shape and one.dtype is d.env[a].dtype)
    forms = [
        f"torch.cat([{a}, {b}], {dim})",
        f"torch.stack([{a}, {b}, {a}], {dim})",
        f"torch.cat([{a}, {a} * 2], {dim})",
    ]
    forms += [
        f"{a}.roll(1, {dim})",
        f"{a}.flip({dim})",
        f"F.pad({a}, (1, 2))",
        f"{a}.repeat(2, *[1] * {d.env[a].dim() - 1})",
    ]
    forms += [f"{a}.sort({dim})[0]", f"{a}.cumsum({dim})", f"torch.tril({a})", f"{a}.argmax({dim})", f"{a}.argmax()"]
    return d.r.choice(forms)


def _write(d: Draw, name: str) -> str:
    """Copy a tensor, and write to parts of it."""
    a = d.any(lambda one: one.dim() > 0)
    size = d.env[a].shape[0]
    at, part = d.r.randrange(size), d.env[a].shape[-1]
    value = d.r.choice((d.r.choice(("0", "1", "2")), f"{a}[{at}]", f"{a}[{at}] * 2"))
    changes = [f"{name}[{at}] = {value}", f"{name}[{at}:] = {value}", f"{name}[..., {d.r.randrange(part)}] = 1"]
    changes += [f"{name}[::2] = {value}", f"{name} *= 2", f"{name}.add_({a})", f"{name}.clamp_(0, 1)"]
    return f"{name} = {a}.clone(); " + "; ".join(d.r.sample(changes, 2))


def _look_up(d: Draw) -> str:
    at, other = d.r.sample(("at0", "at1"), 2)
    starts = "torch.arange(0, 2)"
    forms = [f"F.embedding({at}, table)", f"table[{at}]", f"table.index_select(0, {at})", f"table[-1 - {at}]"]
    forms += [f"table.t().gather(1, {at}.expand(table.shape[1], -1))", f"table[{at}[:2], 0]", f"table[{at} > 1].sum(0)"]
    forms += [f"F.embedding_bag({at}, table, {starts}, mode='{d.r.choice(('sum', 'mean'))}')", f"{other}.float()"]
    forms += [f"F.embedding({at}.int(), table)", f"F.one_hot({at}, 10)", f"table.gather(0, {at}.expand(1, -1))"]
    return d.r.choice(forms)


def _draw_numbers(d: Draw) -> str:
    a = d.fraction()
    forms = (f"torch.randn_like({a})", f"torch.rand_like({a})", "torch.rand(3, 4)", "torch.randn(2, 3, 4)")
    return d.r.choice((*forms, f"torch.bernoulli({a}.sigmoid().nan_to_num())", f"F.dropout({a}, 0.5)"))


def _along_rows(d: Draw) -> str:
    a = d.fraction(1)
    width = d.env[a].shape[-1]
    scale = [name for name, one in d.env.items() if one.shape == (width,) and one.dtype is d.env[a].dtype]
    more = f", {d.r.choice(scale)}" if scale and d.r.random() < 0.7 else ""
    more += f", {d.r.choice(scale)}" if more and d.r.random() < 0.7 else ""
    forms = (f"{a}.softmax(-1)", f"{a}.log_softmax(-1)", f"F.layer_norm({a}, ({width},){more})", f"F.normalize({a})")
    return d.r.choice((*forms, f"F.rms_norm({a}, ({width},))", f"{a}.softmax({d.dim(a)})", f"{a}.norm(dim=-1)"))


def _choose(d: Draw) -> str:
    a = d.any()
    b, c = d.mate(a), d.mate(a)
    flags = f"{c} > 0" if d.env[c].dtype is not torch.bool else c
    forms = [f"torch.where({flags}, {a}, {b})", f"torch.where({flags}, {a}, {d.number()})", f"{a}.clamp({b}, {c})"]
    forms += [
        f"{a}.masked_fill({flags}, {d.number()})",
        f"{a}.clamp({d.number()}, {d.number()})",
        f"{a}.clamp(min={b})",
    ]
    return d.r.choice((*forms, f"{a}.clamp(max={d.number()})", f"torch.lerp({a}, {b}, 0.3)"))


def _make(d: Draw) -> str:
    a = d.any()
    n = d.r.randint(1, 9)
    kind = d.r.choice(("float32", "float64", "int64", "int32", "bool", "uint8"))
    forms = (f"torch.arange({n})", f"torch.arange(-3, {n}, 2, dtype=torch.float32)", f"torch.full((2, {n}), 2.5)")
    likes = (
        f"torch.zeros_like({a})",
        f"torch.ones({n}, dtype=torch.{kind})",
        f"torch.full_like({a}, 3)",
        f"{a}.new_zeros(2, {n})",
    )
    return d.r.choice((*forms, *likes, f"torch.eye({n})", f"torch.zeros(2, {n}, dtype=torch.{kind}) + {d.number()}"))


def write_line(d: Draw, name: str) -> str:
    """Return a line that gives a tensor a name."""
    r = d.r
    forms: tuple[tuple[int, Callable[[], str]], ...] = (
        (14, lambda: f"torch.{r.choice(ONE)}({d.any()})"),
        (6, lambda: f"F.{r.choice(SOFT)}({d.fraction()})"),
        (1, lambda: f"F.gelu({d.fraction()}, approximate='tanh')"),
        (10, lambda: f"torch.{r.choice(TWO)}({(a := d.any())}, {d.mate(a)})"),
        (6, lambda: f"{(a := d.any())} {r.choice(INFIX)} {d.mate(a)}"),
        (8, lambda: f"{d.any()} {r.choice(INFIX)} {d.number()}"),
        (4, lambda: f"{d.number()} {r.choice(INFIX)} {d.any()}"),
        (2, lambda: f"torch.{r.choice(('add', 'sub'))}({(a := d.any())}, {d.mate(a)}, alpha={r.choice((2, -3, 0.5))})"),
        (6, lambda: f"{d.any()}.{r.choice(CASTS)}"),
        (9, lambda: _reduce(d)),
        (10, lambda: _product(d)),
        (12, lambda: _view(d)),
        (6, lambda: _join(d)),
        (4, lambda: _look_up(d)),
        (2, lambda: _draw_numbers(d)),
        (6, lambda: _along_rows(d)),
        (6, lambda: _choose(d)),
        (3, lambda: _make(d)),
    )
    if r.random() < 0.05:
        return _write(d, name)
    weights = [weight for weight, _ in forms]
    return f"{name} = {r.choices([form for _, form in forms], weights)[0]()}"
