"""Operators that compute each number of their output from one number of each input, as expressions of C++."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torchwise.compile.programs.values import write_fraction

Write = Callable[[Sequence[str], str], str]
"""Takes the operands, already of one type, and that type, and returns an expression of the output's type."""


def _call(name: str) -> Write:
    return lambda given, _kind: f"{name}({', '.join(given)})"


def _infix(operator: str) -> Write:
    return lambda given, kind: f"({kind})({given[0]} {operator} {given[1]})"


FLOATS: dict[str, Write] = {
    "neg": lambda x, _: f"-{x[0]}",
    "reciprocal": lambda x, kind: f"({kind})1 / {x[0]}",
    "sqrt": _call("std::sqrt"),
    "rsqrt": lambda x, kind: f"({kind})1 / std::sqrt({x[0]})",
    "exp": _call("exp_of"),
    "expm1": _call("expm1_of"),
    "log": _call("log_of"),
    "log1p": _call("log1p_of"),
    "sin": _call("sin_of"),
    "cos": _call("cos_of"),
    "tan": _call("std::tan"),
    "asin": _call("std::asin"),
    "acos": _call("std::acos"),
    "atan": _call("std::atan"),
    "atan2": _call("std::atan2"),
    "sinh": _call("std::sinh"),
    "cosh": _call("std::cosh"),
    "exp2": _call("std::exp2"),
    "log2": _call("std::log2"),
    "log10": _call("std::log10"),
    "tanh": _call("tanh_of"),
    "sigmoid": _call("sigmoid_of"),
    "erf": _call("erf_of"),
    "silu": lambda x, _: f"{x[0]} * sigmoid_of({x[0]})",
    "floor": _call("std::floor"),
    "ceil": _call("std::ceil"),
    "trunc": _call("std::trunc"),
    "round": _call("std::rint"),
    "div": _infix("/"),
    "pow": _call("std::pow"),
    "hypot": _call("hypot_of"),
}
"""Operators of floating-point numbers. Their operands get the type of the output."""

NUMBERS: dict[str, Write] = {
    "add": _infix("+"),
    "sub": _infix("-"),
    "mul": _infix("*"),
    "abs": _call("absolute"),
    "maximum": _call("largest"),
    "minimum": _call("smallest"),
    "relu": lambda x, kind: f"({x[0]} < 0 ? ({kind})0 : {x[0]})",
    "sign": _call("sign_of"),
}
"""Operators of any numbers but booleans. Their operands get the type of the output."""

BITS: dict[str, Write] = {
    "bitwise_and": _infix("&"),
    "bitwise_or": _infix("|"),
    "bitwise_xor": _infix("^"),
    "bitwise_not": lambda x, kind: f"!{x[0]}" if kind == "bool" else f"~{x[0]}",
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
    "logical_not": lambda x, _: f"!{x[0]}",
}
"""Operators of booleans, which their operands become."""

TESTS: dict[str, Write] = {
    "isnan": lambda x, _: f"{x[0]} != {x[0]}",
    "isinf": lambda x, _: f"std::fabs({x[0]}) == __builtin_inf()",
}
"""Questions about one floating-point number."""

ANGLES = ("sin", "cos")
"""Functions that are right up to an angle. Beyond it the original answers (`is_wide`)."""

SLOW = ("tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "exp2", "log2", "log10", "pow")
"""Functions that no loop of ours vectorizes."""


def write_power(base: str, exponent: float, kind: str) -> str:
    """Return a power with a constant exponent, as products where PyTorch has them."""
    by_exponent = {
        0.5: f"std::sqrt({base})",
        1.0: base,
        2.0: f"{base} * {base}",
        3.0: f"{base} * {base} * {base}",
        -0.5: f"({kind})1 / std::sqrt({base})",
        -1.0: f"({kind})1 / {base}",
        -2.0: f"({kind})1 / ({base} * {base})",
    }
    return by_exponent.get(float(exponent)) or f"std::pow({base}, {write_fraction(exponent, kind)})"


def write_gelu(x: str, approximate: str, kind: str) -> str:
    """Return GELU by the error function, or by tanh."""
    if approximate == "tanh":
        inner = f"({kind})0.7978845608028654 * ({x} + ({kind})0.044715 * {x} * {x} * {x})"
        return f"({kind})0.5 * {x} * (({kind})1 + tanh_of({inner}))"
    return f"({kind})0.5 * {x} * (({kind})1 + erf_of({x} * ({kind})0.7071067811865476))"


def write_cast(name: str, source: torch.dtype, to: torch.dtype, kind: str) -> str:
    """Return a number as one of another type, as PyTorch converts it."""
    if source is to:
        return name
    if source.is_floating_point and to is torch.int64:
        return f"whole_of({name})"
    return f"({name} != 0)" if to is torch.bool else f"({kind}){name}"
