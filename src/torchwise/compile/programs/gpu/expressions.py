"""Operators on single numbers as Triton writes them. `pointwise` has them in C++."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Write = Callable[[Sequence[str], str], str]
"""Takes the operands, already of one type, and that type as Triton names it, and returns an expression."""


def _call(name: str) -> Write:
    return lambda given, _kind: f"{name}({', '.join(given)})"


def _infix(operator: str) -> Write:
    return lambda given, _kind: f"({given[0]} {operator} {given[1]})"


MIN_NORMAL = 2.0**-126
"""The smallest number that Triton takes for a float32."""

FLOATS: dict[str, Write] = {
    "neg": lambda x, _: f"({x[0]} * -1.0)",  # Triton's minus subtracts from zero, which loses the sign of zero
    "reciprocal": lambda x, _: f"(1.0 / {x[0]})",
    "sqrt": _call("square_root"),
    "rsqrt": lambda x, _: f"(1.0 / square_root({x[0]}))",
    "exp": _call("tl.exp"),
    "expm1": _call("libdevice.expm1"),
    "log": _call("tl.log"),
    "log1p": _call("libdevice.log1p"),
    "sin": _call("tl.sin"),
    "cos": _call("tl.cos"),
    "tan": _call("libdevice.tan"),
    "asin": _call("libdevice.asin"),
    "acos": _call("libdevice.acos"),
    "atan": _call("libdevice.atan"),
    "atan2": _call("libdevice.atan2"),
    "sinh": _call("libdevice.sinh"),
    "cosh": _call("libdevice.cosh"),
    "exp2": _call("tl.exp2"),
    "log2": _call("tl.log2"),
    "log10": _call("libdevice.log10"),
    "tanh": _call("libdevice.tanh"),
    "sigmoid": _call("tl.sigmoid"),
    "erf": _call("tl.erf"),
    "silu": lambda x, _: f"({x[0]} * tl.sigmoid({x[0]}))",
    "floor": _call("tl.floor"),
    "ceil": _call("tl.ceil"),
    "trunc": _call("libdevice.trunc"),
    "round": _call("libdevice.rint"),
    "div": _infix("/"),
    "pow": _call("libdevice.pow"),
    "hypot": _call("libdevice.hypot"),
}
"""Operators of floating-point numbers. Their operands get the type of the output."""

NUMBERS: dict[str, Write] = {
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _infix("*"),
    "abs": _call("tl.abs"),
    "maximum": lambda x, _: f"tl.maximum({x[0]}, {x[1]}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": lambda x, _: f"tl.minimum({x[0]}, {x[1]}, propagate_nan=tl.PropagateNan.ALL)",
    "relu": lambda x, _: f"tl.where({x[0]} < 0, 0, {x[0]})",
    "sign": lambda x, kind: f"tl.where({x[0]} > 0, 1, tl.where({x[0]} < 0, -1, 0)).to({kind})",
}
"""Operators of any numbers but booleans. Their operands get the type of the output."""

BITS: dict[str, Write] = {
    "bitwise_and": _infix("&"),
    "bitwise_or": _infix("|"),
    "bitwise_xor": _infix("^"),
}
"""Operators of integers and booleans."""

COMPARISONS: dict[str, Write] = {
    "eq": _infix("=="),
    "ne": _infix("!="),
    "lt": _infix("<"),
    "le": _infix("<="),
    "gt": _infix(">"),
    "ge": _infix(">="),
}
"""Operators whose operands get a type common to them. The output is a boolean."""

LOGIC: dict[str, Write] = {
    "logical_and": _infix("&"),
    "logical_or": _infix("|"),
    "logical_xor": _infix("^"),
    "logical_not": lambda x, _: f"({x[0]} == 0)",
    "bitwise_not": lambda x, _: f"({x[0]} == 0)",
}
"""Operators of booleans, which their operands become."""

TESTS: dict[str, Write] = {
    "isnan": lambda x, _: f"({x[0]} != {x[0]})",
    "isinf": lambda x, _: f'(tl.abs({x[0]}) == float("inf"))',
}
"""Questions about one floating-point number."""


def write_power(base: str, exponent: float, kind: str) -> str:
    """Return a power with a constant exponent, as products where PyTorch has them."""
    by_exponent = {
        0.5: f"square_root({base})",
        1.0: base,
        2.0: f"({base} * {base})",
        3.0: f"({base} * {base} * {base})",
        -0.5: f"(1.0 / square_root({base}))",
        -1.0: f"(1.0 / {base})",
        -2.0: f"(1.0 / ({base} * {base}))",
    }
    number = write_number(float(exponent), kind)
    return by_exponent.get(float(exponent)) or f"libdevice.pow({base}, tl.full({base}.shape, {number}, {kind}))"


def write_gelu(x: str, approximate: str, kind: str) -> str:
    """Return GELU by the error function, or by tanh."""
    if approximate == "tanh":
        root, third = write_number(0.7978845608028654, kind), write_number(0.044715, kind)
        return f"(0.5 * {x} * (1.0 + libdevice.tanh({root} * ({x} + {third} * ({x} * {x} * {x})))))"
    return f"(0.5 * {x} * (1.0 + tl.erf({x} * {write_number(0.7071067811865476, kind)})))"


def write_number(value: bool | int | float, kind: str) -> str:
    """Return a number as Triton writes it. Alone, one would be a float32, or a float64 if that had no such number."""
    if isinstance(value, bool):
        return str(int(value))
    text = repr(value) if isinstance(value, int) or math.isfinite(value) else f'float("{value}")'
    if isinstance(value, float) and (kind == "tl.float64" or 0 < abs(value) < MIN_NORMAL):
        return f"tl.full([], {text}, {kind})"
    return f"({text})" if value < 0 else text
